"""Who comes with a log of its own: taken in only if that is the beginning of the group's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.leader.changes import Change, NewMember, check_alone, planned
from broker.leader.epochs import EpochName
from broker.leader.membership import Membership
from broker.leader.newcomers import GroupLog, HeldLog, check_held
from dledger.addresses import plain_address
from dledger.core.group_epoch import GroupEpoch, Recovery
from dledger.core.types import DiskId, Index
from tests.core.harness import A, B, C, Cluster, D, E
from tests.core.test_changes import AT, DISK, Replication, group, names, new

OTHERS_DISK = DiskId(b"x" * 16)


def digests(entries: list[int]) -> list[int]:
    """Running digests of a log of these entries: each depends on all before."""
    found = [0]
    for entry in entries:
        found.append(hash((found[-1], entry)) & (1 << 63) - 1)
    return found


@given(
    own=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    theirs=st.lists(st.integers(0, 2), max_size=8),
    data=st.data(),
)
def test_only_a_beginning_of_the_groups_log_is_taken(
    own: list[int], theirs: list[int], data: st.DataObject
) -> None:
    """Whatever the two logs are, however far each knows its own to be committed, and whatever is
    gone of the leader's front: nobody with anything else is ever taken in, and whoever has a part
    of it, and can be compared, is."""
    committed = data.draw(st.integers(1, len(own)))
    known = data.draw(st.integers(0, len(theirs)))
    first = data.draw(st.integers(0, committed))
    mine, others = digests(own), digests(theirs)
    log = GroupLog(Index(committed), lambda index: mine[index] if index >= first else None)
    is_beginning = theirs[:known] == own[:known] and known <= committed
    held = HeldLog(Index(known), others[known])
    if is_beginning and known and known >= first:
        check_held(D, held, log)
        return
    with pytest.raises(BrokerError, match="empty its directory") as refused:
        check_held(D, held, log)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


A16, B16 = (letter * 16 for letter in (b"a", b"b"))


def test_only_who_knows_of_the_same_recoveries_is_taken() -> None:
    """Its log may be a beginning of the group's and lack what recovered it: the first member that
    dials it would give it up. An older command says nothing of that."""
    own = GroupLog(Index(9), lambda _: 7, EpochName(1, A16))
    for epoch in (None, EpochName(1, A16)):
        check_held(D, HeldLog(Index(5), 7, epoch), own)
    for epoch in (EpochName(), EpochName(1, B16), EpochName(2, B16)):
        with pytest.raises(BrokerError, match=rf"epoch {epoch.number} .* empty its") as refused:
            check_held(D, HeldLog(Index(5), 7, epoch), own)
        assert refused.value.code is ErrorCode.INVALID_ARGUMENT
    check_held(D, HeldLog(Index(5), 7, EpochName()), GroupLog(Index(9), lambda _: 7))


def asked(change: Change | DiskId, held: HeldLog | None = None) -> str:
    """What the leader of A, B and C says, whose log has digest 7 everywhere."""

    async def run() -> str:
        cluster = Cluster(A, B, C)
        leader = cluster.elect(A)
        cluster.tick(5)
        membership = Membership(
            Replication(leader), A, lambda: 2, dict, lambda index: 7 if index else None
        )
        if isinstance(change, Change):
            answer: asyncio.Task[object] = asyncio.ensure_future(membership.change(change))
        else:
            cluster.isolate(C)
            cluster.tick(40)
            answer = asyncio.ensure_future(membership.replace(C, change, held))
        await asyncio.sleep(0)
        cluster.tick(5)
        try:
            await answer
        except BrokerError as error:
            return f"{error.code.name}: {error.message}"
        return f"{sorted(leader.core.configuration.learners)}"

    return asyncio.run(run())


def test_a_leader_takes_nobody_with_another_log() -> None:
    for held, expected in (
        (None, "['D']"),
        (HeldLog(Index(1), 7), "['D']"),
        (HeldLog(Index(1), 7, EpochName()), "['D']"),
        (
            HeldLog(Index(1), 7, EpochName(1, A16)),
            "INVALID_ARGUMENT: D holds a log: it is of epoch",
        ),
        (HeldLog(Index(1), 8), "INVALID_ARGUMENT: D holds a log: up to entry 1"),
        (HeldLog(Index(99), 7), "INVALID_ARGUMENT: D holds a log: entry 99 is committed there"),
        (HeldLog(Index(0), 0), "INVALID_ARGUMENT: D holds a log: since its start nobody"),
    ):
        assert asked(Change(add=(replace(new(D), held=held),))).startswith(expected)


def test_a_leader_compares_with_the_epoch_that_its_log_has() -> None:
    last = Recovery("A", 1, 5, 9, 8, ())
    recovered = replace(group(A), epoch=GroupEpoch((A16,), last))
    core = SimpleNamespace(configuration=recovered, commit_index=9)
    replication: Any = SimpleNamespace(core=core)
    assert Membership(replication, A)._log().epoch == EpochName(1, A16)


def test_nor_in_the_place_of_a_lost_disk() -> None:
    assert asked(OTHERS_DISK) == "['C']"
    assert asked(OTHERS_DISK, HeldLog(Index(1), 7)) == "['C']"
    assert "another one" in asked(OTHERS_DISK, HeldLog(Index(1), 8))


def test_a_member_is_not_looked_at_again() -> None:
    """It may know of more commits than the leader did a moment ago."""
    moved = NewMember(C, DISK[C], AT[C], held=HeldLog(Index(99), 9))
    present = group(A, B, C)
    assert planned(present, Change(add=(moved,))) == present


def test_a_disk_that_was_given_up_is_not_taken_back() -> None:
    """ADR 52: what it holds beyond the survivor's log isn't the group's."""
    last = Recovery("A", 1, 5, 9, 8, ((B, DISK[B]), (C, DISK[C])))
    present = replace(group(A), epoch=GroupEpoch((b"r" * 16,), last))
    for node in (B, E):  # under another name as well
        with pytest.raises(BrokerError, match="was given up when the group was recovered"):
            planned(present, Change(add=(NewMember(node, DISK[B], AT[node]),)))
    wiped = NewMember(B, OTHERS_DISK, AT[B])
    assert planned(present, Change(add=(wiped,))).learners == {B}


def test_who_is_being_taken_in_may_move() -> None:
    """Its machine was given another address before it had joined: nobody comes or goes by that."""
    present = planned(group(A, B, C), Change(add=(new(D),)))
    moved = Change(add=(NewMember(D, DISK[D], "10.9.9.9:7001"),))
    check_alone(present, moved, is_committed=True)
    assert dict(planned(present, moved).addresses)[D] == "10.9.9.9:7001"
    for more in (
        Change(add=(*moved.add, new(E))),
        Change(add=moved.add, remove=names(C)),
        Change(add=moved.add, demote=names(C)),
        Change(add=moved.add, prefer="A"),
    ):
        with pytest.raises(BrokerError, match="D is being taken in"):
            check_alone(present, more, is_committed=True)
    with pytest.raises(BrokerError, match="another change is under way"):
        check_alone(present, moved, is_committed=False)


SAME = [
    ("Node-3.Example:7001", "node-3.example:7001"),
    ("[::1]:7001", "[0:0:0:0:0:0:0:1]:7001"),
    ("[FE80::A]:7001", "[fe80:0::a]:7001"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_an_address_has_one_member_however_it_is_written(one: str, other: str) -> None:
    assert plain_address(one) == plain_address(other)
    present = replace(group(A, B), addresses=((A, AT[A]), (B, one)))
    with pytest.raises(BrokerError, match="is the address of B"):
        planned(present, Change(add=(NewMember(D, DISK[D], other),)))
    assert planned(present, Change(add=(NewMember(D, DISK[D], "node-4.example:7001"),))).learners
