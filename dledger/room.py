"""Room in the log: which entries a disk that is all but full still takes.

This owns the head room. An elected node must be able to append its no-op, or a full disk would stop
each new leader in turn; and the group must be able to say that something may go, or a full disk
would stay full. So what makes room may use a part of the head room, no-ops all of it, everything
else none. Whether an entry makes room is told by who knows entries; nothing is believed of whoever
sent it, as the part is all that such entries get.

    free for    |<- everything ... |<- what makes room |<- no-ops |  the end of what is had
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic

from dledger.core.types import EntryKind
from dledger.ports import H, ReplicatedLog

# In no-ops. So many elections fit before space must have come back, and of the rest some hundred
# entries that make room: each of them frees a segment once it is carried out.
NOOPS_HEAD_ROOM: Final = 256
FOR_NOOPS_ALONE: Final = 192

MakesRoom = Callable[[int, bytes | bytearray | memoryview], bool]  # (kind, body)


class Room(Generic[H]):
    """One node's, from the thread that owns the log.

    Args:
        makes_room: whether an entry lets go of others.
        noop_size, inflight_bytes: of the core's options; the latter may be under way to one peer.
    """

    def __init__(
        self,
        log: ReplicatedLog[H],
        makes_room: MakesRoom,
        noop_size: int,
        inflight_bytes: int,
    ) -> None:
        self._log = log
        self._makes_room = makes_room
        self._header_size = noop_size  # a no-op is nothing else
        self._head_room = NOOPS_HEAD_ROOM * noop_size
        self._for_noops = FOR_NOOPS_ALONE * noop_size
        # A log that doesn't take beside them what may be under way to one peer is short of space:
        # at full speed it would refuse in about the time that a hand-over takes.
        self._ample_bytes = inflight_bytes + self._head_room
        self._refused_bytes = 0  # the largest that was refused since the disk got full

    def takes(self, kind: int, size: int, body: bytes | bytearray) -> bool:
        """Whether an entry of `size` bytes may be proposed; what is refused is remembered."""
        if self._log.has_room(size + self._head_room):
            return True
        if self._makes_room(kind, body) and self._log.has_room(size + self._for_noops):
            return True
        self._refuse(size + self._head_room)
        return False

    def takes_frames(self, new: Sequence[H], blob: memoryview) -> bool:
        """Whether frames of a leader may be appended; what is refused is remembered. The entry
        before them is held. What comes after it now is going to be dropped: a tail that nobody
        else has must never keep what replaces it from a full disk.

        Args:
            new: one at least.
            blob: theirs, back to back.
        """
        has_room = partial(self._log.has_room_behind, new[0].index - 1)
        size = sum(each.total_size for each in new)
        if all(each.kind == EntryKind.NOOP for each in new):
            needed = size
        else:
            needed = size + self._head_room
        if has_room(needed):
            return True
        if self._all_make_room(new, blob) and has_room(size + self._for_noops):
            return True
        self._refuse(needed)
        return False

    def is_short(self) -> bool:
        """Whether what comes next may be refused, or what came last would be again. It is said
        ahead of the first refusal, so that as a rule there is none."""
        is_short = self._log.is_short_of_space(max(self._ample_bytes, self._refused_bytes))
        if not is_short:
            self._refused_bytes = 0
        return is_short

    def _refuse(self, needed: int) -> None:
        self._refused_bytes = max(self._refused_bytes, needed)

    def _all_make_room(self, new: Sequence[H], blob: memoryview) -> bool:
        """Those of them that are no no-ops; one at least is none."""
        at = 0
        for each in new:
            body = blob[at + self._header_size : at + each.total_size]
            if each.kind != EntryKind.NOOP and not self._makes_room(each.kind, body):
                return False
            at += each.total_size
        return True
