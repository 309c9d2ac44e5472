"""A leader whose log begins later, and followers that need what is before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.core import (
    AppendRequest,
    AppendResponse,
    Configuration,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    InvariantViolation,
    LogBase,
    MessageRefused,
    Role,
    SnapshotOffer,
    TargetUnfit,
    Term,
    TimeoutNow,
    UnknownEntry,
)
from dledger.core.errors import Contradiction
from dledger.core.progress import PeerState
from dledger.core.types import ConfigurationPlace
from tests.core.harness import A, B, C, Node, entries_of
from tests.core.test_replication import THREE, connected

PLACE = ConfigurationPlace(Term(1), Index(1))


def base_at(index: int, term: int = 1) -> LogBase:
    return LogBase(Index(index), Term(term), 7, 1_000, 4_000, PLACE, THREE)


def offer(index: int, term: int = 1, *, of_term: int = 1) -> SnapshotOffer:
    return SnapshotOffer(B, A, Term(of_term), base_at(index, term))


def leader(base: int = 4) -> Node:
    """A, with entries 1 to 6 committed and durable, whose log begins behind `base`; C has nothing
    that anybody knows of."""
    node = connected(Node(A, THREE))
    for _ in range(5):
        node.propose()
    node.pump()
    node.step(AppendResponse(B, A, Term(1), True, Index(6)))
    assert node.core.commit_index == 6
    node.core.begin_at(base_at(base))
    node.pump()
    return node


def refusal(last: int = 0) -> AppendResponse:
    """C's log ends with `last`."""
    return AppendResponse(
        C,
        A,
        Term(1),
        False,
        rejected_prev_index=Index(6),
        conflict_first_index=Index(last + 1),
        last_index=Index(last),
    )


def state_of(node: Node) -> str:
    return node.core.statistics().peers[C].state


def offers(sent: list[IncomingMessage]) -> list[SnapshotOffer]:
    return [each for each in sent if isinstance(each, SnapshotOffer) and each.to == C]


def beat(node: Node) -> list[IncomingMessage]:
    """One heartbeat round, answered by C, whose log is empty."""
    sent = node.tick(5)
    (asked,) = [m for m in sent if isinstance(m, HeartbeatRequest) and m.to == C]
    return sent + node.step(HeartbeatResponse(C, A, Term(1), asked.read_context))


def test_s45_who_needs_what_is_gone_is_offered_the_base() -> None:
    """And sent no entries before it has said that it has that."""
    node = leader()
    sent = []
    for _ in range(8):
        sent += beat(node)
    assert state_of(node) == "snapshot"
    assert [each.base.index for each in offers(sent)][:1] == [4]
    assert not [m for m in sent if isinstance(m, AppendRequest) and m.to == C and m.prev_index < 4]
    sent = node.step(AppendResponse(C, A, Term(1), True, Index(4)))
    assert state_of(node) == "replicate"
    (append,) = [m for m in sent if isinstance(m, AppendRequest) and m.to == C]
    assert (append.prev_index, [e.index for e in append.entries]) == (4, [5, 6])


@pytest.mark.parametrize("last", [0, 2, 3])
def test_s45_whose_next_entry_is_the_base_itself_needs_the_base(last: int) -> None:
    """Nobody can say any more what is before that one."""
    node = leader()
    node.core.peer_unreachable(C)
    node.pump()
    node.step(replace(refusal(last), rejected_prev_index=Index(1)))
    for _ in range(4):
        beat(node)
    node.step(replace(refusal(last), rejected_prev_index=Index(6)))
    node.core._state.peers[C].become_probe(Index(last + 1))
    node.core._state.appends_due = True
    assert len(offers(node.pump())) == 1
    assert state_of(node) == "snapshot"


def test_s46_an_offer_is_repeated_and_not_with_every_heartbeat() -> None:
    node = leader()
    counts = [len(offers(beat(node))) for _ in range(24)]
    assert 4 <= sum(counts) <= 8
    assert max(counts) == 1


def test_s46_a_new_stream_is_probed_behind_the_base() -> None:
    """Who was offered it may come back with it; who comes back without is offered it again."""
    node = leader()
    for _ in range(8):
        beat(node)
    node.core.peer_unreachable(C)
    (probe,) = [m for m in node.pump() if isinstance(m, AppendRequest) and m.to == C]
    assert (probe.prev_index, state_of(node)) == (4, "probe")
    answer = replace(refusal(), rejected_prev_index=Index(4))
    assert len(offers(node.step(answer))) == 1
    assert state_of(node) == "snapshot"


def test_s47_an_offer_that_is_older_than_the_commit_index_is_acknowledged() -> None:
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1), term=1)
    node.start(commit_index=Index(4))
    (answer,) = node.step(offer(3))
    assert isinstance(answer, AppendResponse)
    assert (answer.accepted, answer.match_index) == (True, 4)
    assert node.offers == []


def test_s47_who_has_the_entry_needs_no_snapshot() -> None:
    """It is committed: its leader says so."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1), term=1)
    (answer,) = node.step(offer(3))
    assert isinstance(answer, AppendResponse)
    assert (answer.accepted, answer.match_index, node.core.commit_index) == (True, 3, 3)
    assert node.offers == []


def test_s45_who_has_another_entry_there_or_none_wants_it() -> None:
    for entries in (entries_of(1, 1), entries_of(1, 1, 1, 1, 1)):
        node = Node(A, THREE, entries=entries, term=2)
        assert node.step(offer(4, term=2, of_term=2)) == []
        assert [each.base.index for each in node.offers] == [4]
        assert node.core.needs(node.offers[0])


def test_s48_two_bases_in_a_row() -> None:
    """The later one is offered from then on; a late acknowledgement of the first isn't enough."""
    node = leader(3)
    for _ in range(8):
        beat(node)
    node.core.begin_at(base_at(5))
    node.step(AppendResponse(C, A, Term(1), True, Index(3)))
    assert state_of(node) == "snapshot"
    sent: list[IncomingMessage] = []
    for _ in range(6):
        sent += beat(node)
    assert {each.base.index for each in offers(sent)} == {5}
    node.step(AppendResponse(C, A, Term(1), True, Index(5)))
    assert state_of(node) == "replicate"


def test_s49_nobody_begins_anew_who_has_it_leads_or_is_of_a_term_that_may_be_lost() -> None:
    node = Node(A, THREE, entries=entries_of(1, 1), term=1)
    wanted = offer(4)
    assert node.core.needs(wanted)
    assert not node.core.needs(offer(4, term=2)), "its term would be older than its log's"
    assert not node.core.needs(offer(2)), "it has that"
    node.writes_complete = False
    node.step(HeartbeatRequest(B, A, Term(3), Index(0)))
    assert not node.core.needs(wanted), "a crash would forget the term"
    node.complete_writes()
    assert node.core.needs(wanted)
    alone = Node(A, Configuration(frozenset({A})), entries=entries_of(1), term=1)
    alone.tick(40)
    assert alone.core.role is Role.LEADER
    assert not alone.core.needs(wanted)


def test_what_is_before_the_base_is_nobodys_business() -> None:
    node = leader()
    assert node.core.term_at(Index(4)) == 1
    with pytest.raises(UnknownEntry):
        node.core.term_at(Index(3))
    assert node.core.configuration == THREE
    assert node.core.configuration_place == PLACE


def test_leader_that_stops_asks_for_nothing_that_its_log_has_let_go_of() -> None:
    """C is streamed to, and lacks what is gone: B is handed over to."""
    node = connected(Node(A, THREE))
    for _ in range(5):
        node.propose()
    node.pump()
    node.step(AppendResponse(B, A, Term(1), True, Index(6)))
    node.step(AppendResponse(C, A, Term(1), True, Index(2)))
    assert state_of(node) == PeerState.REPLICATE.value
    node.core.begin_at(base_at(4))
    node.core.transfer_leadership(None)
    assert [each.to for each in node.pump() if isinstance(each, TimeoutNow)] == [B]


def test_leadership_is_not_handed_to_who_lacks_what_is_gone() -> None:
    """It is to be given a whole state first, which takes longer than a transfer may."""
    node = connected(Node(A, THREE))
    for _ in range(5):
        node.propose()
    node.pump()
    node.step(AppendResponse(B, A, Term(1), True, Index(6)))
    node.step(AppendResponse(C, A, Term(1), True, Index(2)))
    node.core.begin_at(base_at(4))
    with pytest.raises(TargetUnfit, match="C lacks 4 entries"):
        node.core.transfer_leadership(C)
    node = leader()
    for _ in range(4):
        beat(node)
    assert state_of(node) == PeerState.SNAPSHOT.value
    with pytest.raises(TargetUnfit, match="C is being given a whole state"):
        node.core.transfer_leadership(C)


def test_a_follower_that_begins_later_takes_appends_from_before() -> None:
    """Of a leader whose log begins earlier: what both know is compared, what is gone is not."""
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1), term=1)
    node.start(commit_index=Index(4))
    node.core.begin_at(base_at(3))
    append = AppendRequest(
        B, A, Term(2), Index(1), Term(1), tuple(entries_of(1, 1, 1, 2, first=2)), Index(0)
    )
    (answer,) = node.step(append)
    assert isinstance(answer, AppendResponse)
    assert (answer.accepted, answer.match_index) == (True, 5)
    with pytest.raises(Contradiction):
        node.step(replace(append, entries=tuple(entries_of(1, 1, 2, 2, first=2))))


@pytest.mark.parametrize("index", [0, 3, 5, 7])
def test_a_log_begins_behind_what_is_settled_only(index: int) -> None:
    node = Node(A, THREE, entries=entries_of(1, 1, 1, 1, 1, 1), term=1)
    node.start(commit_index=Index(4))
    node.core.begin_at(base_at(3))
    with pytest.raises(InvariantViolation):
        node.core.begin_at(base_at(index))


NONSENSE = (
    replace(base_at(4), index=Index(0)),
    replace(base_at(4), index=Index(1 << 62)),
    replace(base_at(4), term=Term(0)),
    replace(base_at(4), term=Term(9)),
    replace(base_at(4), append_time_ms=1 << 60),
    replace(base_at(4), end_offset=0),
    replace(base_at(4), end_offset=1 << 62),
    replace(base_at(4), place=ConfigurationPlace(Term(1), Index(5))),
    replace(base_at(4), place=ConfigurationPlace(Term(2), Index(1))),
    replace(base_at(4), place=ConfigurationPlace()),
    replace(base_at(4), configuration=None),
    replace(base_at(4), configuration=Configuration(frozenset())),
)


@pytest.mark.parametrize("base", NONSENSE)
def test_offers_that_no_leader_makes_are_refused(base: LogBase) -> None:
    node = Node(A, THREE, entries=entries_of(1, 1), term=1)
    with pytest.raises(MessageRefused):
        node.step(SnapshotOffer(B, A, Term(1), base))
    assert node.offers == []


def test_an_offer_that_contradicts_what_is_settled_is_an_alarm() -> None:
    node = Node(A, THREE, entries=entries_of(1, 1, 2), term=2)
    node.start(commit_index=Index(3))
    with pytest.raises(Contradiction):
        node.step(offer(3, of_term=2))


def test_an_offer_of_another_leader_of_the_term_is_an_alarm() -> None:
    node = Node(A, THREE, entries=entries_of(1, 1), term=1)
    node.step(HeartbeatRequest(C, A, Term(1), Index(0)))
    with pytest.raises(Contradiction):
        node.step(offer(4))
