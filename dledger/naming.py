"""What a node, or a broker group, may be called.

One judge for configuration files, greetings and who is taken in. A name goes far: into the vote on
the disk of who votes for it, into the log's configurations, their note and every file name of a
tool, and each of these has its bounds. So a name is judged where it is first heard, and nobody
behind that needs to be afraid of one.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE: Final = "a name of 1 to 64 characters of A-Z, a-z, 0-9, _ and -"


def is_name(name: str) -> bool:
    """Whether something can be called so."""
    return _NAME.fullmatch(name) is not None
