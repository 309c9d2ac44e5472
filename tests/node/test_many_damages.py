"""Several places of one log that have rotted at once: side by side, at the edges of what is known
of the log, over files, and more of them while a repair is under way.

The member's log and its peer's lie on simulated disks; asking, judging and writing back are the
real ones. The peer is honest, so it must never be refused."""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from broker import repairs as repairs_module
from broker.asking import NEGATIVE_ROUNDS
from broker.repairs import Repairs, Surroundings
from dledger.core.errors import UnknownEntry
from dledger.core.types import Index, NodeId
from dledger.peers import PeerLink
from dledger.reading.entry import HEADER_SIZE, build_frame, parse_header
from dledger.reading.log_start import LogStart
from dledger.records.layout import file_name
from dledger.wire import raft_pb2 as pb
from store import damage as damage_module
from store.commitlog import CommitLog, CommitLogOptions
from store.doubt import DoubtNote
from store.errors import BeyondRepair, CorruptionFound, OutOfRange
from store.repair_journal import RepairJournal
from tests.node.test_replica import on_a_loop
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LOG, LogUnderTest

SEGMENT = 160 << 10  # so many of them that old ones know few starts: marks every 64 KiB
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)
ENTRIES = 1_700
ME, PEER = NodeId("n1"), NodeId("n2")
FIRSTS = [*range(0, 40, 10), *(pytest.param(n, marks=pytest.mark.long) for n in range(40, 90, 10))]
SEEDS = [*range(5), *(pytest.param(each, marks=pytest.mark.long) for each in range(5, 10))]


@functools.cache
def healthy() -> SimulatedDisk:
    """A disk with a log of segments old and new, whose newest entries are one run each."""
    disk = SimulatedDisk()
    made = LogUnderTest(disk, OPTIONS)
    chance = Random(5)
    for number in range(ENTRIES):
        made.append(chance.randbytes(chance.choice((40, 900, 1_900))), term=1 + number // 9)
        if number % 20 == 19:
            made.flush()
    made.flush()
    made.log.close()
    return disk


def contents(disk: SimulatedDisk) -> dict[Path, bytes]:
    paths = [path for path in disk.paths() if path.parent == LOG and path.suffix == ""]
    found = {path: disk.content(path).rstrip(b"\0") for path in paths}
    return {path: content for path, content in found.items() if content}


class InlineHand:
    """Every step is done at once, another turn later."""

    async def run(self, step: Callable[[], object]) -> object:
        await asyncio.sleep(0)
        return step()


class Member:
    """Repairs of one log; what they ask and answer goes to `other`, a turn of the loop later."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.log = LogUnderTest(disk, OPTIONS).log
        self.through = self.ends_at = self.log.last_index
        self.failures: list[BaseException] = []
        self.is_in_doubt = False
        self.asked: list[pb.EntriesRequest] = []
        self.on_asking: Callable[[], None] = lambda: None
        self.on_end_of_doubt: Callable[[], None] = lambda: None
        self.other: Member | None = None
        link = PeerLink(connected=True, reconnects=0, dropped=0, renewed=0, gives_entries=True)
        self.around = Surroundings(
            through=lambda: self.through,
            holds=lambda index, term: index <= self.ends_at and self.term_at(index) == term,
            term_at=self.term_at,
            links=lambda: {} if self.other is None else {PEER: link},
            request=self._request,
            answer=self._send,
            doubt=self._doubt,
            failed=self.failures.append,
        )
        self.begin()

    def begin(self) -> None:
        """Repairs that know nothing but what is noted."""
        journal, note = RepairJournal(self.disk, DATA), DoubtNote(self.disk, DATA)
        self.repairs = Repairs(self.log, journal, InlineHand(), self.around, note)

    def term_at(self, index: int) -> int:
        if index < self.log.first_index:
            raise UnknownEntry(Index(index), Index(self.log.last_index))
        runs = self.log.term_runs()
        return next(term for first, term in reversed(runs) if first <= index)

    def _doubt(self, *, is_in_doubt: bool) -> None:
        self.is_in_doubt = is_in_doubt
        if not is_in_doubt:
            self.on_end_of_doubt()

    def _request(self, peer: NodeId, message: pb.PeerMessage) -> None:
        self.asked.append(message.entries_request)
        self.on_asking()
        self._send(peer, message)

    def _send(self, _: NodeId, message: pb.PeerMessage) -> None:
        assert self.other is not None
        loop = asyncio.get_running_loop()
        loop.call_soon(self.other.repairs.on_message, PEER, message)

    def error_at(self, physical_offset: int) -> CorruptionFound:
        base = physical_offset - physical_offset % SEGMENT
        path = str(LOG / file_name(base))
        return CorruptionFound(path, physical_offset - base, "what was written", "something else")

    def scrub(self) -> list[CorruptionFound]:
        """What a pass over the log finds; all of it is taken."""
        found: list[CorruptionFound] = []
        scrub = self.log.scrub
        scrub.begin(self.log.last_index)
        while not scrub.is_over:
            try:
                scrub.finish(scrub.step()())
            except CorruptionFound as error:
                found.append(error)
                self._pass_over(error)
            assert len(found) < 100, "no pass finds the same place twice"
        return found

    def _pass_over(self, error: CorruptionFound) -> None:
        assert self.repairs.takes(error), error
        place = self.repairs.covering(error)
        if place is None:
            self.log.scrub.look_again()
        else:
            self.log.scrub.pass_over(place.end)

    def flip(self, physical_offset: int) -> None:
        within = physical_offset % SEGMENT
        self.disk.flip(LOG / file_name(physical_offset - within), within, within % 8)

    def spoil(self, physical_offset: int, data: bytes) -> None:
        within = physical_offset % SEGMENT
        self.disk.spoil(LOG / file_name(physical_offset - within), within, data)

    def let_go_before(self, index: int) -> None:
        """The log begins as late as leaves `index` in it."""
        start = self.log.start_before(index)
        assert start is not None
        self.let_go(start)

    def let_go(self, start: LogStart) -> None:
        """The log begins there, as was found out before."""
        for segment in self.log.drop_before(start):
            self.disk.close(segment.handle)
            self.disk.unlink(segment.path)

    def lose_write(self, index: int, giver: CommitLog) -> None:
        """What was there before the entry is there again: one of the same index, place and size,
        right by itself, of another term and another chain."""
        frame = giver.read(index, index)
        header = parse_header(frame, 0)
        head, _ = build_frame(
            header.kind,
            index,
            header.term + 1_000,
            header.physical_offset,
            header.append_time_ms,
            header.record_count,
            frame[HEADER_SIZE:],
            77,
        )
        self.spoil(header.physical_offset, head)


def pair() -> tuple[Member, Member]:
    """One whose log may rot, and one who gives it back."""
    me, peer = Member(healthy().clone()), Member(healthy().clone())
    me.other, peer.other = peer, me
    return me, peer


async def healed(me: Member) -> None:
    """All that is found is put right, until a pass finds nothing."""
    before = contents(healthy())
    me.repairs.start()
    for _ in range(40):
        if not me.scrub() and not me.repairs.is_at_work:
            break
        while me.repairs.is_at_work and not me.failures:
            await asyncio.sleep(0)
        assert not me.failures, me.failures
    told = me.repairs.statistics()
    assert contents(me.disk) == before
    assert (told.damages, told.found) == (0, told.repaired)
    assert not me.is_in_doubt
    await me.repairs.stop()


def edges(giver: CommitLog) -> list[int]:
    """Entries that begin a place, in old segments and in new ones."""
    found = []
    at = 0
    while at < giver.end_offset:
        base = at - at % SEGMENT
        place = giver.damages.place_of(str(LOG / file_name(base)), at % SEGMENT)
        try:
            found.append(giver.index_at(base + place.start))
        except OutOfRange:  # a filler
            at = base + SEGMENT
            continue
        at = base + place.end
    return found


# --- one by one --------------------------------------------------------------------------------


def last_edge_before(giver: CommitLog, base: int) -> int:
    """The entry that begins the last place of the segment before `base`."""
    return max(index for index in edges(giver) if giver.position_of(index) < base)


@on_a_loop
async def test_rot_behind_the_entry_that_an_answer_is_judged_by() -> None:
    """The end of a segment, and a header in the next one's first place: the entry between them is
    sound, is where it is known to be, and needn't be walked to."""
    me, peer = pair()
    end = last_edge_before(peer.log, SEGMENT)
    me.flip(peer.log.position_of(end) + 1)
    first = next(index for index in edges(peer.log) if peer.log.position_of(index) == SEGMENT)
    me.flip(peer.log.position_of(first + 10) + 1)
    found = [me.error_at(peer.log.position_of(index)) for index in (first + 10, end)]
    for error in found:
        assert me.repairs.takes(error)
        assert me.repairs.covering(error) is not None
    assert me.repairs.statistics().damages == 2
    await healed(me)
    assert me.repairs.statistics().answers_refused == 0
    asked = [(each.first_index, each.last_index) for each in me.asked]
    assert (end, first - 1) in asked
    assert first + 10 in {each for each, _ in asked}


@on_a_loop
async def test_a_place_is_sound_when_nothing_more_is_said_of_it() -> None:
    """What is rotten before it has to be put right first, and isn't all."""
    me, peer = pair()
    edge = last_edge_before(peer.log, SEGMENT)
    for index in (edge - 1, edge + 3):
        me.flip(peer.log.position_of(index) + 60)
    assert me.repairs.takes(me.error_at(peer.log.position_of(edge + 3)))
    me.repairs.start()
    await me.repairs.idled()
    assert contents(me.disk) == contents(healthy())
    assert not me.is_in_doubt
    assert [each.first_index for each in me.asked] == [edge - 1, edge + 3]
    assert me.repairs.statistics().repaired == 1
    await me.repairs.stop()


@on_a_loop
async def test_what_is_found_by_whom_the_end_of_doubt_is_told_is_repaired_too() -> None:
    """Nobody else would begin with it: to all others a repair is under way."""
    me, peer = pair()
    other = peer.log.position_of(900) + 60
    me.flip(peer.log.position_of(ENTRIES - 20) + 60)

    def on_end_of_doubt() -> None:
        if me.repairs.statistics().found == 1:
            me.flip(other)
            assert me.repairs.takes(me.error_at(other))

    me.on_end_of_doubt = on_end_of_doubt
    await healed(me)
    assert me.repairs.statistics().repaired == 2


@pytest.mark.parametrize("at", ["before", "behind"])
@on_a_loop
async def test_a_write_that_was_lost_is_no_sound_neighbour(at: str) -> None:
    """What was there before, intact by itself, beside what has rotted: nothing is judged by it."""
    me, peer = pair()
    index = ENTRIES - 20  # a new one: each entry is a place
    neighbour = index + (1 if at == "behind" else -1)
    me.lose_write(neighbour, peer.log)
    me.flip(peer.log.position_of(index) + 60)
    damage = me.log.damages.locate(*where(me, peer.log.position_of(index)))
    assert damage is not None
    first, last = sorted((index, neighbour))
    assert (damage.first_index, damage.last_index) == (first, last)
    await healed(me)
    assert me.repairs.statistics().answers_refused == 0


def where(me: Member, physical_offset: int) -> tuple[str, int]:
    error = me.error_at(physical_offset)
    return error.file, error.offset


@on_a_loop
async def test_a_neighbour_that_rots_while_bytes_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes is refused, as nothing proves it; then both are asked for together."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    index = ENTRIES - 20
    me.flip(peer.log.position_of(index) + 60)

    def on_asking() -> None:
        if len(me.asked) == 1:
            me.flip(peer.log.position_of(index + 1) + 60)

    me.on_asking = on_asking
    await healed(me)
    assert me.repairs.statistics().answers_refused == 1
    assert [(each.first_index, each.last_index) for each in me.asked] == [
        (index, index),
        (index, index + 1),
    ]


@on_a_loop
async def test_noes_to_different_questions_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbour rots further with each answer: what was refused was judged by what is gone."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    index, rounds = ENTRIES - 20, NEGATIVE_ROUNDS + 2
    me.flip(peer.log.position_of(index) + 60)

    def on_asking() -> None:
        if len(me.asked) <= rounds:
            me.flip(peer.log.position_of(index + len(me.asked)) + 60)

    me.on_asking = on_asking
    await healed(me)
    assert me.repairs.statistics().answers_refused == rounds


@on_a_loop
async def test_what_turns_out_not_to_be_committed_ends_the_member() -> None:
    """Behind a damage that is: it's put right, and what is in doubt behind it isn't touched."""
    me, peer = pair()
    edge = last_edge_before(peer.log, SEGMENT)
    before = next(index for index in reversed(edges(peer.log)) if index < edge)
    me.flip(peer.log.position_of(edge - 1) + 60)
    me.flip(peer.log.position_of(edge + 3) + 60)
    me.through = edge + 2
    assert me.repairs.takes(me.error_at(peer.log.position_of(edge - 1)))
    assert me.repairs.takes(me.error_at(peer.log.position_of(edge + 3)))
    assert before < edge - 1
    me.repairs.start()
    while not me.failures:
        await asyncio.sleep(0)
    assert isinstance(me.failures[0], BeyondRepair)
    assert "committed" in str(me.failures[0])
    assert me.log.read(edge - 1, edge - 1) == peer.log.read(edge - 1, edge - 1)
    assert me.is_in_doubt
    await me.repairs.stop()


def test_a_sound_neighbour_is_not_looked_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last entry of each place before has rotted: no more is read than a damage may be."""
    me, peer = pair()
    old = [index for index in edges(peer.log) if peer.log.position_of(index) < 2 * SEGMENT]
    for index in old[1:]:
        me.flip(peer.log.position_of(index - 1) + 60)
    at = where(me, peer.log.position_of(old[-1]))
    assert me.log.damages.locate(*at) is not None
    monkeypatch.setattr(damage_module, "MAX_DAMAGE_BYTES", SEGMENT)
    with pytest.raises(BeyondRepair, match="in a row"):
        me.log.damages.locate(*at)


# --- arrangements ------------------------------------------------------------------------------


def hit(me: Member, giver: CommitLog, index: int, chance: Random) -> None:
    """Something befalls the entry."""
    index = min(max(index, 1), giver.last_index)
    at = giver.position_of(index)
    size = len(giver.read(index, index))
    match chance.choice(("size", "header", "body", "lost", "zeros", "filler")):
        case "size":
            me.flip(at + chance.randrange(2, 4))
        case "header":
            me.flip(at + chance.randrange(HEADER_SIZE))
        case "body":
            me.flip(at + chance.randrange(size))
        case "lost":
            for each in range(index, min(index + chance.choice((1, 2, 5)), giver.last_index + 1)):
                me.lose_write(each, giver)
        case "zeros":
            room = min(SEGMENT - at % SEGMENT, giver.end_offset - at)
            me.spoil(at, bytes(min(chance.choice((8, 4_096, 40_000)), room)))
        case _:
            base = at - at % SEGMENT
            if base + SEGMENT < giver.end_offset:
                me.spoil(base + SEGMENT - chance.choice((1, 9)), b"\x20")


def arrange(me: Member, giver: CommitLog, chance: Random) -> list[int]:
    """Some edges, and several hits near each; the entries that were meant."""
    known = edges(giver)
    meant = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        edge = chance.randrange(len(known))
        for _ in range(chance.randrange(2, 6)):
            near = known[min(edge + chance.randrange(3), len(known) - 1)]
            meant.append(near + chance.choice((-2, -1, 0, 0, 1, 2, 20)))
            hit(me, giver, meant[-1], chance)
    return meant


@pytest.mark.parametrize("first", FIRSTS)
@on_a_loop
async def test_whatever_rots_together_is_got_back(first: int) -> None:
    """Nobody honest is refused, nothing is asked for ever, all bytes are what they were."""
    for seed in range(first, first + 10):
        chance = Random(seed)
        me, peer = pair()
        arrange(me, peer.log, chance)
        await healed(me)
        assert me.repairs.statistics().answers_refused == 0, seed


@pytest.mark.parametrize("first", FIRSTS)
@on_a_loop
async def test_what_rots_while_a_repair_is_under_way_is_got_back(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near what is being repaired, where answers are judged by it: an answer may be refused then,
    and the member doesn't end over it."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    for seed in range(first, first + 10):
        chance = Random(1_000 + seed)
        me, peer = pair()
        hits = [chance.randrange(1, 6) for _ in range(3)]

        def on_asking(
            me: Member = me, log: CommitLog = peer.log, hits: list[int] = hits, by: Random = chance
        ) -> None:
            asked = me.asked[-1]
            if len(me.asked) in hits:
                near = by.choice((asked.first_index, asked.last_index))
                hit(me, log, near + by.choice((-1, 0, 1, 2)), by)

        me.on_asking = on_asking
        arrange(me, peer.log, chance)
        await healed(me)


@on_a_loop
async def test_readers_find_the_same_places_in_any_order_and_any_number() -> None:
    """A place is known once, however often it's found, and before anything is repaired."""
    for seed in range(10):
        chance = Random(2_000 + seed)
        me, peer = pair()
        meant = arrange(me, peer.log, chance)
        places = len(edges(peer.log)) + peer.log.end_offset // SEGMENT  # a filler a segment
        counts = []
        for _ in range(5):
            chance.shuffle(meant)
            for index in meant:
                at = peer.log.position_of(min(max(index, 1), peer.log.last_index))
                assert me.repairs.takes(me.error_at(at))
            me.scrub()
            counts.append(me.repairs.statistics().damages)
        assert counts[-1] == counts[-2] <= places, seed
        assert me.repairs.statistics().found == counts[-1]
        await healed(me)


# --- two that have rotted in the same place -----------------------------------------------------


def neighbours_in_a_place(giver: CommitLog) -> range:
    """The entries of one place of an old segment."""
    first = edges(giver)[2]
    base = giver.position_of(first) - giver.position_of(first) % SEGMENT
    place = giver.damages.place_of(str(LOG / file_name(base)), giver.position_of(first) - base)
    return range(first, giver.index_at(base + place.end - 1) + 1)


@pytest.mark.parametrize("seed", SEEDS)
@on_a_loop
async def test_two_that_have_lost_different_entries_of_a_place_heal_each_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has what the other lacks, within the same 64 KiB: nobody else is needed."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    chance = Random(seed)
    entries = neighbours_in_a_place(peer.log)
    assert len(entries) > 20
    lost = chance.sample(entries, 6)
    for member, indexes in ((me, lost[:3]), (peer, lost[3:])):
        for index in indexes:
            header = peer.log.header_at(index)
            # Behind the header: by its size the entries behind are found.
            within = chance.randrange(HEADER_SIZE, header.total_size)
            member.flip(header.physical_offset + within)
    assert me.scrub()
    assert peer.scrub()
    await asyncio.gather(healed(me), healed(peer))


@on_a_loop
async def test_what_both_have_lost_is_given_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own bytes are no way around what is proven."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    index = neighbours_in_a_place(peer.log)[7]
    at = peer.log.position_of(index) + 60
    for member in (me, peer):
        member.flip(at)
    before = contents(me.disk)
    assert me.scrub()
    me.repairs.start()
    while not me.failures:
        await asyncio.sleep(0)
    assert isinstance(me.failures[0], BeyondRepair)
    assert contents(me.disk) == before


# --- what isn't committed yet lies behind --------------------------------------------------------


def rotten_before_the_end(me: Member, chance: Random) -> int:
    """A committed entry that has rotted; of its place, not all that lies behind is committed."""
    entries = neighbours_in_a_place(me.log)
    me.through = chance.randrange(entries[0], entries[-1])
    lost = sorted({chance.randint(entries[0], me.through) for _ in range(2)})
    for index in lost:
        header = me.log.header_at(index)
        me.flip(header.physical_offset + chance.randrange(header.total_size))
    return lost[0]


@pytest.mark.parametrize("seed", SEEDS)
@on_a_loop
async def test_what_lies_behind_rot_is_waited_for_in_doubt(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of what has rotted aren't known, so the damage reaches up to what was appended last.
    That is committed in a moment, or bit by bit (found by seed 460525, where the member ended)."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, _ = pair()
    chance = Random(seed)
    index = rotten_before_the_end(me, chance)
    assert me.repairs.takes(me.error_at(me.log.position_of(index)))
    assert me.is_in_doubt
    me.repairs.start()
    end = neighbours_in_a_place(me.log)[-1]
    while me.through < end:
        await asyncio.sleep(0.002)
        assert (me.asked, me.failures, me.is_in_doubt) == ([], [], True)
        me.through = chance.randint(me.through + 1, end)
    await healed(me)


@on_a_loop
async def test_what_is_never_committed_is_waited_for_no_longer_than_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repairs_module, "COMMIT_S", 0.05)
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, _ = pair()
    index = rotten_before_the_end(me, Random(1))
    assert me.repairs.takes(me.error_at(me.log.position_of(index)))
    me.repairs.start()
    while not me.failures:
        await asyncio.sleep(0.001)
    assert isinstance(me.failures[0], CorruptionFound)
    assert (not me.asked, me.is_in_doubt) == (True, True)


@on_a_loop
async def test_what_may_be_cut_itself_is_not_taken() -> None:
    me, _ = pair()
    me.flip(me.log.position_of(me.log.last_index) + 60)
    me.through = me.log.last_index - 1
    assert not me.repairs.takes(me.error_at(me.log.position_of(me.log.last_index)))
    assert not me.is_in_doubt


# --- a peer that ends within the place -----------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@on_a_loop
async def test_who_ends_behind_the_rot_gives_it_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lags, and may not know that what it has is committed; it has all that has rotted, if not
    all of the 64 KiB. With the third member gone nobody else could, nor lead while this one is in
    doubt."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    chance = Random(seed)
    entries = neighbours_in_a_place(peer.log)
    lost = sorted(chance.sample(entries[:-1], chance.choice((1, 2, 3))))
    for index in lost:
        header = peer.log.header_at(index)
        me.flip(header.physical_offset + chance.randrange(HEADER_SIZE, header.total_size))
    peer.ends_at = chance.randrange(lost[-1], entries[-1])
    peer.through = chance.choice((peer.ends_at, chance.randrange(peer.ends_at)))
    assert me.scrub()
    await healed(me)
    assert me.repairs.statistics().answers_refused == 0
    given = peer.repairs.statistics().answers_given
    # What lies here already is asked of nobody: once for what comes, once for where that ends.
    assert given <= len(lost)
    assert len(me.asked) <= 2 * given + 2


@on_a_loop
async def test_who_ends_before_the_rot_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has got there: it may, and its no doesn't count."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.001)
    me, peer = pair()
    entries = neighbours_in_a_place(peer.log)
    me.flip(peer.log.position_of(entries[20]) + 60)
    peer.ends_at = peer.through = entries[19]
    asked = 0

    def on_asking() -> None:
        nonlocal asked
        asked += 1
        if asked == 4 * NEGATIVE_ROUNDS:
            peer.ends_at = entries[20]

    me.on_asking = on_asking
    assert me.scrub()
    await healed(me)
    assert asked >= 4 * NEGATIVE_ROUNDS
    assert me.repairs.statistics().answers_refused == 0


@pytest.mark.parametrize("case", ["given", "not yet", "both files"])
@on_a_loop
async def test_what_goes_while_it_is_asked_for_is_not_missed(case: str) -> None:
    """The log begins behind it by the time the answer is there: nothing is left that it could be
    judged by, or one's own be read from, and nobody needs it. So does rot over the end of a file
    and the begin of the next, where the log's front passes both at once."""
    me, peer = pair()
    index, spoilt = neighbours_in_a_place(peer.log)[20], 1
    files = 1
    if case == "both files":
        index = next(each for each in edges(peer.log) if peer.log.position_of(each) >= SEGMENT) - 1
        spoilt, files = 2, 2
    for each in range(index, index + spoilt):
        me.flip(peer.log.position_of(each) + 60)
    beyond = files * SEGMENT
    later = next(each for each in edges(peer.log) if peer.log.position_of(each) >= beyond)
    if case == "not yet":
        peer.ends_at = peer.through = index - 1

    def on_asking() -> None:
        if len(me.asked) == 1:
            me.let_go_before(later)

    me.on_asking = on_asking
    assert me.scrub()
    me.repairs.start()
    while me.repairs.is_at_work and not me.failures:
        await asyncio.sleep(0)
    assert not me.failures
    assert not me.is_in_doubt
    assert me.log.first_index == later
    await me.repairs.stop()


@pytest.mark.parametrize(
    "case", ["while it waits", "behind another one", "as it is noted", "known"]
)
@on_a_loop
async def test_what_is_left_of_rot_when_its_first_file_goes_is_put_right(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever that is: between two rounds of asking, while the place waits for its turn, before a
    start reads the note, or where only what is left was known. Until then it is in doubt."""
    monkeypatch.setattr(repairs_module, "AGAIN_S", 0.05)
    me, peer = pair()
    first = next(each for each in edges(peer.log) if peer.log.position_of(each) >= SEGMENT)
    start = me.log.start_before(first)
    assert start is not None
    for each in (first - 1, first):
        me.flip(peer.log.position_of(each) + 60)
    loop, before = asyncio.get_running_loop(), contents(peer.disk)
    me.on_asking = lambda: me.let_go(start) if len(me.asked) == 1 else None
    match case:
        case "while it waits":
            peer.ends_at = peer.through = first - 2

            def on_asking() -> None:
                if len(me.asked) == 1:
                    loop.call_later(0.02, went)

            me.on_asking = on_asking
        case "behind another one":
            me.flip(peer.log.position_of(edges(peer.log)[0]) + 60)

    def went() -> None:
        me.let_go(start)
        peer.ends_at = peer.through = me.ends_at

    found = [first if case == "known" else first - 1]
    if case == "behind another one":
        found.append(edges(peer.log)[0])
    for each in found:
        assert me.repairs.takes(me.error_at(peer.log.position_of(each) + 60))
    if case == "as it is noted":
        await asyncio.sleep(0.01)
        me.let_go(start)
        assert noted(me)
        me.is_in_doubt = False
        me.begin()
        me.repairs.recall()
        assert me.is_in_doubt
    me.repairs.start()
    async with asyncio.timeout(20):
        while me.repairs.is_at_work and not me.failures:
            await asyncio.sleep(0)
    assert not me.failures
    assert me.log.first_index == first
    assert not me.is_in_doubt
    assert not me.scrub(), "and nothing has rotted that it acknowledges"
    assert contents(me.disk).items() <= before.items()
    await me.repairs.stop()


# --- the note of it -------------------------------------------------------------------------------


def noted(member: Member) -> list[tuple[str, int]]:
    return DoubtNote(member.disk, DATA).read()


def found_without_space(member: Member) -> None:
    """Rot that nobody puts right, and a disk that has no space for the note of it at first."""
    at = member.log.position_of(20) + 60
    member.flip(at)
    member.disk.fail_next("create", errno.ENOSPC, "doubt")
    assert member.repairs.takes(member.error_at(at))


@on_a_loop
async def test_what_found_no_space_is_noted_when_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next process would vote on what this one knows to be rotten."""
    monkeypatch.setattr(repairs_module, "SPACE_S", 0.01)
    me, _ = pair()
    found_without_space(me)
    await asyncio.sleep(0)
    assert noted(me) == []
    async with asyncio.timeout(60):
        while not noted(me):
            await asyncio.sleep(0.01)
    assert noted(me) == me.repairs._named()
    await me.repairs.stop()
    assert me.failures == []


@on_a_loop
async def test_stop_tries_the_note_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And waits for no space."""
    monkeypatch.setattr(repairs_module, "SPACE_S", 3600.0)
    me, _ = pair()
    found_without_space(me)
    async with asyncio.timeout(60):
        while not me.disk.failures:
            await asyncio.sleep(0)
        await me.repairs.stop()
    assert noted(me) == me.repairs._named() != []
    assert me.failures == []


@on_a_loop
async def test_stop_of_who_never_gets_space_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs_module, "SPACE_S", 3600.0)
    me, _ = pair()
    found_without_space(me)
    me.disk.fail_next("create", errno.ENOSPC, "doubt")
    async with asyncio.timeout(60):
        while not me.disk.failures:
            await asyncio.sleep(0)
        await me.repairs.stop()
    assert noted(me) == []
    assert me.failures == []


@on_a_loop
async def test_note_that_the_disk_fails_ends_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there was no space before."""
    monkeypatch.setattr(repairs_module, "SPACE_S", 0.01)
    me, _ = pair()
    found_without_space(me)
    me.disk.fail_next("create", errno.EIO, "doubt")
    async with asyncio.timeout(60):
        while not me.failures:
            await asyncio.sleep(0.01)
    await me.repairs.stop()
    assert [type(error) for error in me.failures] == [OSError]


def filler_of_the_first(log: CommitLog) -> tuple[int, int]:
    """Where the filler begins behind the first segment's last entry, and which entry comes next."""
    last = log.ends_by(SEGMENT)
    return log.position_of(last) + log.header_at(last).total_size, last + 1


@pytest.mark.parametrize("is_known", [True, False], ids=["committed", "not known to be"])
@on_a_loop
async def test_filler_that_was_noted_and_is_sound_is_in_nobodys_way(is_known: bool) -> None:
    """It was put right, and the process ended before the note was gone; how far the log is
    committed a start knows by its checkpoint only."""
    me, _ = pair()
    at, behind = filler_of_the_first(me.log)
    DoubtNote(me.disk, DATA).write([(file_name(0), at)])
    me.through = behind if is_known else behind - 1
    me.repairs.recall()
    assert not me.repairs.is_at_work
    await me.repairs.stop()
    assert noted(me) == []
    assert me.failures == []


@pytest.mark.parametrize("within", [0, 5, 7])
@on_a_loop
async def test_rotten_filler_before_what_is_not_committed_is_put_right_later(within: int) -> None:
    """It is no entry: nobody acknowledges it, and a pass that finds it comes by again."""
    me, _ = pair()
    at, behind = filler_of_the_first(me.log)
    DoubtNote(me.disk, DATA).write([(file_name(0), at)])
    me.flip(at + within)
    me.through = behind - 1
    me.repairs.recall()
    assert not me.repairs.is_at_work
    assert me.repairs.takes(me.error_at(at + within))
    assert not me.repairs.is_at_work
    me.through = me.log.last_index
    await healed(me)
    assert contents(me.disk) == contents(healthy())
    assert me.failures == []
