"""Per-message delivery as replicated state (ADR 57): who has what in hand, and what is finished."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.state.consuming import wish_of
from broker.state.deliveries import OWN_SECTIONS, Deliveries
from broker.state.delivering import MAX_HIDDEN_MS, Delivering, Moment, Plan, buried, planned
from broker.state.groups import Groups
from broker.state.handouts import MAX_ATTEMPT, PAGE_ROWS, SPAN, Draft, Handout, Record
from broker.state.offsets import Offsets
from broker.state.refusals import (
    GroupDiffers,
    GroupStyled,
    HandoutSuperseded,
    Malformed,
    OffsetOutOfRange,
    QueueNotFound,
    Refusal,
    StartMissing,
    StillHidden,
    TooManyHandedOut,
)
from broker.state.snapshot import Section
from broker.state.topics import Topics
from dledger.level import DELIVERY_LEVEL, KNOWN_LEVEL, TOPIC_RULES_LEVEL
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    SETTLING_RETURNED,
    BuryCommand,
    DeliverCommand,
    GivenMessages,
    JoinGroupCommand,
    SettledMessages,
    Settling,
)
from tests.broker.consuming import wanted
from tests.scale import examples

QUEUES = 2
END = 300  # of each queue
A, B = b"attempt1", b"attempt2"
HIDDEN_MS = 1_000


@dataclass
class Owners:
    """The owners that commands of deliveries are about, and one command after another."""

    deliveries: Deliveries = field(default_factory=Deliveries)
    groups: Groups = field(default_factory=Groups)
    offsets: Offsets = field(default_factory=Offsets)
    topics: Topics = field(default_factory=Topics)
    index: int = 1
    now_ms: int = 5_000

    def __post_init__(self) -> None:
        self.topics.create("t", QUEUES, incarnation=1, created_time_ms=0)
        for queue_id in range(QUEUES):
            self.topics.advance(self.topics["t"], queue_id, END)
        self.delivering = Delivering(self.deliveries, self.offsets, self.groups)

    def do(self, command: DeliverCommand) -> Refusal | None:
        """Applies a command, as the machine does; the refusal."""
        self.index += 1
        at = Moment(self.index, self.now_ms, 0, KNOWN_LEVEL)
        plan = planned(self, self.topics["t"], command, at)
        if not isinstance(plan, Plan):
            return plan
        self.delivering.deliver(plan, self.topics["t"], command.group, at)
        return None

    def begin(self, *starts: int, group: str = "g", fifo: bool = False) -> Refusal | None:
        """The group starts there."""
        return self.do(
            DeliverCommand(group=group, topic="t", incarnation=1, fifo=fifo, starts=starts)
        )

    def give(self, *given: GivenMessages, fifo: bool = False) -> Refusal | int:
        """Hands out; the entry, or the refusal."""
        refusal = self.do(
            DeliverCommand(group="g", topic="t", incarnation=1, fifo=fifo, given=given)
        )
        return refusal or self.index

    def given(self, *given: GivenMessages, fifo: bool = False) -> int:
        """Hands out, which is not refused; the entry."""
        found = self.give(*given, fifo=fifo)
        assert isinstance(found, int), found
        return found

    def settle(self, *settled: SettledMessages, fifo: bool = False) -> Refusal | None:
        return self.do(
            DeliverCommand(group="g", topic="t", incarnation=1, fifo=fifo, settled=settled)
        )

    def bury(self, command: BuryCommand, copies: int | None = None) -> Refusal | None:
        """Makes dead letters, of which so many copies go with it: one each unless told."""
        self.index += 1
        at = Moment(self.index, self.now_ms, 0, KNOWN_LEVEL)
        made = command.mask.bit_count() if copies is None else copies
        plan = buried(self, self.topics["t"], command, made, at)
        if not isinstance(plan, Plan):
            return plan
        self.delivering.deliver(plan, self.topics["t"], command.group, at)
        return None

    def record(self, queue_id: int = 0) -> Record:
        return self.deliveries.in_topic("g", 1)[queue_id]

    def offset(self, queue_id: int = 0) -> int | None:
        return self.offsets.of("g", "t").get(queue_id)

    def check(self) -> None:
        """Every invariant, and a snapshot gives the same state and the same bytes again."""
        self.deliveries.check_invariants(self.index)
        self.delivering.check_invariants({1: self.topics["t"]})
        kept = {each.name: (each.version, list(each.payloads)) for each in self.sections()}
        restored = Deliveries(
            self.deliveries.max_unfinished,
            self.deliveries.max_all_unfinished,
            self.deliveries.max_handouts,
        )
        for name in OWN_SECTIONS:
            if name in kept:
                restored.restore(name, *kept[name])
        assert restored == self.deliveries
        again = {each.name: (each.version, list(each.payloads)) for each in restored.snapshot()}
        assert again == kept

    def sections(self) -> tuple[Section, ...]:
        return self.deliveries.snapshot()


def new(base: int, mask: int = 1, *, queue_id: int = 0, attempt: bytes = A) -> GivenMessages:
    """Messages that were never handed out."""
    return GivenMessages(
        queue_id=queue_id, base=base, mask=mask, attempt_id=attempt, hidden_ms=HIDDEN_MS
    )


def again(former: int, base: int, mask: int = 1, *, attempt: bytes = B) -> GivenMessages:
    """Messages that entry `former` handed out."""
    return GivenMessages(
        former=former, base=base, mask=mask, attempt_id=attempt, hidden_ms=HIDDEN_MS
    )


def done(handout: int, base: int, mask: int = 1, *, queue_id: int = 0) -> SettledMessages:
    return SettledMessages(queue_id=queue_id, handout=handout, base=base, mask=mask)


def back(handout: int, base: int, mask: int = 1, hidden_ms: int = 0) -> SettledMessages:
    return SettledMessages(
        handout=handout, base=base, mask=mask, what=SETTLING_RETURNED, hidden_ms=hidden_ms
    )


def longer(handout: int, base: int, mask: int = 1, hidden_ms: int = 9_000) -> SettledMessages:
    return SettledMessages(
        handout=handout, base=base, mask=mask, what=SETTLING_EXTENDED, hidden_ms=hidden_ms
    )


def dead(handout: int, base: int, mask: int = 1, *, attempts: int = 1) -> BuryCommand:
    place = BuryCommand(group="g", topic="t", incarnation=1, attempts=attempts)
    place.handout, place.base, place.mask = handout, base, mask
    return place


@pytest.fixture
def owners() -> Iterator[Owners]:
    """With a topic in which the group starts at 0 and 3; everything holds at the end."""
    found = Owners()
    assert found.begin(0, 3) is None
    yield found
    found.check()


# --- the way of a message ---------------------------------------------------------------------


def test_a_message_is_handed_out_and_finished(owners: Owners) -> None:
    """The frontier is what the group has committed, for whoever asks."""
    entry = owners.given(new(0, 0b111))
    assert list(owners.record()) == [
        Handout(entry, 0, 0b111, owners.now_ms + HIDDEN_MS, A, 1),
    ]
    assert (owners.offset(), owners.offset(1)) == (0, 3)
    assert owners.settle(done(entry, 1)) is None
    assert owners.offset() == 0  # the first one isn't
    assert owners.settle(done(entry, 0)) is None
    assert (owners.offset(), owners.record().unfinished) == (2, 1)
    assert owners.settle(done(entry, 2)) is None
    assert (owners.offset(), owners.record()) == (3, Record(3))


def test_what_is_due_goes_to_somebody_else_and_counts(owners: Owners) -> None:
    """Not before its time; then the first hand's receipt is worth nothing."""
    first = owners.given(new(0, 0b11))
    assert owners.give(again(first, 0, 0b11)) == StillHidden(0, 0)
    owners.now_ms += HIDDEN_MS
    second = owners.given(again(first, 0, 0b11))
    (handout,) = owners.record()
    assert (handout.index, handout.attempt, handout.attempt_id) == (second, 2, B)
    for settled in (done(first, 0), back(first, 0), longer(first, 0)):
        assert owners.settle(settled) == HandoutSuperseded(0, 0)
    assert owners.settle(done(second, 0, 0b11)) is None


def test_a_late_acknowledgement_counts_until_somebody_else_has_it(owners: Owners) -> None:
    """Work that was done isn't thrown away because a clock has gone on."""
    entry = owners.given(new(0))
    owners.now_ms += 100 * HIDDEN_MS
    assert owners.settle(done(entry, 0)) is None
    assert owners.offset() == 1


def test_what_is_returned_comes_after_its_time(owners: Owners) -> None:
    """And by no receipt of before; its attempts go on counting."""
    entry = owners.given(new(0, 0b11))
    assert owners.settle(back(entry, 1, hidden_ms=70)) is None
    returned = owners.index
    assert owners.settle(done(entry, 1)) == HandoutSuperseded(0, 1)
    assert owners.give(again(returned, 1)) == StillHidden(0, 1)
    owners.now_ms += 70
    last = owners.given(again(returned, 1))
    assert [each.attempt for each in owners.record() if each.index == last] == [2]


def test_extending_keeps_the_receipt(owners: Owners) -> None:
    """Of one message among several too: the others are due when they were."""
    entry = owners.given(new(0, 0b111))
    assert owners.settle(longer(entry, 1)) is None
    owners.now_ms += HIDDEN_MS
    assert owners.give(again(entry, 0, 0b111)) == StillHidden(0, 1)
    owners.given(again(entry, 0, 0b101))
    assert owners.settle(done(entry, 1)) is None


def test_what_nobody_can_read_is_passed_over(owners: Owners) -> None:
    """Void offsets, and those whose messages have gone: by a handout behind them, or by none."""
    entry = owners.given(new(2, 0b101))
    assert owners.record().next == 5
    assert owners.settle(done(entry, 2)) is None
    assert owners.offset() == 4  # 3 is in no handout
    owners.given(new(9, 0))
    assert owners.record().next == 9
    assert owners.settle(done(entry, 4)) is None
    assert owners.offset() == 9


def test_attempts_are_counted_no_further_than_they_fit(owners: Owners) -> None:
    """Poison may be handed out for years."""
    entry = owners.given(new(0))
    draft = Draft(owners.record())
    (handout,) = draft.take(entry, 0, 1) or []
    draft.put(handout._replace(attempt=MAX_ATTEMPT))
    owners.deliveries.put("g", 1, {0: draft.done()}, is_fifo=False)
    owners.now_ms += HIDDEN_MS
    owners.given(again(entry, 0))
    assert [each.attempt for each in owners.record()] == [MAX_ATTEMPT]


# --- refused ----------------------------------------------------------------------------------


def test_what_had_its_attempts_is_finished_with_a_copy_each(owners: Owners) -> None:
    """Not sooner, not while somebody has it, and not in another hand than the present one."""
    entry = owners.given(new(0, 0b11))
    assert owners.bury(dead(entry, 0)) == StillHidden(0, 0)
    owners.now_ms += HIDDEN_MS
    assert isinstance(owners.bury(dead(entry, 0, attempts=2)), Malformed)
    assert isinstance(owners.bury(dead(entry, 0, attempts=0)), Malformed)
    for copies in (0, 2):
        assert isinstance(owners.bury(dead(entry, 0), copies), Malformed)
    second = owners.given(again(entry, 0, 0b11))
    owners.now_ms += HIDDEN_MS
    assert owners.bury(dead(entry, 0)) == HandoutSuperseded(0, 0)
    assert owners.bury(dead(second, 0, 0b11, attempts=2)) is None
    assert owners.bury(dead(second, 0, attempts=2)) == HandoutSuperseded(0, 0)
    assert owners.offset() == 2
    assert owners.bury(BuryCommand(group="other", topic="t", incarnation=1)) == StartMissing(0)


def test_a_command_takes_effect_whole_or_not_at_all(owners: Owners) -> None:
    """One that is stale holds back what is asked beside it: the leader looks again."""
    entry = owners.given(new(0, 0b11))
    before = owners.record()
    assert owners.settle(done(entry, 0), done(entry, 5)) == HandoutSuperseded(0, 5)
    assert owners.record() == before


def test_receipts_that_were_never_given_are_refused(owners: Owners) -> None:
    """Whoever makes one up names a handout that isn't there, or an offset that it hasn't got."""
    entry = owners.given(new(0, 0b11))
    for forged in (done(entry + 1, 0), done(entry - 1, 0), done(entry, 0, 0b111), done(entry, 2)):
        assert isinstance(owners.settle(forged), HandoutSuperseded)
    assert isinstance(owners.settle(done(entry, (1 << 63) - 1)), Malformed)
    assert isinstance(owners.settle(done(entry, 1 << 40)), HandoutSuperseded)
    assert isinstance(owners.settle(done(entry, 0, 0)), Malformed)
    assert owners.settle(done(entry, 0, queue_id=1)) == HandoutSuperseded(1, 0)
    assert owners.settle(done(entry, 0, queue_id=7)) == QueueNotFound("t", 7, QUEUES)
    unknown = SettledMessages(handout=entry, base=0, mask=1, what=7)  # type: ignore[arg-type]
    assert isinstance(owners.settle(unknown), Malformed)
    for wish in (new(0, attempt=b"short"), new(0, attempt=bytes(8))):
        assert isinstance(owners.give(wish), Malformed)
    too_long = new(2)
    too_long.hidden_ms = MAX_HIDDEN_MS + 1
    assert isinstance(owners.give(too_long), Malformed)


def test_nothing_is_given_twice_nor_beyond_the_end(owners: Owners) -> None:
    """Within one command, too."""
    entry = owners.given(new(0, 0b11))
    assert owners.give(new(1)) == HandoutSuperseded(0, 1)
    assert owners.give(new(5), new(5, attempt=B)) == HandoutSuperseded(0, 5)
    assert owners.give(new(END - 1, 0b11)) == OffsetOutOfRange("t", 0, END + 1)
    owners.now_ms += HIDDEN_MS
    assert owners.give(again(entry, 0), again(entry, 0)) == HandoutSuperseded(0, 0)
    assert isinstance(owners.give(again(owners.index + 1, 0)), Malformed)


def test_a_group_has_one_style(owners: Owners) -> None:
    """Its members hold queues, or it is handed messages: in order everywhere in a topic or not."""
    assert owners.delivering.refusal_of_style("g") == GroupStyled("g", is_delivered=True)
    assert owners.delivering.refusal_of_style("h") is None
    assert owners.give(new(0), fifo=True) == GroupDiffers("g", ("is_fifo",), 0)
    member = JoinGroupCommand(group="leased", member="m", token=bytes(8), settings=wanted("t"))
    owners.groups.join(wish_of(member, DELIVERY_LEVEL), owners.index, 0)
    assert owners.begin(0, 0, group="leased") == GroupStyled("leased", is_delivered=False)


def test_a_group_starts_once(owners: Owners) -> None:
    """Where it had committed before it goes on; a second start says nothing; there must be one."""
    assert owners.begin(7, 7) is None
    assert (owners.record().next, owners.record(1).next) == (0, 3)
    fresh = Owners()
    assert fresh.give(new(0)) == StartMissing(0)
    assert fresh.begin(0, 0, 0) == QueueNotFound("t", 2, QUEUES)
    assert fresh.begin(END + 1) == OffsetOutOfRange("t", 0, END + 1)
    assert fresh.begin(4) is None
    assert fresh.give(new(0, queue_id=1)) == StartMissing(1)
    assert isinstance(fresh.begin(0, group=""), Malformed)
    fresh.check()


def test_the_bounds_hold_back_what_is_new_and_never_what_is_due() -> None:
    """Else a group whose messages all fail gets nothing any more (nats-server 4112)."""
    owners = Owners(Deliveries(max_unfinished=3, max_all_unfinished=4, max_handouts=3))
    assert owners.begin(0, 0) is None
    entry = owners.given(new(0, 0b111))
    assert owners.give(new(3)) == TooManyHandedOut(0)
    assert owners.give(new(0, 0b11, queue_id=1)) == TooManyHandedOut(1)
    owners.now_ms += HIDDEN_MS
    for offset in range(3):  # each on its own: handouts grow in number
        owners.given(again(entry, offset))
    assert owners.give(new(0, queue_id=1)) == TooManyHandedOut(1)
    owners.check()


# --- FIFO -------------------------------------------------------------------------------------


def test_fifo_has_one_handout_of_a_queue_at_a_time() -> None:
    """The next one is given once all of it is finished, or all that is left is due."""
    owners = Owners()
    assert owners.begin(0, 0, fifo=True) is None
    entry = owners.given(new(0, 0b11), new(2, 0b1), fifo=True)
    assert owners.give(new(3), fifo=True) == StillHidden(0, 0)
    owners.given(new(0, queue_id=1, attempt=B), fifo=True)  # another queue is another matter
    assert owners.settle(done(entry, 0), fifo=True) is None
    owners.now_ms += HIDDEN_MS
    assert owners.give(new(3), fifo=True) == StillHidden(0, 1)  # what is before it comes first
    assert owners.give(again(entry, 2), fifo=True) == StillHidden(0, 1)
    assert owners.settle(longer(entry, 2), fifo=True) is None
    assert owners.give(again(entry, 1), fifo=True) == StillHidden(0, 2)
    owners.now_ms += 9_000
    others = again(entry, 2, attempt=A)
    assert isinstance(owners.give(again(entry, 1), others, fifo=True), StillHidden)
    owners.given(again(entry, 1), again(entry, 2), fifo=True)
    owners.check()


def test_a_snapshot_shows_the_moment_at_which_it_was_asked_for(owners: Owners) -> None:
    """Whatever is applied before its payloads are taken, of the same group and others."""
    entry = owners.given(new(0, 0b111))
    before = [list(each.payloads) for each in owners.sections()]
    taken = owners.sections()
    owners.given(new(3, attempt=B))
    assert owners.settle(done(entry, 1)) is None
    assert [list(each.payloads) for each in taken] == before
    assert [list(each.payloads) for each in owners.sections()] != before
    owners.check()


# --- packed -----------------------------------------------------------------------------------


def test_pages_stay_as_small_and_as_few_as_they_may() -> None:
    """Handouts that go leave no pages of one; those put in between split what is full."""
    draft = Draft(Record(0))
    for number in range(10 * PAGE_ROWS):
        draft.put(Handout(number // 3 + 1, number, 1, number, A, 1))
    assert len(draft.done().pages) == 10
    for number in range(10 * PAGE_ROWS):
        if number % 40:
            assert draft.take(number // 3 + 1, number, 1)
    record = draft.done()
    assert (record.handouts, len(record.pages)) == (16, 1)
    for number in range(PAGE_ROWS):
        draft.put(Handout(5, 10_000 + number, 1, 0, A, 1))
    assert [len(each) for each in draft.done().pages] in ([40, 40], [32, 48], [48, 32])
    assert [each.index for each in draft] == sorted(each.index for each in draft)


HANDS = st.lists(st.integers(1, SPAN), min_size=2, max_size=8)


@settings(max_examples=examples(150))
@given(HANDS, st.randoms(use_true_random=False), st.data())
def test_whoever_finishes_much_at_once_finishes_nothing_else(
    sizes: list[int], chance: Random, data: st.DataObject
) -> None:
    """Hands whose messages were asked more time for one by one are a row each, over several pages;
    what is finished together of them leaves the others' alone, and the sums are right."""
    draft, hands, held = Draft(Record(0)), [], set[int]()
    for index, size in enumerate(sizes, 1):
        hands.append((index, draft.next, (1 << size) - 1))
        draft.put(Handout(index, draft.next, (1 << size) - 1, 0, A, 1))
        held |= set(range(draft.next, draft.next + size))
        draft.next += size
    for index, base, mask in hands:
        for each in range(data.draw(st.integers(0, mask.bit_length()))):
            for taken in draft.take(index, base + each, 1) or []:
                draft.put(taken._replace(hidden_until_ms=2_000))
    chance.shuffle(hands)
    for index, base, whole in hands:
        mask = whole & data.draw(st.one_of(st.just(whole), st.integers(1, whole)))
        assert draft.take(index, base, mask) is not None
        held -= {base + bit for bit in range(SPAN) if mask >> bit & 1}
        record = draft.done()
        assert {offset for each in record for offset in each.offsets()} == held
        assert record.unfinished == len(held)
        assert all(0 < len(page) <= PAGE_ROWS for page in record.pages)
        assert [each.index for each in record] == sorted(each.index for each in record)


def test_a_member_beside_older_ones_does_as_they_do() -> None:
    """Below level 9 rows are lost alike by all of them, or they would differ."""
    hands = [(index, (0, 20, 70)[index - 1], (20, 50, 10)[index - 1]) for index in (1, 2, 3)]
    left = []
    for level in (TOPIC_RULES_LEVEL - 1, TOPIC_RULES_LEVEL):
        draft = Moment(4, 0, 0, level).draft(Record(80))
        for index, base, size in hands:
            draft.put(Handout(index, base, (1 << size) - 1, 0, A, 1))
        for index, base, size in hands:
            for each in range(base, base + size):
                for taken in draft.take(index, each, 1) or []:
                    draft.put(taken)
        for index, base, size in hands[:2]:
            assert draft.take(index, base, (1 << size) - 1)
        left.append(sorted(offset for each in draft for offset in each.offsets()))
    assert left == [[], list(range(70, 80))]


@given(st.integers(1, (1 << SPAN) - 1), st.integers(1, (1 << SPAN) - 1), st.integers(-100, 100))
def test_bits_are_taken_wherever_bases_lie(mask: int, wish: int, apart: int) -> None:
    """Exactly those that are asked for, or none."""
    base = 1_000
    held = {base + bit for bit in range(SPAN) if mask >> bit & 1}
    asked = {base + apart + bit for bit in range(SPAN) if wish >> bit & 1}
    draft = Draft(Record(base + SPAN))
    draft.put(Handout(7, base, mask, 0, A, 1))
    taken = draft.take(7, base + apart, wish)
    assert (taken is not None) == (asked <= held)
    got = {offset for each in taken or () for offset in each.offsets()}
    assert got == (asked if taken else set())
    assert {offset for each in draft for offset in each.offsets()} == held - got


@pytest.mark.parametrize(
    ("rows", "each", "limit_mib"),
    [
        (20_000, 1, 1.0),
        pytest.param(100_000, 2, 8.0, marks=pytest.mark.long),
        (31_250, 32, 40.0),
    ],
)
def test_a_message_in_hand_costs_little(rows: int, each: int, limit_mib: float) -> None:
    """20,000 in a queue at most 1 MiB, though each was received alone; a million 40 MiB,
    of which a part is measured where they come in pairs."""
    queues = max(1, rows * each // 20_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        records = []
        for _ in range(queues):
            draft = Draft(Record(0))
            for number in range(rows // queues):
                at = 1_000_000 + number * each
                handout = Handout((1 << 40) + number, at, (1 << each) - 1, (1 << 40) + number, A, 1)
                draft.put(handout)
            records.append(draft.done())
            del draft
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sum(record.unfinished for record in records) == rows * each
    assert used < limit_mib * (1 << 20), f"{used / (1 << 20):.2f} MiB"


# --- anything in any order --------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Commands that may be refused, held against the simplest model: each offset by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners()
        assert self.owners.begin(0, 3) is None
        self.next = {0: 0, 1: 3}
        # By (queue, offset): entry, due, attempt. What is below next and not here is finished.
        self.held: dict[tuple[int, int], tuple[int, int, int]] = {}

    @rule(queue_id=st.integers(0, 1), skip=st.integers(0, 2), mask=st.integers(0, 1023))
    def give_new(self, queue_id: int, skip: int, mask: int) -> None:
        base = self.next[queue_id] + skip
        refusal = self.owners.give(new(base, mask, queue_id=queue_id))
        if base + mask.bit_length() > END:
            assert isinstance(refusal, OffsetOutOfRange)
            return
        assert isinstance(refusal, int)
        due = self.owners.now_ms + HIDDEN_MS
        for bit in range(mask.bit_length()):
            if mask >> bit & 1:
                self.held[queue_id, base + bit] = (self.owners.index, due, 1)
        self.next[queue_id] = base + mask.bit_length()

    @rule(queue_id=st.integers(0, 1), size=st.integers(40, SPAN))
    def give_many(self, queue_id: int, size: int) -> None:
        """Each of which is then asked more time for by itself: a row each."""
        base, entry = self.next[queue_id], self.owners.index + 1
        self.give_new(queue_id, 0, (1 << size) - 1)
        if self.next[queue_id] == base:
            return
        wishes = [longer(entry, base + each) for each in range(size)]
        for wish in wishes:
            wish.queue_id = queue_id
        assert self.owners.settle(*wishes) is None
        for wish in wishes:
            due = self.owners.now_ms + wish.hidden_ms
            self.held[queue_id, wish.base] = (entry, due, 1)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 1 << 20))
    def finish_all_of_a_hand(self, pick: int) -> None:
        """What is left of it, as far as one settlement goes."""
        (queue_id, _), (entry, _, _) = sorted(self.held.items())[pick % len(self.held)]
        mine = sorted(at for (q, at), (e, _, _) in self.held.items() if (q, e) == (queue_id, entry))
        mine = [each for each in mine if each - mine[0] < SPAN]
        wish = done(entry, mine[0], sum(1 << each - mine[0] for each in mine))
        wish.queue_id = queue_id
        assert self.owners.settle(wish) is None
        for each in mine:
            del self.held[queue_id, each]

    def named(self, pick: int, mask: int) -> tuple[int, int, int, set[tuple[int, int]], bool]:
        """A receipt of something in hand: queue, entry, base, what it names, whether it is true."""
        (queue_id, base), (entry, _, _) = sorted(self.held.items())[pick % len(self.held)]
        places = {(queue_id, base + bit) for bit in range(mask.bit_length()) if mask >> bit & 1}
        is_true = all(self.held.get(place, (0,))[0] == entry for place in places)
        return queue_id, entry, base, places, is_true

    @precondition(lambda self: self.held)
    @rule(
        pick=st.integers(0, 1 << 20),
        mask=st.integers(1, 15),
        what=st.sampled_from([SETTLING_FINISHED, SETTLING_RETURNED, SETTLING_EXTENDED]),
        hidden_ms=st.integers(0, 2_000),
    )
    def settle(self, pick: int, mask: int, what: Settling, hidden_ms: int) -> None:
        queue_id, entry, base, places, is_true = self.named(pick, mask)
        wish = SettledMessages(
            queue_id=queue_id, handout=entry, base=base, mask=mask, what=what, hidden_ms=hidden_ms
        )
        refusal = self.owners.settle(wish)
        assert (refusal is None) == is_true
        due = self.owners.now_ms + hidden_ms
        for place in places if is_true else ():
            index, _, attempt = self.held.pop(place)
            if what == SETTLING_RETURNED:
                index = self.owners.index
            if what != SETTLING_FINISHED:
                self.held[place] = (index, due, attempt)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 1 << 20), mask=st.integers(1, 15))
    def give_again(self, pick: int, mask: int) -> None:
        queue_id, entry, base, places, is_true = self.named(pick, mask)
        is_due = is_true and all(self.held[each][1] <= self.owners.now_ms for each in places)
        wish = again(entry, base, mask)
        wish.queue_id = queue_id
        refusal = self.owners.give(wish)
        assert isinstance(refusal, int) == is_due
        for place in places if is_due else ():
            _, _, attempt = self.held[place]
            self.held[place] = (self.owners.index, self.owners.now_ms + HIDDEN_MS, attempt + 1)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 1 << 20), mask=st.integers(1, 15), attempts=st.integers(1, 3))
    def bury(self, pick: int, mask: int, attempts: int) -> None:
        queue_id, entry, base, places, is_true = self.named(pick, mask)
        is_over = is_true and all(
            self.held[each][1] <= self.owners.now_ms and self.held[each][2] >= attempts
            for each in places
        )
        command = dead(entry, base, mask, attempts=attempts)
        command.queue_id = queue_id
        assert (self.owners.bury(command) is None) == is_over
        for place in places if is_over else ():
            del self.held[place]

    @rule(ms=st.integers(0, 1_500))
    def wait(self, ms: int) -> None:
        self.owners.now_ms += ms

    @invariant()
    def each_offset_is_what_it_should_be(self) -> None:
        found = {
            (queue_id, offset): (each.index, each.hidden_until_ms, each.attempt)
            for queue_id in range(QUEUES)
            for each in self.owners.record(queue_id)
            for offset in each.offsets()
        }
        assert found == self.held
        for queue_id in range(QUEUES):
            left = [offset for queue, offset in self.held if queue == queue_id]
            frontier = min(left, default=self.next[queue_id])
            assert self.owners.offset(queue_id) == frontier
            assert self.owners.record(queue_id).next == self.next[queue_id]
            assert self.owners.record(queue_id).unfinished == len(left)

    def teardown(self) -> None:
        self.owners.check()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
