"""What a call does where the log itself has rotted: it is refused by name, for now.

Every call that reads entries goes through `Soundness`. Nothing that can't be read is skipped or
made up: it is got back from a peer, and the call may be made again (ADR 39). Where it can't be got
back the replica ends, and the others elect at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.errors import BrokerError, ErrorCode
from store.errors import CorruptionFound

T = TypeVar("T")


class Soundness:
    """Reads for calls. `is_mended` says whether what was found is being repaired; else `fail` stops
    the replica for good."""

    def __init__(
        self,
        fail: Callable[[BaseException], None],
        is_mended: Callable[[BaseException], bool],
    ) -> None:
        self._fail = fail
        self._is_mended = is_mended

    def read(self, step: Callable[[], T]) -> T:
        """What `step` gives.

        Raises:
            BrokerError: NOT_READY, the log has rotted; and what `step` raises.
        """
        try:
            return step()
        except CorruptionFound as error:
            raise self.on_rot(error) from error

    def on_rot(self, error: CorruptionFound) -> BrokerError:
        """What was found is being repaired, or the replica ends; what callers are told."""
        outcome = "it is being repaired"
        if not self._is_mended(error):
            self._fail(error)
            outcome = "it stops"
        text = f"this replica's log is corrupt in {error.file} at byte {error.offset}; {outcome}"
        return BrokerError(ErrorCode.NOT_READY, text)
