"""What a call does where the log itself has rotted: it is refused by name, and the replica ends.

Every call that reads entries goes through `Soundness`. Nothing that can't be read is skipped or
made up; a replica that can't give back what it counts as a copy of is worth less than one that is
gone and replaced (ADR 28), and the others elect at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.errors import BrokerError, ErrorCode
from store.errors import CorruptionFound

T = TypeVar("T")


class Soundness:
    """Reads for calls. `fail` stops the replica for good."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail

    def read(self, step: Callable[[], T]) -> T:
        """What `step` gives.

        Raises:
            BrokerError: NOT_READY, the log has rotted; and what `step` raises.
        """
        try:
            return step()
        except CorruptionFound as error:
            self._fail(error)
            text = f"this replica's log is corrupt in {error.file} at byte {error.offset}; it stops"
            raise BrokerError(ErrorCode.NOT_READY, text) from error
