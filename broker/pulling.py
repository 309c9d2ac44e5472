"""Pulls from a peer the state that its log begins with, piece by piece, and asks where that is.

What is pulled lies in `snapshot/received.tmp`, which no start reads, until whoever wanted it has
judged the whole (`checked`) and written it as this disk's own. This owns the question that is under
way: one at a time, asked again until it is answered, as messages get lost. It must never take an
answer for one to another question, nor decide what the state is good for
(docs/adr/0043-a-log-that-begins-later.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from crc32c import crc32c

from broker.snapshots import base_restored
from broker.state.errors import SnapshotDamaged
from broker.state.machine import MachineOptions
from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.reading.log_start import FROM_THE_FIRST, LogStart, decode_start
from dledger.records.errors import InvalidFrame
from dledger.wire import raft_pb2 as pb
from store.snapshot_files import SnapshotFiles, SnapshotHead

PIECE_BYTES: Final = 64 << 10
MAX_BYTES: Final = 1 << 30  # of a snapshot; for what it has at the state's bounds see ADR 11
ASK_S: Final = 1.0
PROGRESS_BYTES: Final = 1 << 20  # after so much of a state whoever gives it has as long again
QUIET_S: Final = 3.0  # without an answer, from who isn't the only one to ask

T = TypeVar("T")


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], T]) -> T: ...


class NotGiven(Exception):
    """Nothing comes of this question; the text says why."""


@dataclass(slots=True)
class _Asked:
    """The request that is under way."""

    peer: NodeId
    number: int
    answer: asyncio.Future[pb.SnapshotResponse | pb.LogStartResponse]


class Pulling:
    """One member's questions, one at a time.

    Args:
        ask: sends a message to a peer, which may get lost.
        files: where to.
    """

    def __init__(
        self, ask: Callable[[NodeId, pb.PeerMessage], None], files: SnapshotFiles, hand: Hand
    ) -> None:
        self._ask = ask
        self._files = files
        self._hand = hand
        self._asked: _Asked | None = None
        self._number = 0
        self.answers = 0  # to what was asked: who waits sees that somebody is there
        self.taken_bytes = 0  # of states; and that it goes on

    def give_up(self) -> None:
        """The question that is under way comes to nothing: another one is to be asked."""
        if self._asked is not None and not self._asked.answer.done():
            self._asked.answer.cancel()

    def patience(self, seconds: float) -> Callable[[], bool]:
        """Whether to go on with who is asked from now on: for as long as there are answers, and so
        long at most, or so long for each `PROGRESS_BYTES` of a state: it may be large, and far
        away. Others wait to be asked."""
        loop = asyncio.get_running_loop()
        until_s, heard, quiet_s = loop.time() + seconds, self.answers, loop.time() + QUIET_S
        taken = self.taken_bytes

        def is_heard() -> bool:
            nonlocal heard, quiet_s, taken, until_s
            if self.answers != heard:
                heard, quiet_s = self.answers, loop.time() + QUIET_S
            if self.taken_bytes - taken >= PROGRESS_BYTES:
                taken, until_s = self.taken_bytes, loop.time() + seconds
            return loop.time() < min(until_s, quiet_s)

        return is_heard

    async def log_start_of(self, peer: NodeId, is_there: Callable[[], bool]) -> LogStart:
        """Where the peer's log begins.

        Raises:
            NotGiven: it hasn't said so as long as `is_there`, or that says nothing.
        """

        def asked(number: int) -> pb.PeerMessage:
            return pb.PeerMessage(log_start_request=pb.LogStartRequest(number=number))

        silent = "it hasn't said where its log begins: it isn't reached, or compares logs"
        answer = await self._exchange(peer, asked, is_there, silent)
        if not isinstance(answer, pb.LogStartResponse):
            raise NotGiven("it has answered something else")
        if not answer.log_start:
            return FROM_THE_FIRST
        try:
            return decode_start(answer.log_start)
        except InvalidFrame as error:
            raise NotGiven(f"where it begins can't be: {error}") from error

    async def pull(
        self, peer: NodeId, index: int, is_there: Callable[[], bool], gives_back: int
    ) -> None:
        """A peer's snapshot as of that entry is in `received.tmp`, as it came.

        Args:
            gives_back: bytes of the log that go when it is there.

        Raises:
            NotGiven: it hasn't given all of it as long as `is_there`.
            OSError: the disk doesn't take it; ENOSPC where that is foreseen.
        """
        at, size = 0, 1
        while at < size:

            def asked(number: int, at: int = at) -> pb.PeerMessage:
                body = pb.SnapshotRequest(number=number, index=index, at=at)
                return pb.PeerMessage(snapshot_request=body)

            answer = await self._exchange(peer, asked, is_there)
            if not isinstance(answer, pb.SnapshotResponse):
                raise NotGiven("it has answered something else")
            if answer.status != pb.SNAPSHOT_STATUS_GIVEN:
                raise NotGiven("it is gone there")
            if at and answer.size_bytes != size:
                raise NotGiven("its size has changed")
            size = answer.size_bytes
            if size > MAX_BYTES:  # of a working peer, whose state has outgrown what is pulled
                raise NotGiven(f"a state of {size:,} bytes, and {MAX_BYTES:,} are taken at most")
            if len(answer.piece) > size - at:
                raise NotGiven("it gives more than it has")
            if at == 0:  # a peer's word, until all of it is there and judged
                await self._hand.run(partial(self._files.check_room, size, gives_back))
            await self._hand.run(partial(self._files.receive, at, answer.piece))
            at += len(answer.piece)
            self.taken_bytes += len(answer.piece)

    async def _exchange(
        self,
        peer: NodeId,
        make: Callable[[int], pb.PeerMessage],
        is_there: Callable[[], bool],
        silent: str = "nobody offers it any more",
    ) -> pb.SnapshotResponse | pb.LogStartResponse:
        """One question, asked until it is answered; `silent`: what is said if it isn't."""
        loop = asyncio.get_running_loop()
        while is_there():
            self._number += 1
            asked = _Asked(peer, self._number, loop.create_future())
            self._asked = asked
            self._ask(peer, seal(make(asked.number)))
            try:
                async with asyncio.timeout(ASK_S):
                    await asyncio.wait([asked.answer])
                if asked.answer.cancelled():
                    raise NotGiven("another one is offered")
                return asked.answer.result()
            except TimeoutError:
                pass  # it may have got lost
            finally:
                self._asked = None
        raise NotGiven(silent)

    # --- what peers say -----------------------------------------------------------------------

    def on_piece(self, peer: NodeId, body: pb.SnapshotResponse) -> None:
        """A peer has answered, perhaps late.

        Raises:
            InvalidMessage: no working peer says that.
        """
        is_given = body.status == pb.SNAPSHOT_STATUS_GIVEN
        is_fit = 0 < len(body.piece) <= min(PIECE_BYTES, body.size_bytes) if is_given else True
        if not is_fit or is_given != bool(body.piece):
            raise InvalidMessage(f"{peer} gives {len(body.piece)} bytes of a snapshot")
        if crc32c(body.piece) != body.piece_crc:
            raise InvalidMessage(f"{peer} gives a piece that isn't what was sent")
        self._take(peer, body)

    def on_log_start(self, peer: NodeId, body: pb.LogStartResponse) -> None:
        """The same, of where its log begins."""
        self._take(peer, body)

    def _take(self, peer: NodeId, body: pb.SnapshotResponse | pb.LogStartResponse) -> None:
        asked = self._asked
        is_awaited = asked is not None and (asked.peer, asked.number) == (peer, body.number)
        if asked is not None and is_awaited and not asked.answer.done():
            self.answers += 1
            asked.answer.set_result(body)


def checked(
    files: SnapshotFiles, start: LogStart, options: MachineOptions, known_level: int
) -> Sequence[bytes]:
    """The chunks of what was received, which are the state as of the entry before `start`. Blocks.

    Raises:
        SnapshotRefused, StoreError: they aren't.
        OSError: they can't be read.
    """
    head, chunks = files.received()
    if head != head_of(head.disk_id, start):
        raise SnapshotDamaged("head", f"that of {start}", head)
    machine = base_restored(chunks, options, known_level)
    if machine.applied_index != start.index:
        raise SnapshotDamaged("state", f"that of entry {start.index}", machine.applied_index)
    return chunks


def head_of(disk_id: bytes, start: LogStart) -> SnapshotHead:
    """What the snapshot that a log begins with says of itself on that disk."""
    return SnapshotHead(disk_id, start.index, start.term, start.digest, start.end_offset)
