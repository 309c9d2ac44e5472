"""Asks peers for entries that they have and this member has not any more, one peer after the other.

Whoever wants them says which, and judges what comes (`Taking`): a giver is believed in nothing. It
gives them in pieces; where it has lost one itself, or ends before it, and this member's own is
intact, that takes its place, and the giver is asked for those behind.
This owns the question that is under way, its number, and what became of asking each peer. It must
never take an answer for one to another question, nor wait for one peer only
(docs/adr/0039-rot-in-the-log-is-repaired.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

import structlog

from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.peers import PeerLink
from dledger.reading.entry import walk_frames
from dledger.records.errors import InvalidFrame
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb

ASK_S: Final = 1.0  # from a request to asking somebody else
AGAIN_S: Final = 0.2  # from asking everybody to asking everybody again
NEGATIVE_ROUNDS: Final = 3  # in which every peer says that it can't give them

log = structlog.get_logger(__name__)


class Verdict(Enum):
    """What came of asking one peer."""

    SILENT = "has not answered"
    NOT_YET = "doesn't have them yet"
    ROTTEN = "has them rotten, too"
    OTHER = "gave other bytes"
    OLD = "runs a release that gives none"


# None of these will have the bytes later, unless somebody gives them to it.
_NEGATIVE: Final = frozenset({Verdict.ROTTEN, Verdict.OTHER, Verdict.OLD})


class Taking(Protocol):
    """What is missing, as one giver gives it; judged as it comes."""

    next_index: int

    def take(self, blob: bytes) -> bool:
        """The next frames are in `blob`; True if nothing is missing any more, and that is proven.

        Raises:
            InvalidFrame: they are not what was there. Nothing of this giver is worth anything.
        """
        ...

    def own_frame(self) -> bytes:
        """The next frame as it lies here, if it is intact and carries on what was taken; else
        nothing. It is judged like any other, by what comes of it."""
        ...

    def next_term(self) -> int | None:
        """The term of the next entry; None where it isn't known. Nothing else is taken for it."""
        ...


T = TypeVar("T", bound=Taking)


@dataclass(frozen=True, slots=True)
class Given(Generic[T]):
    """Bytes that were judged, and whose they are."""

    peer: NodeId
    taken: T


@dataclass(slots=True)
class _Asked:
    """The request that is under way."""

    peer: NodeId
    number: int
    answer: asyncio.Future[pb.EntriesResponse]


class Asking:
    """One member's questions, one at a time.

    Args:
        links: the connections to the peers.
        request: sends a message to a peer, which may get lost.
    """

    def __init__(
        self,
        links: Callable[[], Mapping[NodeId, PeerLink]],
        request: Callable[[NodeId, pb.PeerMessage], None],
    ) -> None:
        self.refused = 0  # answers that weren't the right bytes
        self._links = links
        self._request = request
        self._asked: _Asked | None = None
        self._number = 0
        self._sparing = Sparing()

    async def ask_all(
        self, begin: Callable[[], T], last: int, last_term: int
    ) -> Given[T] | dict[NodeId, Verdict]:
        """What is missing, from the first peer that gives it; or why none does.

        Args:
            begin: what takes the bytes of one giver.
            last: the last entry that is asked for; who has it of `last_term` has the same before
                it, committed or not.
        """
        verdicts: dict[NodeId, Verdict] = {}
        for peer in sorted(self._links()):
            verdict = await self._ask(peer, begin, last, last_term)
            if not isinstance(verdict, Verdict):
                return Given(peer, verdict)
            verdicts[peer] = verdict
        return verdicts

    async def _ask(
        self, peer: NodeId, begin: Callable[[], T], last: int, last_term: int
    ) -> T | Verdict:
        """All bytes, from this one peer; or why not."""
        link = self._links().get(peer)
        if link is None or not link.connected:  # it may be a member no more by now
            return Verdict.SILENT
        if not link.gives_entries:
            return Verdict.OLD
        taking, is_short = begin(), False  # whether the peer ends before `last`
        while True:
            frames: bytes | Verdict = taking.own_frame() if is_short else b""
            if not frames:
                answer = await self._exchange(peer, taking.next_index, last, last_term)
                is_short = answer is Verdict.NOT_YET and taking.next_term() is not None
                frames = await self._next_of(peer, taking, answer)
            if isinstance(frames, Verdict):
                return frames
            try:
                if taking.take(frames):
                    return taking
            except InvalidFrame as error:
                self.refused += 1
                if (unreported := self._sparing.due(("refused", peer))) is not None:
                    log.error(
                        "repair_answer_refused", peer=peer, reason=str(error), unreported=unreported
                    )
                return Verdict.OTHER
            await asyncio.sleep(0)  # a turn of the event loop each, also for those of one's own

    async def _next_of(
        self, peer: NodeId, taking: Taking, answer: pb.EntriesResponse | Verdict
    ) -> bytes | Verdict:
        """What follows from a peer's answer: its entries, one of this member's own, or neither."""
        index, term = taking.next_index, taking.next_term()
        if answer is Verdict.NOT_YET and term is not None:
            # It hasn't got the last one, and may not know that those before are committed. Who has
            # this one in its term has the same.
            answer = await self._exchange(peer, index, index, term)
        if not isinstance(answer, Verdict):
            return answer.frames
        # The two needn't have lost the same entry. Where its term isn't known, one that a lost
        # write has left behind could be meant, which only a peer that goes on would tell.
        is_lacking = answer is Verdict.ROTTEN or (answer is Verdict.NOT_YET and term is not None)
        own = taking.own_frame() if is_lacking else b""
        return own or answer

    async def _exchange(
        self, peer: NodeId, first: int, last: int, last_term: int
    ) -> pb.EntriesResponse | Verdict:
        """One request and its answer."""
        self._number += 1
        asked = _Asked(peer, self._number, asyncio.get_running_loop().create_future())
        self._asked = asked
        body = pb.EntriesRequest(
            number=asked.number, first_index=first, last_index=last, last_term=last_term
        )
        self._request(peer, seal(pb.PeerMessage(entries_request=body)))
        try:
            async with asyncio.timeout(ASK_S):
                answer = await asked.answer
        except TimeoutError:
            return Verdict.SILENT
        finally:
            self._asked = None
        match answer.status:
            case pb.ENTRIES_STATUS_GIVEN:
                return answer
            case pb.ENTRIES_STATUS_ROTTEN:
                return Verdict.ROTTEN
            case _:
                return Verdict.NOT_YET

    def on_response(self, peer: NodeId, body: pb.EntriesResponse) -> None:
        """A peer has answered, perhaps late.

        Raises:
            InvalidMessage: no working peer says that.
        """
        is_given = body.status == pb.ENTRIES_STATUS_GIVEN
        if len(body.frames) != body.frames_size or bool(body.frames) != is_given:
            raise InvalidMessage(f"{peer} gives {len(body.frames)} bytes of entries")
        try:
            walk_frames(body.frames)
        except InvalidFrame as error:
            raise InvalidMessage(f"{peer} gives entries that are none: {error}") from error
        asked = self._asked
        is_awaited = asked is not None and (asked.peer, asked.number) == (peer, body.number)
        if asked is not None and is_awaited and not asked.answer.done():
            asked.answer.set_result(body)


def are_final(verdicts: Mapping[NodeId, Verdict]) -> bool:
    """Whether every peer has said that it can't give them."""
    return _NEGATIVE.issuperset(verdicts.values())


def told(verdicts: Mapping[NodeId, Verdict]) -> str:
    """What came of asking, for people."""
    return ", ".join(f"{peer} {each.value}" for peer, each in verdicts.items())
