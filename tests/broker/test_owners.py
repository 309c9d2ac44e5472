"""The owners of replicated state, each by itself: transitions, bounds, what a snapshot keeps."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state import lived_time as lived_time_module
from broker.state import offsets as offsets_module
from broker.state import sequences as sequences_module
from broker.state import topics as topics_module
from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.refusals import (
    OffsetOutOfRange,
    OffsetTaken,
    QueueNotFound,
    Refusal,
    SequenceBroken,
    TooManyQueues,
    TooMuchProgress,
    TopicExists,
    TopicReplaced,
)
from broker.state.sequences import RECENT_BATCHES, Sequences, StoredBatch
from broker.state.snapshot import MAX_PAYLOAD_BYTES, Section
from broker.state.topics import Topics

NAMES = st.sampled_from(["a", "b", "c", "topic-%-ä"])
Owner = Topics | Offsets | Sequences


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


# --- sequences --------------------------------------------------------------------------------

SEQUENCE_STEPS = st.lists(
    st.tuples(st.integers(0, 5), NAMES, st.integers(0, 1), st.integers(1, 50), st.integers(0, 400)),
    max_size=60,
)


def sequences_after(steps: Iterable[tuple[int, str, int, int, int]]) -> Sequences:
    """Batches of `(producer, topic, queue, count, milliseconds later)`; a count of 50 deletes the
    topic instead."""
    sequences = Sequences(max_sequences=6, expiry_ms=1_000)
    ends: dict[tuple[str, int], int] = {}
    physical = now_ms = 0
    for producer, topic, queue_id, count, later_ms in steps:
        now_ms += later_ms
        physical += 1_000
        if count == 50:
            sequences.on_topic_deleted(topic)
            continue
        key = (bytes([producer]) * 16, topic, queue_id)
        state = sequences.get(key)
        base = ends.get((topic, queue_id), 0)
        batch = StoredBatch(state.next_sequence if state else 7, count, base, physical, now_ms)
        sequences.remember(key, batch)
        ends[topic, queue_id] = base + count
        sequences.check_invariants()
    return sequences


@given(SEQUENCE_STEPS)
def test_sequences_outlive_a_snapshot(steps: list[tuple[int, str, int, int, int]]) -> None:
    """Whatever was stored, forgotten and deleted, every field comes back, and who is next to be
    forgotten too."""
    sequences = sequences_after(steps)
    check_kept(sequences, Sequences(max_sequences=6, expiry_ms=1_000))
    again = Sequences(max_sequences=6, expiry_ms=1_000)
    again.restore(1, sequences.snapshot().payloads)
    assert list(again) == list(sequences)


def test_a_batch_continues_its_producers_sequence() -> None:
    """Any other sequence is refused by name; a producer that isn't known starts where it likes."""
    sequences = Sequences()
    key = (b"p" * 16, "t", 2)
    assert sequences.refusal_of(key, 9) is None
    sequences.remember(key, stored(9, at_ms=0, count=2))
    assert sequences.refusal_of(key, 11) is None
    assert sequences.refusal_of(key, 9) == SequenceBroken("t", 2, sequence=9, expected=11)
    assert sequences.refusal_of(key, 12) == SequenceBroken("t", 2, sequence=12, expected=11)


def stored(sequence: int, *, at_ms: int, count: int = 1) -> StoredBatch:
    return StoredBatch(sequence, count, sequence, 100 * at_ms + sequence, at_ms)


def test_only_the_last_batches_are_remembered() -> None:
    """As many as a producer may have unacknowledged."""
    sequences = Sequences()
    key = (b"p" * 16, "t", 0)
    for sequence in range(0, 20, 2):
        sequences.remember(key, stored(sequence, at_ms=sequence, count=2))
    state = sequences.get(key)
    assert state is not None
    assert [batch.base_sequence for batch in state.recent] == [10, 12, 14, 16, 18]
    assert len(state.recent) == RECENT_BATCHES
    assert (state.next_sequence, state.last_seen_ms) == (20, 18)


def test_the_longest_unused_is_forgotten_first() -> None:
    """Use counts, not age: who stored again stays."""
    sequences = Sequences(max_sequences=2)
    keys = [(bytes([n]) * 16, "t", 0) for n in range(3)]
    for sequence, n in ((0, 0), (0, 1), (1, 0), (0, 2)):
        sequences.remember(keys[n], stored(sequence, at_ms=1))
    assert list(sequences) == [keys[0], keys[2]]


def test_who_was_not_seen_for_long_is_forgotten_by_the_time_of_the_log() -> None:
    """The append time of the newest batch is now; nothing is forgotten between batches."""
    sequences = Sequences(expiry_ms=100)
    old, new = (b"o" * 16, "t", 0), (b"n" * 16, "t", 0)
    sequences.remember(old, stored(0, at_ms=0))
    sequences.remember(new, stored(0, at_ms=100))
    assert list(sequences) == [old, new]
    sequences.remember(new, stored(1, at_ms=101))
    assert list(sequences) == [new]


# --- what isn't theirs ------------------------------------------------------------------------


def wrong_payloads(section: Section) -> list[bytes]:
    (payload,) = section.payloads
    return [payload + payload, payload[:-1], payload[:3], payload + b"\xff\xff"]


def test_owners_refuse_what_they_did_not_write() -> None:
    """Twice the same, cut off, or of another version: by a named error, never a partial state."""
    topics, offsets, sequences = Topics(), Offsets(), Sequences()
    made(topics, "t", 2)
    offsets.commit(OffsetCommit("g", "t", ((0, 0),), is_reset=False), [0, 0])
    sequences.remember((b"p" * 16, "t", 0), stored(0, at_ms=0))
    owners: list[tuple[Owner, Callable[[], Owner]]] = [
        (topics, Topics),
        (offsets, Offsets),
        (sequences, Sequences),
    ]
    for owner, empty in owners:
        for payload in wrong_payloads(owner.snapshot()):
            with pytest.raises(SnapshotDamaged):
                empty().restore(1, [payload])
        with pytest.raises(SnapshotUnknown, match="version 2"):
            empty().restore(2, owner.snapshot().payloads)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([Topics, Offsets, Sequences]))
def test_any_bytes_are_a_state_or_refused(
    payload: bytes, empty: type[Topics] | type[Offsets] | type[Sequences]
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
    "owner", [lived_time_module, topics_module, offsets_module, sequences_module]
)
def test_no_owner_knows_another(owner: ModuleType) -> None:
    """What one command does to several owners is decided by the machine alone."""
    tree = ast.parse(inspect.getsource(owner))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = ("lived_time", "topics", "offsets", "sequences", "machine")
    others = {f"broker.state.{name}" for name in names}
    assert not imported & (others | {"broker.state"})
