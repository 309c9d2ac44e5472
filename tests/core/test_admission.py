"""What a peer may say: ranges one by one, and then anything at all in every role."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dledger.core import (
    MAX_INDEX,
    MAX_TERM,
    AppendRequest,
    AppendResponse,
    CampaignReason,
    Configuration,
    Contradiction,
    EntryKind,
    EntryMeta,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    InvariantViolation,
    MessageRefused,
    NodeId,
    PreVoteRequest,
    PreVoteResponse,
    ProposalRefused,
    Raft,
    ReadReady,
    Role,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.core.admission import TERMS_PER_TICK
from tests.core.harness import A, B, C, Cluster, Node, describe, entries_of
from tests.core.test_chaos import Storm
from tests.scale import examples

THREE = Configuration(frozenset({A, B, C}))
NOBODY = Configuration(frozenset())
TOP = 1 << 64


def follower() -> Node:
    """Of B in term 5, with three entries of term 4 committed and one of term 5 that isn't."""
    node = Node(A, THREE, entries=entries_of(4, 4, 4), term=5)
    node.start(commit_index=Index(3))
    node.step(append(5, 3, 4, 5))
    return node


def leader() -> Node:
    """Of term 1, with its no-op and one more entry, and heartbeat rounds sent."""
    cluster = Cluster()
    node = cluster.elect(A)
    node.propose()
    cluster.tick(20)
    assert (node.term, node.last_index, node.commit_index) == (1, 2, 2)
    return node


def append(term: int, prev: int, prev_term: int, *terms: int, commit: int = 0) -> AppendRequest:
    entries = tuple(entries_of(*terms, first=prev + 1))
    return AppendRequest(B, A, Term(term), Index(prev), Term(prev_term), entries, Index(commit))


def ack(term: int, match: int, *, accepted: bool = True, **hints: int) -> AppendResponse:
    return AppendResponse(B, A, Term(term), accepted, Index(match), **hints)  # type: ignore[arg-type]


def refuse(rejected: int, conflict_term: int, first: int, last: int) -> AppendResponse:
    return ack(
        1,
        0,
        accepted=False,
        rejected_prev_index=rejected,
        conflict_term=conflict_term,
        conflict_first_index=first,
        last_index=last,
    )


def entry(index: int, term: int, **changes: object) -> EntryMeta:
    return EntryMeta(Index(index), Term(term), 100)._replace(**changes)  # type: ignore[arg-type]


def with_entry(one: EntryMeta) -> AppendRequest:
    return AppendRequest(B, A, Term(5), Index(4), Term(5), (one,), Index(0))


def is_refused(node: Node, message: IncomingMessage) -> MessageRefused:
    """`message` is refused, and nothing at all has changed or is said."""
    before, disk = node.core.statistics(), list(node.disk)
    with pytest.raises(MessageRefused) as caught:
        node.step(message)
    assert node.core.statistics() == before
    assert not node.core.has_effects()
    assert (node.disk, node.outstanding) == (disk, type(node.outstanding)())
    assert caught.value.peer == message.sender
    return caught.value


ALL_AT = (
    lambda term: PreVoteRequest(B, A, term, Index(0), Term(0)),
    lambda term: PreVoteResponse(B, A, term, False),
    lambda term: VoteRequest(B, A, term, Index(0), Term(0)),
    lambda term: VoteResponse(B, A, term, False),
    lambda term: append(term, 0, 0),
    lambda term: ack(term, 0, accepted=False),
    lambda term: HeartbeatRequest(B, A, term, Index(0)),
    lambda term: HeartbeatResponse(B, A, term),
    lambda term: TimeoutNow(B, A, term),
)


@pytest.mark.parametrize("make", ALL_AT, ids=lambda make: type(make(Term(1))).__name__)
@pytest.mark.parametrize("term", [TOP - 1, 1 << 63, MAX_TERM + 1, MAX_TERM, 5 + (1 << 40), -1])
def test_terms_that_no_group_reaches_are_refused(
    make: Callable[[Term], IncomingMessage], term: int
) -> None:
    """In every message, and before the term is adopted or saved."""
    is_refused(follower(), make(Term(term)))
    is_refused(leader(), make(Term(term)))


def test_a_term_may_rise_by_a_million_for_each_tick_lived() -> None:
    """The messages of others take a node no further; its own elections don't count."""
    node = Node(A, THREE)
    reach = TERMS_PER_TICK
    is_refused(node, VoteResponse(B, A, Term(reach + 1), False))
    node.step(VoteResponse(B, A, Term(reach), False))
    assert node.term == reach
    is_refused(node, VoteResponse(B, A, Term(reach + 1), False))
    node.tick()
    is_refused(node, HeartbeatResponse(B, A, Term(2 * reach + 1)))
    node.step(HeartbeatResponse(B, A, Term(2 * reach)))
    assert node.term == node.disk_hard_state.term == 2 * reach


def test_who_was_away_for_long_is_let_in_after_a_while() -> None:
    """A bound that nobody could ever pass would shut out for good who fell behind it."""
    node = Node(A, THREE)
    far = append(40 * TERMS_PER_TICK, 0, 0)
    for _ in range(39):
        is_refused(node, far)
        node.tick()
        node.core.take_effects()
        node.lose_trust(0)
    node.step(far)
    assert node.term == 40 * TERMS_PER_TICK


def test_nobody_campaigns_beyond_the_last_term() -> None:
    """A node that was taken there stays a follower, and doesn't come back from beyond."""
    node = Node(A, THREE, term=MAX_TERM)
    node.tick(300)
    assert (node.core.role, node.term) == (Role.FOLLOWER, MAX_TERM)
    with pytest.raises(InvariantViolation):
        Raft(
            A,
            THREE,
            view=node,
            rng=random.Random(1),
            hard_state=HardState(Term(MAX_TERM + 1)),
        )


@pytest.mark.parametrize(
    "message",
    [
        append(5, TOP - 1, 5),
        append(5, MAX_INDEX, 5, 5),
        append(5, 4, 6),
        append(5, 4, TOP - 1),
        append(5, 0, 4),
        append(5, 4, 0),
        append(5, 4, 5, 6),
        append(5, 4, 5, 4),
        append(5, 4, 5, 5, commit=TOP - 1),
        append(5, 4, 5, 5, commit=MAX_INDEX + 1),
        with_entry(entry(6, 5)),
        with_entry(entry(5, 0)),
        with_entry(entry(5, 5, size=0)),
        with_entry(entry(5, 5, kind=EntryKind.CONFIGURATION)),
        with_entry(entry(5, 5, configuration=THREE)),
        with_entry(entry(5, 5, kind=EntryKind.CONFIGURATION, configuration=NOBODY)),
        HeartbeatRequest(B, A, Term(5), Index(TOP - 1)),
        HeartbeatRequest(B, A, Term(5), Index(0), TOP - 1),
        PreVoteRequest(B, A, Term(6), Index(TOP - 1), Term(5)),
        PreVoteRequest(B, A, Term(6), Index(5), Term(6)),
        VoteRequest(B, A, Term(6), Index(TOP - 1), Term(5)),
        VoteRequest(B, A, Term(6), Index(5), Term(6)),
        VoteRequest(B, A, Term(6), Index(0), Term(5)),
        VoteRequest(B, A, Term(6), Index(5), Term(0)),
        VoteRequest(A, A, Term(6), Index(5), Term(5)),
        VoteRequest(NodeId(""), A, Term(6), Index(5), Term(5)),
        PreVoteResponse(B, A, Term(7), True),
        VoteResponse(B, A, Term(6), True),
        ack(6, 1),
        TimeoutNow(B, A, Term(6)),
    ],
    ids=describe,
)  # fmt: skip
def test_follower_refuses_what_no_peer_can_say(message: IncomingMessage) -> None:
    """Indexes, terms, counts and claims out of range: nothing changes, nothing is said."""
    assert not isinstance(is_refused(follower(), message), Contradiction)


@pytest.mark.parametrize(
    "message",
    [
        append(5, 3, 5),
        append(5, 1, 4, 5),
        append(5, 4, 4),
        append(5, 3, 4, 4),
        append(6, 3, 5),
        append(6, 2, 3),
        append(6, 2, 4, 5),
        HeartbeatRequest(C, A, Term(5), Index(0)),
        TimeoutNow(C, A, Term(5)),
    ],
    ids=describe,
)
def test_follower_takes_a_contradiction_for_an_alarm(message: IncomingMessage) -> None:
    """What is committed, or was shown by the leader of this term, isn't disputed by a peer's word;
    the leader of the term isn't another one."""
    assert isinstance(is_refused(follower(), message), Contradiction)


@pytest.mark.parametrize(
    "message",
    [
        append(4, 3, 3),  # a deposed leader may hold what was never committed
        append(4, 1, 3, 3),
        append(6, 4, 4),  # and so may a new one's predecessor
        append(6, 3, 4, 6),
        append(5, 3, 4, 5, 5, commit=1000),
        append(5, 1000, 5),
        HeartbeatRequest(C, A, Term(4), Index(0)),
        HeartbeatRequest(C, A, Term(6), Index(1000), 1 << 40),
        TimeoutNow(C, A, Term(4)),
        PreVoteResponse(B, A, Term(3), True),
        VoteResponse(B, A, Term(6), False),
        ack(4, 1000),
        VoteRequest(C, A, Term(6), Index(1000), Term(1)),
    ],
    ids=describe,
)
def test_follower_bears_what_a_genuine_peer_can_say(message: IncomingMessage) -> None:
    """Late, repeated, of an older leader or of one that is far ahead. What is committed stays as it
    is, no term is forgotten, and a later leader that has the same log is followed."""
    node = follower()
    committed, log = node.commit_index, list(node.log)
    node.step(message)
    assert node.log[:committed] == log[:committed]
    assert node.commit_index >= committed
    assert node.term >= 5
    end = len(node.log)
    node.step(append(9, end, node.log[-1].term, 9, commit=end + 1))
    assert (node.core.leader, node.term) == (B, 9)
    assert (node.last_index, node.commit_index) == (end + 1, end + 1)


@pytest.mark.parametrize(
    "message",
    [
        ack(1, 3),
        ack(1, TOP - 1),
        ack(1, 2, last_index=2),
        ack(2, 1),
        ack(1, 1, accepted=False),
        refuse(3, 0, 1, 0),
        refuse(TOP - 1, 0, 1, 0),
        refuse(2, 2, 1, 1),
        refuse(2, 1, 3, 3),
        refuse(2, 1, 0, 3),
        refuse(2, 0, 9, 3),
        refuse(2, 0, 1, TOP - 1),
        HeartbeatResponse(B, A, Term(1), 1000),
        HeartbeatResponse(B, A, Term(1), TOP - 1),
        HeartbeatResponse(B, A, Term(1), 0, Index(TOP - 1)),
    ],
    ids=describe,
)
def test_leader_refuses_what_no_follower_can_say(message: IncomingMessage) -> None:
    """An acknowledgement beyond the log, an answer to a round that has not begun."""
    assert not isinstance(is_refused(leader(), message), Contradiction)


@pytest.mark.parametrize(
    "message",
    [append(1, 0, 0), HeartbeatRequest(B, A, Term(1), Index(0)), TimeoutNow(B, A, Term(1))],
    ids=describe,
)
def test_leader_refuses_another_leader_of_its_term(message: IncomingMessage) -> None:
    """It leads itself: who says the same lies, or the election went wrong."""
    assert isinstance(is_refused(leader(), message), Contradiction)


def test_answer_to_an_old_term_is_no_lie_to_the_leader_of_the_next() -> None:
    """A deposed leader's append is answered in the new term. Should it lead that term by then, cut
    shorter than what it had asked about, the answer must not read like one about its log."""
    deposed = Node(B, THREE, term=5)
    deposed.start()
    request = AppendRequest(A, B, Term(3), Index(1_000), Term(3), (), Index(0))
    (answer,) = deposed.step(request)
    assert isinstance(answer, AppendResponse)
    assert (answer.term, answer.accepted) == (5, False)
    its_next_leader = leader()
    its_next_leader.step(replace(answer, term=Term(its_next_leader.term)))


def test_answer_from_the_future_confirms_no_read() -> None:
    """Believed, it would confirm every read to come without a majority being asked."""
    cluster = Cluster()
    node = cluster.elect(A)
    cluster.isolate(A)
    for peer in (B, C):
        with suppress(MessageRefused):
            node.step(HeartbeatResponse(peer, A, Term(1), 10_000))
    cluster.read(A)
    cluster.collect()
    assert not [read for read in node.reads if isinstance(read, ReadReady)]


def test_only_the_leader_hands_over() -> None:
    """A node that knows no leader of its term takes nobody's word for it."""
    node = Node(A, THREE, term=5)
    node.step(TimeoutNow(B, A, Term(5)))
    assert (node.core.role, node.term) == (Role.FOLLOWER, 5)
    node.step(HeartbeatRequest(B, A, Term(5), Index(0)))
    node.step(TimeoutNow(B, A, Term(5)))
    assert (node.core.role, node.term) == (Role.CANDIDATE, 6)


# --- anything at all ----------------------------------------------------------------------------

SMALL = st.integers(0, 12)
ABSURD = st.sampled_from(
    [MAX_INDEX, MAX_INDEX + 1, (1 << 63) - 1, 1 << 63, TOP - 2, TOP - 1, 1 << 32, 1 << 20, -1]
)
NUMBERS = st.one_of(SMALL, SMALL, ABSURD, st.integers(0, TOP - 1))
NAMES = st.sampled_from([A, B, C, NodeId("Z"), NodeId("")])
CONFIGURATIONS = st.sampled_from([None, None, None, THREE, NOBODY])


@st.composite
def messages(draw: st.DrawFn) -> IncomingMessage:
    """A message to A with arbitrary values in all its fields."""
    sender, term = draw(NAMES), Term(draw(NUMBERS))

    def number() -> int:
        return draw(NUMBERS)

    def index() -> Index:
        return Index(number())

    def a_term() -> Term:
        return Term(number())

    entries = tuple(
        EntryMeta(index(), a_term(), number(), draw(st.sampled_from(EntryKind)), configuration)
        for configuration in draw(st.lists(CONFIGURATIONS, max_size=3))
    )
    reason = draw(st.sampled_from(CampaignReason))
    is_true = draw(st.booleans())
    hint = (index(), a_term(), index(), index())
    candidates: list[IncomingMessage] = [
        PreVoteRequest(sender, A, term, index(), a_term()),
        PreVoteResponse(sender, A, term, is_true),
        VoteRequest(sender, A, term, index(), a_term(), reason),
        VoteResponse(sender, A, term, is_true),
        AppendRequest(sender, A, term, index(), a_term(), entries, index()),
        AppendResponse(sender, A, term, is_true, index(), *hint),
        HeartbeatRequest(sender, A, term, index(), number()),
        HeartbeatResponse(sender, A, term, number(), index(), is_true),
        TimeoutNow(sender, A, term),
    ]
    return draw(st.sampled_from(candidates))


def in_role(role: Role) -> Node:
    """A node of `role` with something in its log."""
    if role is Role.LEADER:
        return leader()
    node = follower()
    node.lose_trust()
    if role is not Role.FOLLOWER:
        node.tick(31)
    if role is Role.CANDIDATE:
        node.step(PreVoteResponse(B, A, Term(node.term + 1), True))
    assert node.core.role is role
    return node


RELAXED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
@settings(RELAXED, max_examples=examples(200))
@given(heard=st.lists(messages(), min_size=1, max_size=4))
@example(heard=[VoteRequest(B, A, Term(TOP - 1), Index(0), Term(0))])
def test_core_survives_whatever_it_hears(role: Role, heard: list[IncomingMessage]) -> None:
    """In every role: a message is taken or refused whole, and no absurd term is ever saved."""
    node = in_role(role)
    for message in heard:
        before = node.core.statistics()
        try:
            node.step(message)
        except MessageRefused:
            assert node.core.statistics() == before
            assert not node.core.has_effects()
        node.tick()
        assert node.disk_hard_state.term <= node.term <= 6 + TERMS_PER_TICK * 1_000
        assert node.commit_index <= node.last_index
        assert node.last_index == len(node.log) < 100
    with suppress(ProposalRefused):
        node.propose()
    node.tick(40)


class LyingStorm(Storm):
    """A storm in which one member's messages arrive with absurd numbers in them. What is in range
    and false is not in it: Raft believes its members so far."""

    def __init__(self, names: tuple[NodeId, ...], seed: int, liar: NodeId) -> None:
        super().__init__(names, seed)
        self.liar = liar
        self.lies = random.Random(f"{seed}/lies")
        self.refused = 0

    def act(self, what: int, rng: random.Random) -> None:
        network = self.cluster.network
        said = [at for at, message in enumerate(network) if message.sender == self.liar]
        if said and self.lies.random() < 0.5:
            self._lie(network.pop(self.lies.choice(said)))
        super().act(what, rng)

    def _lie(self, message: IncomingMessage) -> None:
        """One number of `message` is far out of range on its way."""
        numbers = [
            name for name in message.__dataclass_fields__ if type(getattr(message, name)) is int
        ]
        values = {name: getattr(message, name) for name in message.__dataclass_fields__}
        field = self.lies.choice(numbers)
        values[field] = self.lies.choice((MAX_INDEX + 1, 1 << 63, TOP - 1))
        receiver = self.cluster[message.to]
        if not receiver.is_running:
            return
        with pytest.raises(MessageRefused):
            receiver.step(type(message)(**values))
        self.refused += 1


@settings(RELAXED, max_examples=examples(60))
@given(seed=st.integers(0, 2**32), liar=st.sampled_from([A, B, C]))
def test_a_lying_member_harms_nobody(seed: int, liar: NodeId) -> None:
    """Every lie is refused, every invariant holds, and the group recovers."""
    storm = LyingStorm((A, B, C), seed, liar)
    storm.run(random.Random(seed), 1000)
    storm.calm_down()


def test_lying_members_do_lie() -> None:
    """The property above is no idle noise."""
    refused = 0
    for seed in range(5):
        storm = LyingStorm((A, B, C), seed, B)
        storm.run(random.Random(seed), 1000)
        refused += storm.refused
    assert refused > 50
