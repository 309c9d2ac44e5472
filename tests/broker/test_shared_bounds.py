"""Units that share an entry share the bounds of the state: what was judged takes effect (ADR 54).

Each unit is judged before any of the entry takes effect. One that only fitted without those before
it would be found refused while it is applied, which is no refusal any more but this program's
fault: every replica would stop at that entry, and at every start again.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.leader.batches import Placed
from broker.leader.units import ProposedUnit
from broker.state.refusals import GroupStyled, OffsetOutOfRange, TooManyHandedOut
from dledger.level import KNOWN_LEVEL
from dledger.wire.commands_pb2 import (
    Command,
    DeliverCommand,
    GivenMessages,
    RaiseLevelCommand,
    SettledMessages,
)
from tests.broker.leader import Bench, batch
from tests.broker.test_compound import commit, delete
from tests.scale import examples

ATTEMPT = b"attempt1"
MESSAGES = 12
GROUPS = ("g", "h", "i", "j")


def raised(*topics: str) -> Bench:
    """A leader whose group uses everything, with topics of one queue and some messages each."""
    bench = Bench(known_level=KNOWN_LEVEL)
    for each in range(bench.machine.level.current + 1, KNOWN_LEVEL + 1):
        bench.submit(Command(raise_level=RaiseLevelCommand(level=each)))
    for topic in topics:
        bench.topic(topic, queues=1)
        sent = bench.send(batch(0, *(b"m" for _ in range(MESSAGES)), topic=topic))
        bench.commit()
        assert isinstance(sent.result()[0], Placed)
    return bench


def incarnation(bench: Bench, topic: str) -> int:
    return bench.machine.topics[topic].incarnation


def deliver(
    bench: Bench, group: str, first: int, mask: int, *settled: SettledMessages, topic: str = "t"
) -> ProposedUnit:
    """Messages from the first on are given, and others settled."""
    given = GivenMessages(base=first, mask=mask, attempt_id=ATTEMPT, hidden_ms=1_000)
    command = DeliverCommand(
        group=group,
        topic=topic,
        incarnation=incarnation(bench, topic),
        starts=[0],
        settled=settled,
        given=[given] if mask else [],
    )
    return ProposedUnit((), (Command(deliver=command),))


def test_groups_of_one_entry_share_the_bound_on_messages_in_hand() -> None:
    """The second is refused, by name; one that fits is not."""
    bench = raised("t")
    bench.machine.deliveries.max_all_unfinished = 3
    first = bench.appender.units.propose(deliver(bench, "first", 0, 0))  # the next ones share
    wanted = [("g", 0b11), ("h", 0b11), ("i", 0b1), ("j", 0b1)]
    futures = [bench.appender.units.propose(deliver(bench, g, 0, mask)) for g, mask in wanted]
    bench.commit()
    assert first.result().refusal is None
    assert len({future.result().index for future in futures}) == 1
    refusals = [future.result().refusal for future in futures]
    assert refusals == [None, TooManyHandedOut(0), None, TooManyHandedOut(0)]
    assert bench.machine.deliveries.unfinished == 3
    bench.machine.check_invariants()


def test_groups_of_one_entry_share_the_bound_on_handouts() -> None:
    """However few messages each has. What one finishes makes room in the next entry: a replica of
    an earlier version has judged so."""
    bench = raised("t")
    bench.machine.deliveries.max_handouts = 3
    units = bench.appender.units
    held = [units.propose(deliver(bench, group, 0, 0b1)) for group in ("g", "h")]
    bench.commit()
    done = SettledMessages(handout=held[0].result().index, base=0, mask=1)
    units.propose(deliver(bench, "first", 0, 0))
    back = units.propose(deliver(bench, "g", 1, 0, done))
    futures = [units.propose(deliver(bench, group, 0, 0b1)) for group in ("i", "j", "k")]
    bench.commit()
    assert [each.result().refusal for each in (back, *futures)] == [
        *(None, None, None),
        TooManyHandedOut(0),
    ]
    assert bench.machine.deliveries.handout_count == 3
    bench.machine.check_invariants()


def test_a_topic_that_is_deleted_makes_up_for_what_comes_before() -> None:
    """Two more, two fewer: who fits in the state before the entry fits behind both."""
    bench = raised("t", "u", "v")
    bench.machine.deliveries.max_all_unfinished = 4
    units = bench.appender.units
    units.propose(deliver(bench, "h", 0, 0b11, topic="u"))
    bench.commit()
    units.propose(deliver(bench, "first", 0, 0))
    futures = [
        units.propose(deliver(bench, "g", 0, 0b11)),
        units.propose(ProposedUnit((), (delete(incarnation(bench, "u"), "u"),))),
        units.propose(deliver(bench, "j", 0, 0b11, topic="v")),
    ]
    bench.commit()
    assert [each.result().refusal for each in futures] == [None, None, None]
    assert bench.machine.deliveries.unfinished == 4
    bench.machine.check_invariants()


def test_a_refused_unit_takes_no_room() -> None:
    """Its messages are in nobody's hands."""
    bench = raised("t", "u")
    bench.machine.deliveries.max_all_unfinished = 2
    units = bench.appender.units
    units.propose(deliver(bench, "first", 0, 0))
    given = deliver(bench, "g", 0, 0b11)
    beyond = commit("other", MESSAGES + 1, incarnation(bench, "u"), "u")
    refused = units.propose(ProposedUnit((), (*given.commands, beyond)))
    fits = units.propose(deliver(bench, "h", 0, 0b11))
    bench.commit()
    assert refused.result().refusal == OffsetOutOfRange("u", 0, MESSAGES + 1)
    assert fits.result().refusal is None
    bench.machine.check_invariants()


def test_a_new_group_in_two_styles_at_once_is_refused_one() -> None:
    """Handed single messages of one topic, and committing by itself in another one: before it is
    known in either style, both come in one entry."""
    bench = raised("t", "u")
    units = bench.appender.units
    units.propose(deliver(bench, "first", 0, 0))
    handed = units.propose(deliver(bench, "g", 0, 0b1))
    command = commit("g", 1, incarnation(bench, "u"), "u")
    committed = units.propose(ProposedUnit((), (command,)))
    bench.commit()
    assert handed.result().refusal is None
    assert committed.result().refusal == GroupStyled("g", is_delivered=True)
    assert not bench.machine.offsets.of("g", "u")
    bench.machine.check_invariants()


ONE_UNIT = st.tuples(
    st.sampled_from(["deliver", "deliver", "deliver", "commit", "commit", "delete"]),
    st.sampled_from(GROUPS),
    st.sampled_from(["t", "u"]),
    st.integers(0, MESSAGES - 1),
    st.integers(0, 0b1111),
    st.booleans(),
)


@given(
    entries=st.lists(st.lists(ONE_UNIT, min_size=1, max_size=5), min_size=1, max_size=8),
    bounds=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4)),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_was_judged_takes_effect(
    entries: list[list[tuple[Any, ...]]], bounds: tuple[int, int, int]
) -> None:
    """Whatever units share an entry, with every bound near: each is refused or takes effect, no
    bound is passed, and no replica stops."""
    bench = raised("t", "u", "v")
    deliveries, offsets = bench.machine.deliveries, bench.machine.offsets
    deliveries.max_all_unfinished, deliveries.max_handouts, offsets.max_progress = bounds
    for drawn in entries:
        units = bench.appender.units
        futures = [units.propose(deliver(bench, "k", 0, 0, topic="v"))]  # the next ones share
        for kind, group, topic, first, mask, settles in drawn:
            if topic not in bench.machine.topics:
                continue
            if kind == "delete":
                unit = ProposedUnit((), (delete(incarnation(bench, topic), topic),))
            elif kind == "commit":
                command = commit(group, first, incarnation(bench, topic), topic)
                unit = ProposedUnit((), (command,))
            else:
                known = deliveries.in_topic(group, incarnation(bench, topic)).get(0)
                in_hand = list(known)[:1] if known is not None and settles else []
                done = [
                    SettledMessages(handout=each.index, base=each.base, mask=each.mask)
                    for each in in_hand
                ]
                at = max(first, 0 if known is None else known.next)
                mask &= (1 << max(0, MESSAGES - at)) - 1
                unit = deliver(bench, group, at, mask, *done, topic=topic)
            futures.append(units.propose(unit))
        bench.commit()
        assert all(future.done() for future in futures)
        bench.machine.check_invariants()
        assert deliveries.unfinished <= deliveries.max_all_unfinished
        assert deliveries.handout_count <= deliveries.max_handouts
