"""Finds out which of two logs is wrong when a peer contradicts this one, and where they part.

A contradiction says that this node's log and a peer's differ, and not whose is wrong. So every
member that compares digests is asked for its own (`DigestRequest`): a majority of the voters that
says the same, and something else than this log, twice over, is right (`broker.verdict`). Then this
log is read from its files, all of it. What has rotted is repaired as ever (ADR 39); a log that is
sound, and another one, is *diverged*: the member falls silent at once, the first entry that differs
is searched for by halving, and whoever made this is told, once.

    suspected ─▶ asking ─▶ outvoted, twice ─▶ own files sound ─▶ silent ─▶ halving ─▶ told
                  ▲  │                            └ rotten: repaired, begun anew
                  │  ├ a majority holds the same: the others are told of, and it is over
                  └──┴ nobody knows: asked again, for as long as anybody differs

No peer's word is believed alone, and none is waited for. Who asks says what its own log has, so
who is asked learns of a difference as well: a leader that differs hears of it from those that
refuse what it sends. It must never stop a node that a majority doesn't contradict
(docs/adr/0044-the-live-divergence-alarm.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from broker.suspecting import Suspecting
from broker.verdict import Place, Standing, judge
from dledger.checksum import check_outside_terms, seal
from dledger.core.types import MAX_INDEX, MAX_TERM, Configuration, NodeId
from dledger.errors import InvalidMessage, ReplicaDiverged
from dledger.peers import PeerLink
from dledger.reading.log_start import LogStart
from dledger.sparing import Sparing
from dledger.wire import raft_pb2 as pb
from store.commitlog import CommitLog
from store.errors import CorruptionFound, OutOfRange
from store.out_of_service import Divergence

ASK_S: Final = 0.5  # from asking to going on without who hasn't answered
AGAIN_S: Final = 0.5  # from one round of asking to the next
ASKED_FOR_S: Final = 5.0  # since a peer asked last, until no comparison is taken to go on
PAUSE_S: Final = 1.0  # from the end of one inquiry to the next one's beginning
LOOK_AGAIN_ROUNDS: Final = 20  # of waiting, from one look at those that differ to the next
OUTVOTED_ROUNDS: Final = 2  # in a row, until it is believed
QUIET_ROUNDS: Final = 4  # in which nobody differs, until what was suspected is forgotten
PLACES: Final = 16  # that are compared in one round of asking, the last one first
HALVING_TRIES: Final = 4  # to be answered about one entry, by whoever of the majority
SLICE_BYTES: Final = 256 << 10  # of the own log, read in a turn: about a millisecond
NOT_HELD: Final = Place(0, 0, 0)  # of a peer whose log begins behind what it was asked for

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ComparisonStatistics:
    """`suspected`: the entry at which this log or a peer's is wrong, and it isn't known whose; 0:
    there is none. `differing`: the members whose logs differ from a majority's, by name, with the
    disks on which they do. Counts since the process started: inquiries begun, and digests that were
    told to others."""

    suspected: int
    differing: Mapping[NodeId, bytes]
    inquiries: int
    digests_told: int
    is_silent: bool


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What comparing needs of the replica that it is a part of.

    Attributes:
        node: this one.
        durable: the last entry that is on this disk.
        term_at: the term of an entry, as the core knows it.
        configuration: in force.
        followed: who leads, and who offers the state that this node needs. Where this log is so far
            behind that it knows neither, they are members all the same, by a later configuration.
        noted_start: where the log begins by its note, read from the disk.
        links, request, answer: as for `broker.repairs.Surroundings`.
        is_mended: whether what a read stumbled over is being put right.
        silence: this node votes, acknowledges, leads and serves no more, from this moment on.
        leaving: the same of every process to come, durably, if the disk has room for it.
        diverged: is told, once, when all that can be known is known.
        failed: is told of an error that comparing can't get over.
    """

    node: NodeId
    durable: Callable[[], int]
    term_at: Callable[[int], int]
    configuration: Callable[[], Configuration]
    followed: Callable[[], Collection[NodeId]]
    noted_start: Callable[[], LogStart]
    links: Callable[[], Mapping[NodeId, PeerLink]]
    request: Callable[[NodeId, pb.PeerMessage], None]
    answer: Callable[[NodeId, pb.PeerMessage], None]
    is_mended: Callable[[Exception], bool]
    silence: Callable[[], None]
    leaving: Callable[[Divergence], Awaitable[None]]
    diverged: Callable[[Divergence], None]
    failed: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a round of asking came to. `told` of the entry of `own`."""

    standing: Standing
    own: Place
    told: Mapping[NodeId, Place]
    others: frozenset[NodeId]


class Comparison:
    """All comparing of one replica, on its event loop, from `start` to `stop`."""

    def __init__(self, source: CommitLog, around: Neighbours, kept: Suspecting) -> None:
        self._log = source
        self._around = around
        self._kept = kept
        self._suspected = 0
        self._differing: dict[NodeId, bytes] = {}
        self._differs_at = 0
        self._is_silent = False
        self._loop: asyncio.AbstractEventLoop | None = None  # from `start` to `stop`
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self._asked_s = -ASKED_FOR_S  # when a peer asked last
        self._asked: dict[tuple[NodeId, int], asyncio.Future[Place]] = {}
        self._sparing = Sparing()
        self._inquiries = self._told = 0

    @property
    def is_silent(self) -> bool:
        """Whether this log is known not to be the group's."""
        return self._is_silent

    def statistics(self) -> ComparisonStatistics:
        """A frozen picture, as of now."""
        differing = self._known_differing()
        return ComparisonStatistics(
            self._suspected, differing, self._inquiries, self._told, self._is_silent
        )

    def _known_differing(self) -> dict[NodeId, bytes]:
        """Those that haven't been replaced since."""
        disk_of = self._around.configuration().disk_of
        return {peer: disk for peer, disk in self._differing.items() if disk_of(peer) == disk}

    @property
    def is_under_way(self) -> bool:
        """Whether logs are being compared: this one with others, or those of two who ask what this
        one holds, which may be nothing there. Of a comparison of others that is over this knows so
        many seconds later."""
        is_asked = self._loop is not None and self._loop.time() < self._asked_s + ASKED_FOR_S
        return self._is_silent or bool(self._suspected) or is_asked

    # --- life -------------------------------------------------------------------------------

    def suspect(self, index: int) -> None:
        """Somebody holds something else at `index` than this log, or behind it. Safe from within
        whatever reads the log."""
        index = min(index, self._around.durable())
        if index < self._lowest() or self._is_silent:
            return
        self._suspected = max(self._suspected, index)
        self._begin()

    def recall(self) -> None:
        """What a process before suspected, this one does, from its first moment on.

        Raises:
            OSError: what that is can't be read.
        """
        if index := self._kept.recall():
            self.suspect(max(index, self._lowest()))

    def start(self) -> None:
        """Inquiries begin."""
        self._loop = asyncio.get_running_loop()
        self._begin()

    async def stop(self) -> None:
        """None goes on; what was found to differ is compared anew by the next process."""
        self._loop = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        is_idle = self._task is None or self._task.done()
        if self._loop is not None and (self._suspected or self._kept.is_noted) and is_idle:
            self._inquiries += 1
            self._task = self._loop.create_task(self._work(), name="comparing")

    async def _work(self) -> None:
        try:
            while self._suspected or self._known_differing():
                if not self._suspected:
                    await self._kept.remember(0)
                    await self._look_again()
                    continue
                if (found := await self._inquire()) is not None:
                    await self._part(found)
                    return
                self._suspected = 0
                await asyncio.sleep(PAUSE_S)
            await self._kept.remember(0)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._around.failed(error)

    # --- the inquiry ------------------------------------------------------------------------

    async def _inquire(self) -> _Found | None:
        """How this log was outvoted; None if it wasn't, or has to be repaired first."""
        outvoted = quiet = 0
        while True:
            found = await self._round(self._suspected)
            if found is not None and found.standing is Standing.SOUND:
                self._tell_of_others(found)
                return None
            is_outvoted = found is not None and found.standing is Standing.OUTVOTED
            outvoted = outvoted + 1 if is_outvoted else 0
            if found is not None and outvoted >= OUTVOTED_ROUNDS:
                return found if await self._is_sound(found.own) else None
            quiet = 0 if found is not None and found.others else quiet + 1
            if quiet >= QUIET_ROUNDS:
                return None
            if found is not None and found.others:
                await self._kept.remember(found.own.index)
            self._tell_of_doubt(found)
            await asyncio.sleep(AGAIN_S)

    async def _round(self, wanted: int) -> _Found | None:
        """What everybody says, at `wanted` or at the last entry before it that enough of them have;
        None if nothing can be compared."""
        own = self._place(min(wanted, self._around.durable()))
        if own is None:
            return None
        told = await self._ask_all(self._around.links(), own)
        found: _Found | None = None
        left = {place.index for place in told.values()}
        for _ in range(PLACES):
            if not left:
                break
            index = max(left)
            left.remove(index)
            own = self._place(index)
            if own is None:
                continue
            behind = [peer for peer, place in told.items() if place.index > index]
            told = {peer: place for peer, place in told.items() if place.index <= index}
            told |= await self._ask_all(behind, own)  # who is silent isn't asked again this time
            if self._place(index) != own:
                continue  # a leader has put other entries there meanwhile, maybe fewer
            here = {peer: place for peer, place in told.items() if place.index == index}
            judgement = judge(self._around.configuration(), self._around.node, own, here)
            # That a majority agrees with what is before says nothing of what was suspected.
            is_before = judgement.standing is Standing.SOUND and index < wanted
            standing = Standing.OPEN if is_before else judgement.standing
            latest = _Found(standing, own, here, judgement.others)
            if standing is not Standing.OPEN:
                return latest
            found = latest if found is None or latest.others else found
            left.update(filter(None, (self._before(own, place) for place in here.values())))
        return found

    def _before(self, own: Place, place: Place) -> int:
        """The last entry here that somebody may hold as well who has one of another term at that
        place: further down nobody's tail hides whose log is wrong. 0: none that is known."""
        if place.term == own.term:
            return 0
        most = min(place.term, own.term - 1)  # the terms of what both may hold
        low, high = self._lowest(), own.index
        try:
            if self._around.term_at(low) > most:
                return 0
            while high - low > 1:  # terms don't fall
                middle = (low + high) // 2
                if self._around.term_at(middle) > most:
                    high = middle
                else:
                    low = middle
        except CorruptionFound as error:
            if not self._around.is_mended(error):
                raise
            return 0
        return low

    def _place(self, index: int) -> Place | None:
        """The entry here; None where it isn't held, or can't be read."""
        if not self._lowest() <= index <= self._around.durable():
            return None
        try:
            return Place(index, self._around.term_at(index), self._log.digest_at(index))
        except CorruptionFound as error:
            if not self._around.is_mended(error):
                raise
            return None

    def _lowest(self) -> int:
        """The lowest entry that is known here: the one before the first that is held, by the log's
        start note, where there is one."""
        return max(self._log.start.index, 1)

    async def _is_sound(self, own: Place) -> bool:
        """Whether this log's files hold what it says, from its first entry on. False: it has
        rotted, and is being put right.

        Raises:
            ReplicaDiverged: memory and files differ.
            CorruptionFound: what has rotted can't be put right.
        """
        source = self._log
        start, noted = source.start, self._around.noted_start()
        # One that is further is of a front that is just being let go.
        if noted.index <= start.index and noted != start:
            raise ReplicaDiverged(start.index, start.digest, noted.digest)
        digest, index = start.digest, start.first_index
        try:
            while index <= own.index:
                last = source.last_that_fits(index, own.index, SLICE_BYTES)
                digest = source.verify(index, last, digest)
                index = last + 1
                await asyncio.sleep(0)
        except OutOfRange:
            return False  # it has been cut off meanwhile, and can't have been committed
        except CorruptionFound as error:
            if self._around.is_mended(error):
                return False
            raise
        if digest != own.digest:
            raise ReplicaDiverged(own.index, own.digest, digest)
        return True

    async def _look_again(self) -> None:
        """Whoever was said to differ, and says now that he doesn't, isn't said to any more: it was
        a word and not a log that was wrong. Who says nothing may be out of service. The others
        are told that nothing is in question."""
        for _ in range(LOOK_AGAIN_ROUNDS):
            await asyncio.sleep(AGAIN_S)
            if self._suspected:
                return
        found = await self._round(self._differs_at)
        if found is not None and found.standing is Standing.SOUND:
            for peer in found.told.keys() - found.others:
                self._differing.pop(peer, None)

    def _tell_of_others(self, found: _Found) -> None:
        configuration = self._around.configuration()
        self._differs_at = found.own.index
        for peer in sorted(found.others):
            self._differing[peer] = configuration.disk_of(peer)
            log.error(
                "member_differs",
                member=peer,
                index=found.own.index,
                digest=f"{found.told[peer].digest:016x}",
                majority=f"{found.own.digest:016x}",
            )

    def _tell_of_doubt(self, found: _Found | None) -> None:
        if found is None or not found.others:
            return
        if (unreported := self._sparing.due(("replicas_differ_undecided",))) is not None:
            log.error(
                "replicas_differ_undecided",
                index=found.own.index,
                others=sorted(found.others),
                unreported=unreported,
            )

    # --- where the logs part ----------------------------------------------------------------

    async def _part(self, found: _Found) -> None:
        """This log isn't the group's."""
        self._is_silent = True
        self._around.silence()
        digest = next(iter(found.told[peer].digest for peer in sorted(found.others)))
        peers = sorted(peer for peer in found.others if found.told[peer].digest == digest)
        log.critical(
            "replica_diverged",
            index=found.own.index,
            digest=f"{found.own.digest:016x}",
            majority=f"{digest:016x}",
            members=peers,
        )
        await self._around.leaving(
            Divergence(
                compared_index=found.own.index,
                own_digest=found.own.digest,
                peers_digest=digest,
                peers=tuple(peers),
            )
        )
        agreed, differing = await self._halve(found.own, peers, digest)
        is_found = differing.index == agreed + 1
        compared = (None if is_found else self._place(differing.index)) or found.own
        self._around.diverged(
            Divergence(
                compared_index=compared.index,
                own_digest=compared.digest,
                peers_digest=digest if compared is found.own else differing.digest,
                peers=tuple(peers),
                agreed_index=agreed,
                differing_index=differing.index if is_found else 0,
                own_term=self._around.term_at(differing.index),
                peers_term=differing.term,
            )
        )

    async def _halve(self, own: Place, peers: list[NodeId], digest: int) -> tuple[int, Place]:
        """The last entry that is known to be the same, 0 if none is, and the first known to differ,
        as a peer holds it: next to each other, if peers go on answering. What was before a log's
        first entry may differ as well: so the one before it is asked for first, and those that
        peers don't hold any more say nothing."""
        agreed, differing = 0, Place(own.index, own.term, digest)
        below = max(0, self._lowest() - 1)  # nothing at or below is worth a question
        at = self._lowest()
        while below < at < differing.index:
            middle = self._place(at)
            theirs = None if middle is None else await self._told_at(middle, peers)
            if middle is None or theirs is None:
                break
            if theirs == middle:
                agreed = below = middle.index
            elif theirs is NOT_HELD:
                below = middle.index
            else:
                differing = theirs
            at = (below + differing.index) // 2
        return agreed, differing

    async def _told_at(self, own: Place, peers: list[NodeId]) -> Place | None:
        """What one of `peers` holds at that entry; `NOT_HELD` if all that answer hold nothing
        there, None if nobody answers."""
        for _ in range(HALVING_TRIES):
            told = await self._answers(peers, own)
            here = [told[peer] for peer in peers if peer in told]
            if (held := next((each for each in here if each.index == own.index), None)) is not None:
                return held
            if len(here) == len(peers):
                return NOT_HELD
        return None

    # --- asking -----------------------------------------------------------------------------

    async def _ask_all(self, peers: Iterable[NodeId], own: Place) -> dict[NodeId, Place]:
        """What those that answer in time hold there, or at the last entry before."""
        told = await self._answers(peers, own)
        return {peer: place for peer, place in told.items() if place is not NOT_HELD}

    async def _answers(self, peers: Iterable[NodeId], own: Place) -> dict[NodeId, Place]:
        """The same, with `NOT_HELD` of those that know of no entry there or before."""
        links = self._around.links()
        asked: dict[NodeId, asyncio.Future[Place]] = {}
        for peer in sorted(peers):
            link = links.get(peer)
            if link is None or not link.connected or not link.compares_digests:
                continue
            asked[peer] = self._ask(peer, own)
        if asked:
            await asyncio.wait(asked.values(), timeout=ASK_S)
        told: dict[NodeId, Place] = {}
        for peer, future in asked.items():
            if future.done() and future.result().index <= own.index:
                told[peer] = future.result()
        self._asked.clear()
        return told

    def _ask(self, peer: NodeId, own: Place) -> asyncio.Future[Place]:
        self._number += 1
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._asked[peer, self._number] = future
        body = pb.DigestRequest(
            number=self._number, index=own.index, entry_term=own.term, digest=own.digest
        )
        # Whoever hears of a comparison waits until it is over, with what drops a log. One that is
        # over for good, as nobody replaces who was found to differ, is looked at again for ever:
        # only who differs, and may have its own log back by now, is to wait for that.
        body.only_looks_again = not self._suspected and peer not in self._differing
        self._around.request(peer, seal(pb.PeerMessage(digest_request=body)))
        return future

    # --- what peers say ---------------------------------------------------------------------

    def on_message(self, peer: NodeId, message: pb.PeerMessage) -> bool:
        """Whether `message` is about comparing; then it has been heeded.

        Raises:
            InvalidMessage: no working peer sends it.
        """
        match message.WhichOneof("body"):
            case "digest_request":
                check_outside_terms(peer, message)
                try:
                    self._on_request(peer, message.digest_request)
                except CorruptionFound as error:  # beyond repair: no matter of who asked
                    self._around.failed(error)
            case "digest_response":
                check_outside_terms(peer, message)
                self._on_response(peer, message.digest_response)
            case _:
                return False
        return True

    def _on_response(self, peer: NodeId, body: pb.DigestResponse) -> None:
        place = NOT_HELD
        if body.index or body.entry_term or body.digest:
            place = _place_in(peer, body)
        future = self._asked.get((peer, body.number))
        if future is not None and not future.done():
            future.set_result(place)

    def _on_request(self, peer: NodeId, body: pb.DigestRequest) -> None:
        theirs = _place_in(peer, body)
        # Whoever else is answered, and nothing of it counts: anybody may say that logs differ.
        is_member = peer in {*self._around.configuration().members(), *self._around.followed()}
        if self._loop is not None and is_member and not body.only_looks_again:
            self._asked_s = self._loop.time()
        if self._is_silent:
            return
        told = self._place(min(theirs.index, self._around.durable()))
        self._told += told is not None
        answer = pb.DigestResponse(number=body.number)
        if told is not None:
            answer.index, answer.entry_term, answer.digest = told.index, told.term, told.digest
        self._around.answer(peer, seal(pb.PeerMessage(digest_response=answer)))
        own = self._place(theirs.index)
        is_other = own is not None and own.term == theirs.term and own.digest != theirs.digest
        if own is not None and is_member and is_other:
            self.suspect(own.index)


def _place_in(peer: NodeId, body: pb.DigestRequest | pb.DigestResponse) -> Place:
    """Raises InvalidMessage for an entry that is in no log."""
    if not 1 <= body.index <= MAX_INDEX or not 1 <= body.entry_term <= MAX_TERM:
        raise InvalidMessage(f"{peer} compares entry {body.index} of term {body.entry_term}")
    return Place(body.index, body.entry_term, body.digest)
