"""What a call does where the log itself has rotted: it is refused by name, for now.

Every call that reads entries goes through `Soundness`. Nothing that can't be read is skipped or
made up: it is got back from a peer, and the call may be made again (ADR 39). Where it can't be got
back the replica ends, and the others elect at once. A file that can't be opened for want of
descriptors or memory says nothing of what it holds: that is refused for now as well, and ends
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.errors import BrokerError, ErrorCode
from store.errors import CorruptionFound, StorageFull

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
            BrokerError: NOT_READY, the log has rotted or can't be read now; what `step` raises.
        """
        try:
            return step()
        except (CorruptionFound, StorageFull) as error:
            raise self.told(error) from error

    def told(self, error: CorruptionFound | StorageFull) -> BrokerError:
        """What callers are told. What was found is being repaired, or the replica ends."""
        if isinstance(error, StorageFull):
            return BrokerError(ErrorCode.NOT_READY, f"this replica can't read now: {error}")
        outcome = "it is being repaired"
        if not self._is_mended(error):
            self._fail(error)
            outcome = "it stops"
        text = f"this replica's log is corrupt in {error.file} at byte {error.offset}; {outcome}"
        return BrokerError(ErrorCode.NOT_READY, text)
