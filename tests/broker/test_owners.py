"""The owners of replicated state, each by itself: transitions, bounds, what a snapshot keeps."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state import lived_time as lived_time_module
from broker.state import offsets as offsets_module
from broker.state import producers as producers_module
from broker.state import topics as topics_module
from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.producers import MAX_SUPERSEDED, Place, Producer, Producers
from broker.state.refusals import (
    OffsetOutOfRange,
    OffsetTaken,
    ProducerFenced,
    ProducerUnknown,
    QueueNotFound,
    Refusal,
    RegistrationMalformed,
    SequenceBroken,
    TooManyProducers,
    TooManyQueues,
    TooManySequences,
    TooMuchProgress,
    TopicExists,
    TopicReplaced,
)
from broker.state.registration import ProducerBounds, Registration, producer_id
from broker.state.sequences import (
    RECENT_BATCHES,
    Recent,
    StoredBatch,
    batches_of,
    next_sequence,
    recent_of,
    with_batch,
)
from broker.state.snapshot import MAX_PAYLOAD_BYTES, Section
from broker.state.topics import Topics
from tests.scale import examples

NAMES = st.sampled_from(["a", "b", "c", "topic-%-ä"])
Owner = Topics | Offsets | Producers


def check_kept(owner: Owner, empty: Owner) -> None:
    """What a snapshot of `owner` gives back is equal to it, and writes the same bytes again."""
    section = owner.snapshot()
    payloads = list(section.payloads)
    assert all(len(payload) <= MAX_PAYLOAD_BYTES for payload in payloads)
    empty.restore(section.version, payloads)
    assert empty == owner
    assert list(empty.snapshot().payloads) == payloads
    empty.check_invariants()


# --- topics -----------------------------------------------------------------------------------

TOPIC_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, st.integers(0, 6)),
        st.tuples(st.just("delete"), NAMES, st.just(0)),
        st.tuples(st.just("advance"), NAMES, st.integers(0, 5)),
    ),
    max_size=40,
)


def made(topics: Topics, name: str, queues: int) -> Refusal | None:
    """Creates one; which entry did is of no matter."""
    return topics.create(name, queues, incarnation=1, created_time_ms=0)


def topics_after(steps: Iterable[tuple[str, str, int]]) -> Topics:
    topics = Topics(max_queues=12)
    for time_ms, (step, name, number) in enumerate(steps):
        topic = topics.get(name)
        if step == "create":
            topics.create(name, number, incarnation=time_ms + 1, created_time_ms=time_ms)
        elif topic is not None and step == "delete":
            topics.delete(name)
        elif topic is not None and number < len(topic.next_offsets):
            topics.advance(topic, number, topic.next_offsets[number] + 1 + number)
        topics.check_invariants()
    return topics


@given(TOPIC_STEPS)
def test_topics_outlive_a_snapshot(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happened to them, every field comes back, and the order too."""
    topics = topics_after(steps)
    check_kept(topics, Topics(max_queues=12))
    again = Topics(max_queues=12)
    again.restore(1, topics.snapshot().payloads)
    assert list(again) == list(topics)


def test_a_topic_of_many_queues_takes_several_records() -> None:
    """No record is longer than a payload, however many queues a command has asked for."""
    topics = Topics()
    topics.create("wide", 100_000, incarnation=3, created_time_ms=7)
    topics.advance(topics["wide"], 99_999, 1 << 40)
    check_kept(topics, Topics())


def test_topics_say_why_they_refuse() -> None:
    """A second topic of a name, and queues beyond the bound; a deleted topic gives back its own."""
    topics = Topics(max_queues=5)
    assert made(topics, "t", 4) is None
    assert made(topics, "t", 1) == TopicExists("t", 4)
    assert made(topics, "u", 2) == TooManyQueues(wanted=2, limit=5)
    topics.delete("t")
    assert made(topics, "u", 5) is None
    assert topics.queue_count == 5


def test_a_batch_continues_its_queue() -> None:
    """Any other offset, and a queue that isn't there, are refused by name."""
    topics = Topics()
    made(topics, "t", 1)
    topics.advance(topics["t"], 0, 5)
    topic = topics["t"]
    own = topic.incarnation
    assert topics.refusal_of(topic, 0, 5, incarnation=own) is None
    assert topics.refusal_of(topic, 0, 5, incarnation=0) is None  # version 1 doesn't say
    assert topics.refusal_of(topic, 0, 5, incarnation=own + 1) == TopicReplaced("t", own + 1, own)
    assert topics.refusal_of(topic, 0, 4, incarnation=own) == OffsetTaken(
        "t", 0, offset=4, next_offset=5
    )
    assert topics.refusal_of(topic, 0, 6, incarnation=own) == OffsetTaken(
        "t", 0, offset=6, next_offset=5
    )
    assert topics.refusal_of(topic, 1, 0, incarnation=own) == QueueNotFound("t", 1, queue_count=1)
    assert topics.refusal_of(topic, -1, 0, incarnation=own) == QueueNotFound("t", -1, queue_count=1)


# --- offsets ----------------------------------------------------------------------------------

OFFSET_STEPS = st.lists(
    st.one_of(
        st.builds(
            OffsetCommit,
            NAMES,
            NAMES,
            st.lists(st.tuples(st.integers(0, 4), st.integers(0, 11)), max_size=4).map(tuple),
            is_reset=st.booleans(),
        ),
        NAMES,
    ),
    max_size=40,
)


@given(OFFSET_STEPS)
def test_offsets_outlive_a_snapshot(steps: list[OffsetCommit | str]) -> None:
    """Whatever was committed, refused and deleted, every field comes back."""
    offsets = Offsets(max_progress=6)
    for step in steps:
        if isinstance(step, str):
            offsets.on_topic_deleted(step)
        else:
            offsets.commit(step, [10, 10, 10, 10])
        offsets.check_invariants()
    check_kept(offsets, Offsets(max_progress=6))


def test_offsets_in_many_queues_take_several_records() -> None:
    """A group that has committed in every queue of the widest topic."""
    offsets = Offsets()
    wanted = tuple((queue_id, queue_id) for queue_id in reversed(range(5_000)))
    offsets.commit(OffsetCommit("g", "wide", wanted, is_reset=False), range(5_000))
    check_kept(offsets, Offsets())


def test_a_commit_is_taken_whole_or_not_at_all() -> None:
    """One offset out of range refuses the others with it."""
    offsets = Offsets()
    commit = OffsetCommit("g", "t", ((0, 1), (1, 9)), is_reset=False)
    assert offsets.commit(commit, [5, 5]) == OffsetOutOfRange("t", 1, 9)
    assert offsets == Offsets()


def test_progress_is_bounded_and_given_back() -> None:
    """Pairs of group and topic count; a deleted topic frees its own."""
    offsets = Offsets(max_progress=1)
    first, second = (OffsetCommit(name, "t", ((0, 0),), is_reset=False) for name in "gh")
    assert offsets.commit(first, [0]) is None
    assert offsets.commit(second, [0]) == TooMuchProgress(1)
    assert offsets.commit(first, [0]) is None
    offsets.on_topic_deleted("t")
    assert offsets.group_count == 0
    assert offsets.commit(second, [0]) is None


# --- producers --------------------------------------------------------------------------------

BOUNDS = ProducerBounds(
    producers=4, queues_each=2, pairs=5, named_unused_ms=3_000, unnamed_unused_ms=1_000
)
PRODUCER_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "send", "send", "forget", "delete"]),
        st.integers(0, 7),
        st.sampled_from(["", "", "n", "m"]),
        st.integers(0, 900),
    ),
    max_size=60,
)


def token(number: int) -> bytes:
    return number.to_bytes(8, "big")


def producers_after(
    steps: Iterable[tuple[str, int, str, int]], at: Callable[[int, Producers], None] | None = None
) -> Producers:
    """Steps of `(what, number, name, milliseconds later)`, as a leader would make them; `at` is
    called before each, with its index."""
    producers = Producers(BOUNDS)
    now_ms = 0
    for index, (step, number, name, later_ms) in enumerate(steps, 1):
        if at is not None:
            at(index, producers)
        now_ms += later_ms
        known = list(producers)
        if step == "register":
            producers.register(Registration(token(number), name), index, now_ms)
        elif step == "forget":
            old = producers.forgettable(now_ms, 2)
            producers.forget([*old, *(each.producer_id for each in known)], now_ms)
        elif step == "delete":
            producers.on_topic_deleted(number % 3)
        elif known:
            send(producers, known[number % len(known)], (number % 3, 0), index, now_ms)
        producers.check_invariants()
    return producers


def send(producers: Producers, sender: Producer, place: Place, index: int, now_ms: int) -> None:
    sequence = next_sequence(sender.queues.get(place))
    if producers.refusal_of(sender.producer_id, place, sequence) is None:
        batch = StoredBatch(sequence, 2, 2 * index, 100 * index, now_ms)
        producers.remember(sender.producer_id, place, batch, now_ms)


@given(PRODUCER_STEPS)
def test_producers_outlive_a_snapshot(steps: list[tuple[str, int, str, int]]) -> None:
    """Whoever was registered, fenced and forgotten, every field comes back, and who is next to be
    forgotten too."""
    producers = producers_after(steps)
    check_kept(producers, Producers(BOUNDS))
    again = Producers(BOUNDS)
    again.restore(1, producers.snapshot().payloads)
    assert list(again) == list(producers)
    assert again.forgettable(1 << 40, 9) == producers.forgettable(1 << 40, 9)


@given(PRODUCER_STEPS, st.sets(st.integers(1, 60)))
def test_snapshots_of_producers_show_when_they_were_taken(
    steps: list[tuple[str, int, str, int]], moments: set[int]
) -> None:
    """Whatever is applied until their payloads are made, and however many are under way."""
    taken: list[tuple[Section, list[bytes]]] = []

    def at(index: int, producers: Producers) -> None:
        if index in moments:
            taken.append((producers.snapshot(), list(producers.snapshot().payloads)))

    producers_after(steps, at)
    for section, payloads in taken:
        assert list(section.payloads) == payloads


def test_a_topic_that_is_deleted_costs_what_was_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds may be deleted by one entry, in one turn: other topics' producers aren't looked at,
    not after a start either."""
    producers = Producers()
    for number in range(1, 31):
        sender = registered(producers, number, name="n" * (number % 2) * number)
        for incarnation in {number % 3, 7}:
            producers.remember(sender, (incarnation, 0), stored(0), 0)
    restored = Producers()
    restored.restore(1, producers.snapshot().payloads)
    looked: list[Producer] = []
    own = Producers._own

    def owning(self: Producers, producer: Producer) -> Producer:
        looked.append(producer)
        return own(self, producer)

    def all_of_them(self: Producers) -> Iterator[Producer]:
        raise AssertionError("everybody is looked at")

    with monkeypatch.context() as patched:
        patched.setattr(Producers, "_own", owning)
        patched.setattr(Producers, "__iter__", all_of_them)
        for each in (producers, restored):
            looked.clear()
            each.on_topic_deleted(2)
            each.on_topic_deleted(3)
            assert len(looked) == 10
    assert producers == restored
    assert producers.pairs == 50
    producers.check_invariants()
    restored.check_invariants()


def registered(
    producers: Producers, index: int, *, name: str = "", previous: bytes = b"", at_ms: int = 0
) -> bytes:
    """Registers a producer by entry `index`; its id."""
    assert producers.register(Registration(token(index), name, previous), index, at_ms) is None
    return producer_id(index, token(index))


def stored(sequence: int, *, count: int = 1) -> StoredBatch:
    return StoredBatch(sequence, count, sequence, 100 + sequence, sequence)


def test_a_batch_continues_its_producers_numbers() -> None:
    """Any other number is refused by name, and so is whoever isn't registered, whatever it sends:
    it can't be told from somebody who was forgotten."""
    producers = Producers()
    known, place = registered(producers, 3), (1, 2)
    assert producers.refusal_of(known, place, 0) is None
    assert producers.refusal_of(known, place, 9) == SequenceBroken(2, sequence=9, expected=0)
    producers.remember(known, place, stored(0, count=2), 0)
    assert producers.refusal_of(known, place, 2) is None
    assert producers.refusal_of(known, place, 0) == SequenceBroken(2, sequence=0, expected=2)
    assert producers.refusal_of(known, place, 3) == SequenceBroken(2, sequence=3, expected=2)
    for unknown in (bytes(16), known[:8] + token(9), producer_id(4, known[8:])):
        assert producers.refusal_of(unknown, place, 0) == ProducerUnknown(unknown)


def test_only_the_last_batches_are_remembered() -> None:
    """As many as a producer may have unacknowledged."""
    producers = Producers()
    known = registered(producers, 1)
    for sequence in range(0, 20, 2):
        producers.remember(known, (1, 0), stored(sequence, count=2), 0)
    (producer,) = producers
    recent = producer.queues[1, 0]
    batches = batches_of(recent)
    assert [batch.base_sequence for batch in batches] == [10, 12, 14, 16, 18]
    assert (len(batches), next_sequence(recent)) == (RECENT_BATCHES, 20)


@given(st.lists(st.tuples(*(st.integers(0, (1 << bits) - 1) for bits in (64, 16, 64, 64, 64)))))
def test_what_is_remembered_of_batches_is_what_they_were(values: list[tuple[int, ...]]) -> None:
    """Whatever an entry can hold, and the newest few of them."""
    batches = [StoredBatch(*each) for each in values]
    recent: Recent | None = None
    for batch in batches:
        recent = with_batch(recent, batch)
    assert batches_of(recent) == batches[-RECENT_BATCHES:]
    assert next_sequence(recent) == (batches[-1][0] + batches[-1][1] if batches else 0)
    if recent is not None:
        assert recent_of(batches_of(recent)) == recent


def test_a_registration_that_is_there_twice_is_one() -> None:
    """The client's second attempt and its first one's late copy: the epoch is the first entry's."""
    producers = Producers()
    known = registered(producers, 3)
    assert producers.register(Registration(token(3)), 4, 0) is None
    assert [each.producer_id for each in producers] == [known]
    found = producers.registered(token(3))
    assert found is not None
    assert found.producer_id == known
    assert producers.register(Registration(token(3), "name"), 5, 0) == ProducerFenced("name")


def test_a_name_is_one_producers_at_a_time() -> None:
    """Its numbers and its origin go on under the new id; the former ones are told so by name, but
    for those that are too many to be kept, which are unknown."""
    producers = Producers()
    ids = [registered(producers, 1, name="n")]
    producers.remember(ids[0], (1, 0), stored(0), 0)
    ids += [registered(producers, index, name="n") for index in range(2, MAX_SUPERSEDED + 3)]
    (producer,) = producers
    assert (producer.producer_id, producer.origin) == (ids[-1], ids[0])
    assert next_sequence(producer.queues[1, 0]) == 1
    assert producers.find(ids[0]) == ProducerUnknown(ids[0])
    assert {producers.find(each) == ProducerFenced("n") for each in ids[1:-1]} == {True}
    assert producers.register(Registration(token(2), "n"), 50, 0) == ProducerFenced("n")


def test_a_name_is_not_taken_back() -> None:
    """Who names the id that it had registers anew only if nobody else did meanwhile."""
    producers = Producers()
    first = registered(producers, 1, name="n")
    second = registered(producers, 2, name="n", previous=first)
    late = Registration(token(3), "n", first)
    assert producers.register(late, 3, 0) == ProducerFenced("n")
    assert isinstance(producers.find(second), Producer)
    producers.forget([second], producers.bounds.named_unused_ms)
    assert producers.register(late, 4, 0) is None
    assert [each.origin for each in producers] == [producer_id(4, token(3))]


def test_whole_producers_are_forgotten_and_only_when_told_to() -> None:
    """Longest unused first, use counts and not age; unnamed ones after a day, named ones after
    seven; whoever was used since stays."""
    producers = Producers(BOUNDS)
    a, b = registered(producers, 1), registered(producers, 2)
    c = registered(producers, 3, name="n")
    producers.remember(a, (1, 0), stored(0), 100)
    assert producers.forgettable(999, 9) == []
    assert producers.forgettable(1_100, 9) == [b, a]
    assert producers.forgettable(1_100, 1) == [b]
    assert producers.forgettable(3_000, 9) == [b, a, c]
    producers.forget([c, a, b, bytes(16)], 1_099)
    assert [each.producer_id for each in producers] == [a, c]
    assert producers.pairs == 1
    producers.forget([a, c], 3_000)
    assert (list(producers), producers.pairs) == ([], 0)


def test_who_registers_anew_leaves_the_former_id_to_be_forgotten() -> None:
    """At once if there is need, unless it is used again."""
    producers = Producers(BOUNDS)
    other, first = registered(producers, 1, at_ms=5), registered(producers, 2, at_ms=6)
    second = registered(producers, 3, previous=first, at_ms=7)
    assert producers.forgettable(7, 9) == [first]
    producers.remember(first, (1, 0), stored(0), 8)
    assert producers.forgettable(8, 9) == []
    assert [each.producer_id for each in producers] == [other, second, first]


def test_producers_have_bounds() -> None:
    """Producers, queues of one, queues of all; each is refused by name."""
    producers = Producers(BOUNDS)
    ids = [registered(producers, index) for index in range(1, 5)]
    wanted = Registration(token(9))
    assert producers.register(wanted, 9, 0) == TooManyProducers(4)
    assert producers.register(Registration(b"short"), 9, 0) == RegistrationMalformed()
    for number, place in ((0, (1, 0)), (0, (1, 1)), (1, (1, 0)), (1, (1, 1)), (2, (1, 0))):
        assert producers.refusal_of(ids[number], place, 0) is None
        producers.remember(ids[number], place, stored(0), 0)
    assert producers.refusal_of(ids[0], (1, 2), 0) == TooManySequences(2)
    assert producers.refusal_of(ids[2], (1, 2), 0) == TooManySequences(5)
    assert producers.refusal_of(ids[2], (1, 0), 1) is None
    producers.on_topic_deleted(1)
    assert producers.pairs == 0


def test_a_producer_of_many_queues_takes_several_records() -> None:
    """No record is longer than a payload."""
    producers = Producers()
    known = registered(producers, 1, name="n" * 255)
    for queue_id in range(4_096):
        producers.remember(known, (7, queue_id), stored(0), 0)
    check_kept(producers, Producers())


# --- what isn't theirs ------------------------------------------------------------------------


def wrong_payloads(section: Section) -> list[bytes]:
    (payload,) = section.payloads
    return [payload + payload, payload[:-1], payload[:3], payload + b"\xff\xff"]


def test_owners_refuse_what_they_did_not_write() -> None:
    """Twice the same, cut off, or of another version: by a named error, never a partial state."""
    topics, offsets, producers = Topics(), Offsets(), Producers()
    made(topics, "t", 2)
    offsets.commit(OffsetCommit("g", "t", ((0, 0),), is_reset=False), [0, 0])
    producers.remember(registered(producers, 1), (1, 0), stored(0), 0)
    owners: list[tuple[Owner, Callable[[], Owner]]] = [
        (topics, Topics),
        (offsets, Offsets),
        (producers, Producers),
    ]
    for owner, empty in owners:
        for payload in wrong_payloads(owner.snapshot()):
            with pytest.raises(SnapshotDamaged):
                empty().restore(1, [payload])
        with pytest.raises(SnapshotUnknown, match="version 2"):
            empty().restore(2, owner.snapshot().payloads)


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.sampled_from([Topics, Offsets, Producers]))
def test_any_bytes_are_a_state_or_refused(
    payload: bytes, empty: type[Topics] | type[Offsets] | type[Producers]
) -> None:
    """Bytes that nobody wrote are refused, or give a state that can be written again."""
    owner, again = empty(), empty()
    try:
        owner.restore(1, [payload])
    except SnapshotDamaged:
        return
    again.restore(1, owner.snapshot().payloads)
    assert again == owner


# --- who knows whom ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owner", [lived_time_module, topics_module, offsets_module, producers_module]
)
def test_no_owner_knows_another(owner: ModuleType) -> None:
    """What one command does to several owners is decided by the machine alone."""
    tree = ast.parse(inspect.getsource(owner))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = ("lived_time", "topics", "offsets", "producers", "machine")
    others = {f"broker.state.{name}" for name in names}
    assert not imported & (others | {"broker.state"})
