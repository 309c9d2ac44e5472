"""Linearizable reads begin heartbeat rounds of their own, as fast as they come: what a leader is
patient about, it is by the clock, however many rounds are answered in the meantime."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dledger.core import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    NodeId,
    ProposalRefused,
    SnapshotOffer,
    Term,
)
from dledger.core.membership import reshaped
from tests.core.harness import A, B, C, Node
from tests.core.test_chaos import RELAXED
from tests.core.test_joint import SOME, cluster, learns, settle
from tests.core.test_replication import THREE, connected
from tests.core.test_snapshots import base_at
from tests.scale import examples

READS_A_TICK = 20


class Busy:
    """A leader that reads beside all that it does. Its peers answer each heartbeat at once; B takes
    what it is sent, C as the test says."""

    def __init__(self) -> None:
        self.node = connected(Node(A, THREE))
        self.last_of_c = Index(1)
        self._contexts = count(1)

    def ticks(self, ticks: int) -> list[IncomingMessage]:
        """What was sent to C, heartbeats apart."""
        sent: list[IncomingMessage] = []
        for _ in range(ticks):
            sent += self._answered(self.node.tick())
            sent += self.reads(READS_A_TICK)
        return sent

    def reads(self, times: int) -> list[IncomingMessage]:
        """One after the other, in no time."""
        sent: list[IncomingMessage] = []
        for _ in range(times):
            self.node.core.read_index(next(self._contexts))
            sent += self._answered(self.node.pump())
        return sent

    def _answered(self, sent: list[IncomingMessage]) -> list[IncomingMessage]:
        to_c: list[IncomingMessage] = []
        while sent:
            message = sent.pop(0)
            if isinstance(message, HeartbeatRequest):
                last = self.last_of_c if message.to == C else self.node.core.last_index
                sent += self.node.step(
                    HeartbeatResponse(message.to, A, Term(1), message.read_context, last)
                )
            elif message.to == B and isinstance(message, AppendRequest):
                last = Index(message.prev_index + len(message.entries))
                sent += self.node.step(AppendResponse(B, A, Term(1), True, last))
            elif message.to == C:
                to_c.append(message)
        return to_c

    def state_of_c(self) -> str:
        return self.node.core.statistics().peers[C].state


def appends(sent: list[IncomingMessage]) -> list[AppendRequest]:
    return [each for each in sent if isinstance(each, AppendRequest) and each.entries]


@pytest.mark.parametrize(("has_arrived", "ticks"), [(True, 40), (False, 10)])
def test_appends_are_taken_for_lost_after_a_while_and_not_after_some_reads(
    has_arrived: bool, ticks: int
) -> None:
    """Eight heartbeats' time for a disk that syncs, two for what didn't arrive."""
    busy = Busy()
    busy.node.propose()
    assert len(appends(busy.reads(1))) == 1
    busy.last_of_c = Index(2 if has_arrived else 1)
    assert busy.ticks(ticks - 1) == []
    assert busy.state_of_c() == "replicate"
    assert appends(busy.ticks(6))
    assert busy.state_of_c() == "probe"


def test_peer_that_takes_nothing_is_asked_ever_more_seldom() -> None:
    """Once a second in the end, as each probe holds what fits into a message; and at once when its
    log has moved."""
    busy = Busy()
    busy.node.propose()
    busy.ticks(15)
    assert busy.state_of_c() == "probe"
    assert 5 <= len(appends(busy.ticks(300))) <= 9
    assert len(appends(busy.ticks(300))) == 3
    busy.last_of_c = Index(0)
    assert appends(busy.ticks(1))
    assert 2 <= len(appends(busy.ticks(30))) <= 4


def test_refused_probe_is_followed_at_once() -> None:
    """It arrived; however many were lost before."""
    busy = Busy()
    for _ in range(3):
        busy.node.propose()
    busy.ticks(300)
    refusal = AppendResponse(
        C, A, Term(1), False, rejected_prev_index=Index(1), conflict_first_index=Index(1)
    )
    (probe,) = appends(busy.node.step(refusal))
    assert (probe.to, probe.prev_index) == (C, 0)
    assert busy.ticks(1), "the first wait is short again"


def test_base_is_offered_every_few_heartbeats() -> None:
    busy = Busy()
    for _ in range(5):
        busy.node.propose()
    busy.reads(1)
    busy.node.core.begin_at(base_at(4))
    busy.ticks(20)
    refusal = AppendResponse(
        C, A, Term(1), False, rejected_prev_index=Index(1), conflict_first_index=Index(1)
    )
    busy.node.core._state.peers[C].become_probe(Index(1))
    busy.node.step(refusal)
    assert busy.state_of_c() == "snapshot"
    sent = busy.ticks(200)
    assert 8 <= sum(isinstance(each, SnapshotOffer) for each in sent) <= 10


def test_what_peers_say_of_their_disks_counts_after_a_while() -> None:
    """What filled this disk may be filling theirs at this moment."""
    busy = Busy()
    busy.ticks(busy.node.options.hand_over_interval_ticks)
    targets: list[NodeId | None] = []
    for _ in range(15):
        busy.node.core.report_fitness(is_short=True)
        busy.reads(READS_A_TICK)
        busy.ticks(1)
        targets.append(busy.node.core.statistics().transfer_target)
    assert targets[:9] == [None] * 9
    assert targets[-1] == B


NOBODY = frozenset[NodeId]()


@settings(RELAXED, max_examples=examples(120))
@given(founders=SOME, learning=SOME, voting=SOME, gone=SOME, heard=SOME, reads=st.integers(1, 3))
@example(frozenset({B}), NOBODY, NOBODY, frozenset({B}), NOBODY, 1)
@example(frozenset({B, C}), NOBODY, NOBODY, frozenset({B, C}), NOBODY, 2)
@example(frozenset({B}), frozenset({C}), NOBODY, frozenset({B}), frozenset({C}), 2)
def test_every_read_comes_to_an_end_whatever_becomes_of_the_members(
    founders: frozenset[NodeId],
    learning: frozenset[NodeId],
    voting: frozenset[NodeId],
    gone: frozenset[NodeId],
    heard: frozenset[NodeId],
    reads: int,
) -> None:
    """Asked before the members change, with the answers to its round lost but those of `heard`: a
    few heartbeats of the members to come are enough, and so is nobody, where one is left."""
    group = cluster(A, *sorted(founders - {A}))
    leader = group[A]
    leader.change(
        learns(leader.core.configuration, *sorted(learning - founders - {A}), observes=True)
    )
    settle(group, leader, 10)
    asked = {group.read(A) for _ in range(reads)}
    group.deliver(lambda each: not isinstance(each, HeartbeatResponse) or each.sender in heard)
    with suppress(ProposalRefused):
        leader.change(reshaped(leader.core.configuration, voting or {A}, gone=gone))
    settle(group, leader, 20)
    assert {each.context for each in leader.reads} == asked
