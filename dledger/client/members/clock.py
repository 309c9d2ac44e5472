"""The clock that leases are judged by: seconds that go on while the machine sleeps.

Python's monotonic clock stands still on Linux while a machine is suspended, and a member that wakes
would believe in a session that has ended hours ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", None)

clock: Final[Callable[[], float]] = (
    time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT)
)
