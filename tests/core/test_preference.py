"""The member that is preferred as the leader: when it is handed leadership, how often that is
tried, and when nobody moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from broker.errors import BrokerError
from broker.leader.changes import Change, is_so, planned
from dledger.codec import decode_configuration, encode_configuration
from dledger.core import HandOverBegun, NodeId, RaftOptions, TimeoutNow, TransferEnded
from dledger.core.errors import MessageRefused
from dledger.core.membership import left, with_disk, without
from dledger.core.types import (
    AppendRequest,
    Configuration,
    EntryKind,
    EntryMeta,
    HeartbeatRequest,
    Index,
    PreVoteRequest,
    Term,
    VoteRequest,
)
from tests.core.harness import A, B, C, Cluster, D, E, Node
from tests.core.test_changes import DISK, group, names
from tests.core.test_sick_disk import pass_time

WAIT = 120
OPTIONS = RaftOptions(preferred_after_ticks=WAIT)
ASKS = (AppendRequest, HeartbeatRequest, PreVoteRequest, VoteRequest)


def preferring(node: NodeId | None, *voters: NodeId, learners: tuple[NodeId, ...] = ()) -> Cluster:
    """A group that A leads, which has just been told whom to prefer."""
    cluster = Cluster(*(voters or (A, B, C)), *learners, options=OPTIONS, learners=learners)
    leader = cluster.elect(A)
    cluster.deliver()
    leader.change(replace(cluster.configuration, preferred=node))
    cluster.deliver()
    return cluster


def begun(node: Node) -> list[HandOverBegun]:
    return [event for event in node.events if isinstance(event, HandOverBegun)]


def test_preferred_member_is_handed_leadership_once_and_keeps_it() -> None:
    cluster = preferring(B)
    assert pass_time(cluster, WAIT - 10) == [A], "not before it has been well for so long"
    assert pass_time(cluster, 40) == [A, B]
    assert begun(cluster[A]) == [HandOverBegun(B, "it is preferred")]
    assert TransferEnded(B, "done") in cluster[A].events
    assert pass_time(cluster, 5 * WAIT) == [B]


@pytest.mark.parametrize("preferred", [None, A])
def test_nobody_moves_where_nobody_is_preferred_or_who_leads_is(preferred: NodeId | None) -> None:
    cluster = preferring(preferred)
    assert pass_time(cluster, 5 * WAIT) == [A]
    assert begun(cluster[A]) == []


def test_wait_begins_anew_when_it_isnt_well() -> None:
    """Its disk is full for a moment: what it takes is a while without one."""
    cluster = preferring(B)
    pass_time(cluster, WAIT - 10)
    pass_time(cluster, 10, B)
    assert pass_time(cluster, WAIT - 10) == [A]
    assert pass_time(cluster, 40)[-1] == B


def test_member_without_room_is_not_preferred() -> None:
    cluster = preferring(B)
    assert pass_time(cluster, 5 * WAIT, B) == [A]
    assert begun(cluster[A]) == []


def test_member_that_lags_is_not_preferred() -> None:
    cluster = preferring(B)
    cluster[B].writes_complete = False
    cluster[A].propose()
    assert pass_time(cluster, 3 * WAIT) == [A]


def test_member_that_is_away_keeps_nobody_from_leading_and_gets_it_when_it_is_back() -> None:
    cluster = preferring(B)
    cluster.isolate(B)
    assert pass_time(cluster, 3 * WAIT) == [A]
    cluster.heal()
    assert pass_time(cluster, WAIT - 20) == [A]
    assert pass_time(cluster, 60)[-1] == B


def test_leader_with_a_sick_disk_hands_over_to_it_first() -> None:
    """Of those that are well; before the time for a preference alone has come."""
    cluster = preferring(C, A, B, C, D, E)
    led = pass_time(cluster, OPTIONS.hand_over_interval_ticks + 10, A)
    assert led == [A, C]


def test_hand_over_without_a_target_is_to_it() -> None:
    cluster = preferring(C, A, B, C, D, E)
    cluster[A].core.transfer_leadership(None)
    pass_time(cluster, 10)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node_id == C


def test_tries_that_fail_come_ever_less_often() -> None:
    """It is well, and never elected: what tells it to campaign gets lost."""
    cluster = preferring(B)
    tries: list[int] = []
    for tick in range(16 * WAIT):
        before = len(begun(cluster[A]))
        for node in cluster.nodes.values():
            cluster.network += node.tick()
        cluster.deliver(lambda message: not isinstance(message, TimeoutNow))
        if len(begun(cluster[A])) > before:
            tries.append(tick)
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) == 4, tries
    assert gaps == [2 * WAIT, 4 * WAIT, 8 * WAIT]


def test_tries_that_end_leadership_come_ever_less_often() -> None:
    """It hears and answers, and its own requests reach nobody: it is well, it campaigns when it is
    told to, and its later term ends the leadership that told it."""
    cluster = preferring(B)
    tries: dict[NodeId, list[int]] = {A: [], C: []}
    for tick in range(40 * WAIT):
        told = {name: len(begun(cluster[name])) for name in tries}
        for node in cluster.nodes.values():
            cluster.network += node.tick()
        cluster.deliver(lambda message: message.sender != B or not isinstance(message, ASKS))
        for name, before in told.items():
            tries[name] += [tick] * (len(begun(cluster[name])) - before)
    assert cluster[A].term > 2, "its campaigns are heard of"
    assert max(map(len, tries.values())) > 2
    for each in tries.values():
        gaps = [later - earlier for earlier, later in pairwise(each)]
        assert all(gap >= 2 * WAIT << at for at, gap in enumerate(gaps)), tries


def test_member_that_has_led_is_tried_as_soon_as_at_first() -> None:
    """What it couldn't take before it can by now."""
    cluster = preferring(B)
    for _ in range(4 * WAIT):
        for node in cluster.nodes.values():
            cluster.network += node.tick()
        cluster.deliver(lambda message: not isinstance(message, TimeoutNow))
    assert len(begun(cluster[A])) == 2
    cluster.elect(B)
    cluster.elect(A)
    assert pass_time(cluster, WAIT + 40) == [A, B]


def test_another_preference_begins_anew() -> None:
    cluster = preferring(B)
    pass_time(cluster, WAIT - 10)
    cluster[A].change(replace(cluster.configuration, preferred=C))
    cluster.deliver()
    assert pass_time(cluster, WAIT - 10) == [A]
    assert pass_time(cluster, 40)[-1] == C


def test_learner_is_not_handed_leadership() -> None:
    """It may be preferred, from when it voted: it gets it when it votes again."""
    cluster = preferring(D, A, B, C, learners=(D,))
    assert pass_time(cluster, 3 * WAIT) == [A]
    assert begun(cluster[A]) == []


def test_only_a_voter_can_be_preferred() -> None:
    present = replace(group(A, B, C, observers=(D,)), preferred=C)
    assert planned(present, Change(prefer=B)).preferred == B
    assert planned(present, Change(prefer="")).preferred is None
    assert planned(present, Change()).preferred == C
    assert is_so(present, Change(prefer=C))
    for name in (D, E):
        with pytest.raises(BrokerError, match="only who votes can lead"):
            planned(present, Change(prefer=name))
    with pytest.raises(BrokerError, match="only who votes"):
        planned(present, Change(prefer=C, demote=names(C)))


def test_preference_goes_with_the_member_and_stays_with_its_next_disk() -> None:
    present = replace(group(A, B, C, D, E), preferred=C)
    assert with_disk(present, C, DISK[A]).preferred == C
    assert without(present, [C]).preferred is None
    jointly = without(present, [C, D])
    assert jointly.preferred == C, "it is a member until the joint configuration is left"
    assert left(jointly).preferred is None


def test_preference_travels_and_costs_nothing_where_there_is_none() -> None:
    plain = group(A, B, C)
    preferred = replace(plain, preferred=B)
    assert decode_configuration(encode_configuration(preferred)) == preferred
    assert decode_configuration(encode_configuration(plain)) == plain
    content = encode_configuration(plain).SerializeToString()
    assert encode_configuration(preferred).SerializeToString().startswith(content)


def test_stranger_that_is_preferred_is_refused() -> None:
    """By who is sent the entry (ADR 19): no leader writes that."""
    cluster = Cluster()
    cluster.elect(A)
    follower = cluster[B]
    wanted = Configuration(frozenset({A, B, C}), preferred=D)
    last, term = follower.core.last_index, follower.core.term
    entry = EntryMeta(Index(last + 1), Term(term), 100, EntryKind.CONFIGURATION, wanted)
    message = AppendRequest(A, B, term, last, term, (entry,), Index(0))
    with pytest.raises(MessageRefused, match="preferred"):
        follower.core.step(message)
