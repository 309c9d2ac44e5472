"""Who leads, concluded from views: each case a sentence."""

from __future__ import annotations

from dledger.client.group_epoch import FIRST_EPOCH, EpochName, epoch_in
from dledger.client.leader_view import LeaderBoard, Member, View, from_wire
from dledger.wire.cluster_pb2 import LeaderView

N1, N2, N3 = (Member(f"n{n}", f"h{n}:1") for n in (1, 2, 3))


def view(teller: Member, term: int, leader: Member | None, *, serving: bool = False) -> View:
    return View("g", teller.node_id, term, leader, serving, (N1, N2, N3))


def board(*views: View) -> LeaderBoard:
    result = LeaderBoard()
    for told in views:
        teller = next(m for m in (N1, N2, N3) if m.node_id == told.node_id)
        result.on_view(teller.address, told)
    return result


def test_only_the_leaders_own_word_is_a_go_ahead() -> None:
    """Followers know who was elected, not whether it serves."""
    told = board(view(N2, 3, N1), view(N3, 3, N1))
    assert told.serving_address() is None
    assert told.presumed() == N1
    told.on_view(N1.address, view(N1, 3, N1, serving=True))
    assert told.serving_address() == N1.address


def test_leader_of_an_older_term_is_not_sent_to() -> None:
    """A stopped leader goes on saying that it serves."""
    told = board(view(N1, 3, N1, serving=True), view(N2, 4, N2), view(N3, 4, N2))
    assert told.serving_address() is None
    assert told.leader() == (N2, 4)
    told.on_view(N2.address, view(N2, 4, N2, serving=True))
    assert told.serving_address() == N2.address


def test_candidate_without_a_leader_does_not_stop_the_leader() -> None:
    """It may be cut off from its group for good, in a term of its own."""
    told = board(view(N1, 3, N1, serving=True), view(N3, 9, None))
    assert told.serving_address() == N1.address


def test_leader_elected_again_is_not_deposed() -> None:
    """A newer term with the same leader."""
    told = board(view(N1, 3, N1, serving=True), view(N2, 4, N1))
    assert told.serving_address() == N1.address
    assert not told.is_deposed(N1.address)


def test_silent_leader_is_deposed_by_the_news_of_the_next() -> None:
    """What it was asked may never be answered."""
    told = board(view(N1, 3, N1, serving=True), view(N2, 4, N2))
    assert told.is_deposed(N1.address)
    assert not told.is_deposed(N2.address)


def test_node_that_knows_the_new_term_answers_for_itself() -> None:
    """It has stepped down and will tell its callers."""
    told = board(view(N1, 4, N2), view(N2, 4, N2))
    assert not told.is_deposed(N1.address)


def test_node_that_is_not_heard_is_deposed_by_another_leader() -> None:
    """Its watch broke before the election."""
    told = board(view(N2, 4, N2))
    assert told.is_deposed(N1.address)


def test_lost_view_counts_no_longer() -> None:
    """The leader's connection broke: it may be dead."""
    told = board(view(N1, 3, N1, serving=True), view(N2, 3, N1))
    told.on_lost(N1.address)
    assert told.serving_address() is None
    assert told.presumed() == N1


def test_hint_leads_until_a_view_of_its_term_does() -> None:
    """A refusal names the leader before any watch does."""
    told = board(view(N2, 3, N1))
    told.on_hint(5, N3)
    assert told.presumed() == N3
    told.on_hint(2, N2)
    assert told.presumed() == N3, "a hint older than what is known"
    told.on_view(N2.address, view(N2, 5, N2))
    assert told.presumed() == N2


def test_node_under_two_addresses_is_one_node() -> None:
    """A bootstrap name is seldom the address that the node gives."""
    told = LeaderBoard()
    told.on_view("alias:1", view(N1, 3, N1, serving=True))
    told.on_view(N2.address, view(N2, 4, N1))
    assert told.serving_address() == "alias:1"
    assert not told.is_deposed("alias:1")


def test_view_of_the_wire_without_a_leader() -> None:
    """Absent, not empty."""
    assert from_wire(LeaderView(broker_group="g", node_id="n1", term=3)).leader is None


A, B = (EpochName(1, letter * 16) for letter in (b"a", b"b"))


def of_epoch(teller: Member, epoch: EpochName, term: int = 3) -> View:
    """`teller` serves, and is of that epoch."""
    return View("g", teller.node_id, term, teller, True, (N1, N2, N3), epoch)


def test_what_was_said_before_a_recovery_counts_no_longer() -> None:
    """Whatever its term: those that were given up may elect whom they like (ADR 52)."""
    told = LeaderBoard()
    assert told.on_view(N1.address, of_epoch(N1, FIRST_EPOCH, term=9))
    told.on_hint(9, N2)
    assert told.on_view(N3.address, of_epoch(N3, A))
    assert told.epoch == A
    assert told.serving_address() == N3.address
    assert told.leader() == (N3, 3)
    assert told.is_deposed(N1.address)
    assert not told.on_view(N1.address, of_epoch(N1, FIRST_EPOCH, term=10))
    assert told.serving_address() == N3.address
    assert told.node_id(N1.address) == ""


def test_of_two_recoveries_the_one_that_was_heard_first_stays() -> None:
    """They are two groups; neither is newer."""
    told = LeaderBoard()
    told.on_view(N3.address, of_epoch(N3, A))
    assert not told.on_view(N2.address, of_epoch(N2, B, term=9))
    assert told.serving_address() == N3.address
    later = EpochName(2, B.recovery_id)
    assert told.on_view(N2.address, of_epoch(N2, later))
    assert told.serving_address() == N2.address


def test_who_lags_in_the_new_epoch_does_not_lead_back() -> None:
    """A node that is being taken in reads the log from its beginning."""
    told = LeaderBoard()
    told.on_view(N3.address, of_epoch(N3, A))
    assert not told.on_view(N1.address, of_epoch(N1, FIRST_EPOCH))
    assert told.on_view(N1.address, View("g", "n1", 3, N3, False, (N1, N3), A))
    assert told.node_id(N1.address) == "n1"


def test_an_epoch_without_an_id_is_none() -> None:
    """No working node says it; it mustn't make a client deaf."""
    told = LeaderView(broker_group="g", node_id="n1", term=3)
    assert from_wire(told).epoch == FIRST_EPOCH
    told.epoch.number = 7
    assert from_wire(told).epoch == FIRST_EPOCH
    told.epoch.recovery_id = b"r" * 16
    assert from_wire(told).epoch == EpochName(7, b"r" * 16)


def test_what_came_before_is_told_on_and_makes_no_other_epoch() -> None:
    """A node can say by it whether that one comes from its own. Who told of it first may be of an
    older release."""
    told = LeaderView(broker_group="g", node_id="n1", term=3)
    told.epoch.number, told.epoch.recovery_id = 2, B.recovery_id
    board, bare = LeaderBoard(), from_wire(told).epoch
    board.on_epoch(bare)
    assert len(board.epoch.metadata) == 1
    for wrong in ([b"a"], [A.recovery_id] * 2):
        told.epoch.earlier[:] = wrong
        assert from_wire(told).epoch.earlier == ()
    told.epoch.earlier[:] = [A.recovery_id]
    known = from_wire(told).epoch
    assert known == bare
    assert board.on_view(N2.address, of_epoch(N2, known))
    assert epoch_in(board.epoch.metadata).earlier == (A.recovery_id,)


def test_nothing_is_said_of_the_first_epoch() -> None:
    """Calls cost nothing before a group was ever recovered."""
    assert FIRST_EPOCH.metadata == ()
    ((key, value),) = A.metadata
    assert (key, value) == ("dledger-epoch-bin", b"\0\0\0\1" + b"a" * 16)
