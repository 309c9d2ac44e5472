"""What an want of the members, what that makes of them, and what he is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.changes import Change, NewMember, check_alone, check_enough, is_so, planned
from broker.leader.membership import Membership
from dledger.codec import configuration_bytes, decode_configuration, encode_configuration
from dledger.core import Raft
from dledger.core.group_epoch import GroupEpoch, Recovery
from dledger.core.types import Configuration, DiskId, Index, NodeId, Proposed
from dledger.peers import PeerLink
from dledger.wire import raft_pb2
from tests.core.harness import A, B, C, Cluster, D, E, Node

DISK = {node: DiskId(node.encode() * 16) for node in (A, B, C, D, E)}
AT = {node: f"10.0.0.{ord(node)}:7001" for node in DISK}


def group(*voters: NodeId, observers: tuple[NodeId, ...] = ()) -> Configuration:
    members = sorted((*voters, *observers))
    return Configuration(
        frozenset(voters),
        learners=frozenset(observers),
        observers=frozenset(observers),
        disks=tuple((node, DISK[node]) for node in members),
        addresses=tuple((node, AT[node]) for node in members),
    )


def new(node: NodeId, *, observes: bool = False) -> NewMember:
    return NewMember(node, DISK[node], AT[node], observes)


def names(*nodes: NodeId) -> frozenset[NodeId]:
    return frozenset(nodes)


def test_new_members_learn_first() -> None:
    wanted = planned(group(A), Change(add=(new(B), new(C, observes=True))))
    assert wanted.voters == {A}
    assert wanted.learners == {B, C}
    assert wanted.observers == {C}
    assert dict(wanted.addresses) == {node: AT[node] for node in (A, B, C)}
    assert is_so(wanted, Change(add=(new(B),)))


def test_one_goes_at_once_and_several_jointly() -> None:
    assert planned(group(A, B, C), Change(remove=names(C))) == group(A, B)
    two = planned(group(A, B, C, D, E), Change(remove=names(D, E)))
    assert two.voters == {A, B, C}
    assert two.voters_outgoing == {A, B, C, D, E}
    assert two.disk_of(E) == DISK[E], "it votes until the joint configuration is left"


def test_a_vote_is_given_to_another_in_one_step() -> None:
    present = group(A, B, C, observers=(D,))
    wanted = planned(present, Change(promote=names(D), remove=names(C)))
    assert wanted.voters == {A, B, D}
    assert wanted.voters_outgoing == {A, B, C}
    assert not wanted.learners
    put_down = planned(present, Change(promote=names(D), demote=names(C)))
    assert put_down.voters == {A, B, D}
    assert put_down.observers == {C}


def test_promoting_alone_calls_the_learner_to_catch_up() -> None:
    present = group(A, B, C, observers=(D,))
    wanted = planned(present, Change(promote=names(D)))
    assert wanted.voters == {A, B, C}
    assert wanted.learners == {D}
    assert not wanted.observers
    assert is_so(wanted, Change(promote=names(D)))
    assert planned(wanted, Change(demote=names(D))) == present
    assert planned(wanted, Change(remove=names(D))) == group(A, B, C)


def test_addresses_change() -> None:
    moved = NewMember(C, DISK[C], "10.9.9.9:7001")
    wanted = planned(group(A, B, C), Change(add=(moved,)))
    assert wanted == replace(wanted, voters=names(A, B, C))
    assert dict(wanted.addresses)[C] == "10.9.9.9:7001"


WRONG: dict[str, tuple[Change, str]] = {
    "unknown": (Change(remove=names(E)), "E is no member: A, B, C are"),
    "twice": (Change(remove=names(C), demote=names(C)), "somebody is named twice"),
    "nobody": (Change(demote=names(A, B, C)), "nobody would be left to vote"),
    "other disk": (Change(add=(NewMember(C, DISK[D], AT[C]),)), "member replace C"),
    "another's disk": (Change(add=(NewMember(D, DISK[C], AT[D]),)), "is that of C"),
    "no disk": (Change(add=(NewMember(D, DiskId(b""), AT[D]),)), "disk nothing of D is none"),
    "no address": (Change(add=(NewMember(D, DISK[D], ""),)), "D is found at host:port"),
    "no port": (Change(add=(NewMember(D, DISK[D], "d"),)), "'d' is none"),
    "no name": (Change(add=(NewMember(NodeId(""), DISK[D], AT[D]),)), "'' is none"),
    "a blank": (Change(add=(NewMember(NodeId("d d"), DISK[D], AT[D]),)), "1 to 64 characters"),
    "long": (Change(add=(NewMember(NodeId("d" * 65), DISK[D], AT[D]),)), "1 to 64 characters"),
    "address taken": (Change(add=(NewMember(D, DISK[D], AT[C]),)), "the address of C"),
    "votes already": (Change(add=(new(C, observes=True),)), "promote or demote"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str) -> None:
    change, text = WRONG[what]
    with pytest.raises(BrokerError, match=text) as refused:
        planned(group(A, B, C), change)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


def test_one_change_at_a_time_and_the_second_is_told_which() -> None:
    joint = planned(group(A, B, C, D, E), Change(remove=names(D, E)))
    pending = planned(group(A, B, C), Change(add=(new(D),)))
    wish = Change(add=(new(E),))
    for present, is_committed, text in (
        (joint, True, "from A, B, C, D, E as voters to A, B, C"),
        (pending, False, "to A, B, C as voters and D as learners"),
        (pending, True, "D is being taken in"),
    ):
        with pytest.raises(BrokerError, match=text) as refused:
            check_alone(present, wish, is_committed=is_committed)
        assert refused.value.code is ErrorCode.BUSY
    check_alone(pending, Change(remove=names(D)), is_committed=True)
    check_alone(group(A, observers=(B,)), wish, is_committed=True)


def test_a_change_needs_voters_that_answer() -> None:
    check_enough(group(A, B, C), names(A, B))
    with pytest.raises(BrokerError, match="B, C doesn't now"):
        check_enough(group(A, B, C), names(A))
    with pytest.raises(BrokerError):
        check_enough(planned(group(A, B, C, D, E), Change(remove=names(D, E))), names(A, B))


# --- the leader's part ------------------------------------------------------------------------


class Replication:
    """A driver that applies nothing by itself."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def core(self) -> Raft:
        return self.node.core

    @property
    def applied_index(self) -> Index:
        return self.core.commit_index

    def propose_configuration(self, wanted: Configuration) -> Proposed:
        return self.node.change(wanted)


def asked(
    change: Change,
    *,
    level: int = 2,
    known: int = 2,
    before: Callable[[Cluster], None] | None = None,
) -> str:
    """What an administrator is told by the leader of A, B and C; `known`: to B's program."""

    async def run() -> str:
        cluster = Cluster(A, B, C)
        leader = cluster.elect(A)
        cluster.tick(5)
        if before is not None:
            before(cluster)
        links = {B: PeerLink(True, 0, 0, 0, level=known, gives_entries=True)}
        membership = Membership(Replication(leader), A, lambda: level, lambda: links)
        answer = asyncio.ensure_future(membership.change(change))
        await asyncio.sleep(0)
        cluster.tick(5)
        try:
            return f"{sorted((await answer).voters)}"
        except BrokerError as error:
            return f"{error.code.name}: {error.message}"

    return asyncio.run(run())


def test_change_is_told_when_it_is_committed() -> None:
    assert asked(Change(remove=names(C))) == "['A', 'B']"


def test_members_change_from_a_level_on() -> None:
    """An older program would never leave what is joint."""
    assert asked(Change(remove=names(C)), level=1).startswith("BUSY: level 1 is in use")


def test_a_configuration_stays_as_small_as_a_note_of_it_can_be_read() -> None:
    """Whoever calls may name as many as it likes; nothing is written of what is refused."""
    host = "x" * 60
    many = tuple(
        NewMember(NodeId(f"{number:064}"), DiskId(b"%016d" % number), f"{number}.{host}:1")
        for number in range(200)
    )
    assert asked(Change(add=many[:50])) == "['A', 'B', 'C']"
    told = asked(Change(add=many))
    assert told.startswith("INVALID_ARGUMENT: the configuration of 203 members would have")


def test_members_do_not_change_beside_an_older_program() -> None:
    """It was put back after the level had been raised; one that is away can't be asked."""
    told = asked(Change(remove=names(C)), known=1)
    assert told.startswith("BUSY: B: the program knows less than level 2")
    assert asked(Change(remove=names(C)), known=0) == "['A', 'B']"
    told = asked(Change(remove=names(C)), level=9, known=8)
    assert told.startswith("BUSY: B: the program knows less than level 9"), "it applies nothing"
    assert asked(Change(remove=names(C)), level=9, known=9) == "['A', 'B']"


def test_a_change_that_too_few_would_answer_is_refused() -> None:
    def silence(cluster: Cluster) -> None:
        cluster.isolate(B)
        cluster.tick(40)

    told = asked(Change(remove=names(C)), before=silence)
    assert told.startswith("BUSY: of A, B as voters no majority would answer and take entries: B")


def test_a_new_leader_counts_on_nobody_who_has_not_answered_it_yet() -> None:
    """It has heard nothing of C, which is gone for long: with B removed it would wait for C for
    ever, and B, whose log is the shorter one, could never be elected either."""

    def lead_anew(cluster: Cluster) -> None:
        cluster.isolate(C)
        for leader, target in ((A, B), (B, A)):
            cluster[leader].core.transfer_leadership(target)
            cluster.tick()
            assert cluster[target].leads
        assert cluster[A].core.is_ready_leader

    def lead_for_a_round(cluster: Cluster) -> None:
        lead_anew(cluster)
        cluster.tick(5)

    for before in (lead_anew, lead_for_a_round):
        told = asked(Change(remove=names(B)), before=before)
        assert told.startswith("BUSY: of A, C as voters no majority would answer"), told
        assert told.endswith(": C doesn't now")
    assert asked(Change(remove=names(C)), before=lead_for_a_round) == "['A', 'B']"


@pytest.mark.parametrize("is_full", [True, False])
def test_a_change_does_not_count_on_a_sick_disk(is_full: bool) -> None:
    """It answers, and can't take the entry that it is needed for, or say that it holds it."""

    def spoil(cluster: Cluster) -> None:
        if is_full:
            cluster[B].core.report_fitness(is_short=True)
        else:
            cluster[B].core.report_doubt(is_in_doubt=True)
        cluster.tick(40)

    told = asked(Change(remove=names(C)), before=spoil)
    assert told.startswith("BUSY: of A, B as voters no majority would answer and take entries: B")
    assert asked(Change(remove=names(B)), before=spoil) == "['A', 'C']"


def test_a_leader_in_doubt_does_not_count_on_itself() -> None:
    def spoil(cluster: Cluster) -> None:
        cluster[A].core.report_doubt(is_in_doubt=True)

    told = asked(Change(remove=names(C)), before=spoil)
    assert told.startswith("BUSY: of A, B as voters no majority would answer and take entries: A")


def test_second_administrator_is_refused_by_name() -> None:
    def other(cluster: Cluster) -> None:
        leader = cluster[A]
        cluster.isolate(A)
        leader.change(planned(leader.core.configuration, Change(remove=names(B))))

    told = asked(Change(remove=names(C)), before=other)
    assert told == "BUSY: another change is under way, to A, C as voters: after that"


# --- the bytes ----------------------------------------------------------------------------------

BEFORE_LEVEL_2 = bytes.fromhex(
    "0a0141" + "0a0142" + "1a0143" + "22" + "1d" + "0a0141" + "1210" + "41" * 16
    + "1a06" + "683a3730" + "3031" + "22" + "03" + "0a0142" + "22" + "03" + "0a0143"
)  # fmt: skip


def test_configurations_of_level_1_have_the_bytes_that_they_had() -> None:
    """Voters A and B, learner C; disk and address of A. Written down from the release before."""
    wire = raft_pb2.Configuration.FromString(BEFORE_LEVEL_2)
    found = decode_configuration(wire)
    assert found == Configuration(
        names(A, B), learners=names(C), disks=((A, DISK[A]),), addresses=((A, "h:7001"),)
    )
    assert encode_configuration(found).SerializeToString(deterministic=True) == BEFORE_LEVEL_2


FORCED = bytes.fromhex(
    "0a0143"  # voters: C alone
    + "22" + "1d" + "0a0143" + "1210" + "43" * 16 + "1a06" + "683a3730" + "3033"  # C, disk, address
    + "3a" + "66"  # the epoch
    + "0a10" + "61" * 16 + "0a10" + "62" * 16  # two recoveries, the first one first
    + "12" + "40"  # the last one:
    + "0a0143" + "1080d095ffbc31" + "188b8040" + "202a" + "2828"  # who, when, in which entry
    + "3215" + "0a0141" + "1210" + "41" * 16  # A given up, with its disk
    + "3215" + "0a0142" + "1210" + "42" * 16  # B
)  # fmt: skip


def test_a_forced_configuration_has_these_bytes() -> None:
    """Put together by hand from raft.proto: what a recovery writes is read for as long as the log
    is there, by every release from level 7 on (ADR 52)."""
    forced = Configuration(
        names(C),
        disks=((C, DISK[C]),),
        addresses=((C, "h:7003"),),
        epoch=GroupEpoch(
            (b"a" * 16, b"b" * 16),
            Recovery("C", 1_700_000_000_000, (1 << 20) + 11, 42, 40, ((A, DISK[A]), (B, DISK[B]))),
        ),
    )
    assert configuration_bytes(forced).hex() == FORCED.hex()
    assert decode_configuration(raft_pb2.Configuration.FromString(FORCED)) == forced


def test_configurations_of_level_2_travel_whole() -> None:
    joint = planned(
        group(A, B, C, observers=(D,)), Change(promote=names(D), demote=names(C), remove=names(B))
    )
    wire = encode_configuration(joint).SerializeToString(deterministic=True)
    assert decode_configuration(raft_pb2.Configuration.FromString(wire)) == joint
