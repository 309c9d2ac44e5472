"""Whom a recovery by force refuses, by what is known of the others: each case a sentence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker import last_resort
from broker.last_resort import Doubts, Heard, check, doubts, newest_term
from broker.local_group.status import REFILLING_ROLE
from dledger.core.group_epoch import GroupEpoch, Recovery
from dledger.core.types import Configuration, DiskId, NodeId
from dledger.wire.cluster_pb2 import NodeStatus
from store.errors import RecoveryRefused
from store.starting.recovering import Survivor
from tests.integration.group import free_ports

NAMES = [NodeId(f"n{number}") for number in range(1, 6)]
A, B = (GroupEpoch((letter * 16,), Recovery("n1", 1, 9, 9, 9)) for letter in (b"a", b"b"))


def configuration(count: int = 3, epoch: GroupEpoch | None = None) -> Configuration:
    voters = NAMES[:count]
    return Configuration(
        voters=frozenset(voters),
        disks=tuple((name, DiskId(name.encode().ljust(16, b"-"))) for name in voters),
        epoch=epoch or GroupEpoch(),
    )


def survivor(
    name: str = "n1", term: int = 3, index: int = 20, known: Configuration | None = None
) -> Survivor:
    return Survivor(
        path=Path("/data") / name,
        broker_group="g1",
        node_id=name,
        disk_id=name.encode().ljust(16, b"-"),
        term=term + 1,
        first_index=1,
        last_term=term,
        last_index=index,
        end_offset=1000,
        committed_index=index - 2,
        committed_digest=7,
        last_time_ms=1,
        configuration=known or configuration(),
        configuration_index=1,
    )


def heard(name: str, term: int = 3, index: int = 10, epoch: GroupEpoch | None = None) -> Heard:
    recoveries = epoch.recoveries if epoch else ()
    last = recoveries[-1] if recoveries else b""
    return Heard(name, f"{name}:1", "follower", 7, term, index, len(recoveries), last)


def test_nobody_answers_and_nothing_is_longer() -> None:
    check(survivor(), (), ())
    five = configuration(5)
    check(survivor(known=five), (survivor("n2", 3, 20, five),), ())
    assert newest_term((survivor("n2", 8),), (heard("n3"),)) == 9
    assert newest_term((), ()) == 0


def test_who_can_be_reached_is_no_loss() -> None:
    """With as many as would elect a leader; fewer are given up, running or not."""
    with pytest.raises(RecoveryRefused, match="n2 can be reached, and with n1 that is a majority"):
        check(survivor(), (), (heard("n2"),))
    five = configuration(5)
    check(survivor(known=five), (), (heard("n2"),))
    with pytest.raises(RecoveryRefused, match="n2, n3 can be reached"):
        check(survivor(known=five), (), (heard("n2"), heard("n3")))


def test_directories_that_are_a_majority_together_are_no_loss() -> None:
    """With whoever runs; another disk than the group knows counts for nothing, nor does a second
    copy of one."""
    with pytest.raises(RecoveryRefused, match="with n2 it is a majority: nothing is lost"):
        check(survivor(), (survivor("n2", 2, 9),), ())
    with pytest.raises(RecoveryRefused, match="with n2 it is a majority"):
        check(survivor(), (survivor("n2", 9, 99),), ())  # and not: recover that one
    five = configuration(5)
    n2, n3 = (survivor(name, 3, 12, five) for name in ("n2", "n3"))
    check(survivor(known=five), (n2, replace(n2, path=Path("/copy"))), ())
    for rivals, running in (((n2, n3), ()), ((n2,), (heard("n3"),))):
        with pytest.raises(RecoveryRefused, match="with n2, n3 it is a majority"):
            check(survivor(known=five), rivals, running)
    check(survivor(known=five), (n2, replace(n3, disk_id=b"x" * 16)), ())


def test_who_takes_connections_and_says_nothing_is_no_loss() -> None:
    """Certificates that aren't named look like this, and the group may be well."""
    with pytest.raises(RecoveryRefused, match="at the addresses of n2, and doesn't say who it is"):
        check(survivor(), (), (), Doubts(listening=("n2",)))
    five = configuration(5)
    check(survivor(known=five), (), (), Doubts(listening=("n2",)))
    with pytest.raises(RecoveryRefused, match="name the certificates"):
        check(survivor(known=five), (), (heard("n2"),), Doubts(listening=("n3",)))
    with pytest.raises(RecoveryRefused, match="name the certificates"):
        check(survivor(known=five), (survivor("n2", 2, 9, five),), (), Doubts(listening=("n3",)))


def test_who_takes_connections_where_the_caller_says_may_be_any_member() -> None:
    """Members move by what is configured alone: the log has their old addresses."""
    with pytest.raises(RecoveryRefused, match="connections at new:1, and doesn't say who it is"):
        check(survivor(), (), (), Doubts(elsewhere=("new:1",)))
    five = configuration(5)
    check(survivor(known=five), (), (), Doubts(elsewhere=("new:1",)))
    with pytest.raises(RecoveryRefused, match="the addresses of n2, new:1, and doesn't say"):
        check(survivor(known=five), (), (), Doubts(listening=("n2",), elsewhere=("new:1",)))
    with pytest.raises(RecoveryRefused, match="connections at new:1, new:2, and doesn't say"):
        check(survivor(known=five), (), (), Doubts(elsewhere=("new:1", "new:2")))
    # More of them than there are members are as good as all.
    with pytest.raises(RecoveryRefused, match="new:3"):
        check(survivor(), (), (), Doubts(elsewhere=("new:1", "new:2", "new:3")))
    joint = replace(five, voters_outgoing=frozenset(NAMES[:1]))
    check(survivor(known=joint), (), (), Doubts(elsewhere=("new:1",)))


def test_members_that_run_unformed_are_no_loss() -> None:
    """Their disks may only not be mounted; fewer than would be a majority are given up."""
    with pytest.raises(RecoveryRefused, match=r"n2 runs, unformed: is its disk mounted.* stop"):
        check(survivor(), (), (), Doubts(unformed=("n2",)))
    five = configuration(5)
    check(survivor(known=five), (), (), Doubts(unformed=("n2",)))
    with pytest.raises(RecoveryRefused, match="n2 runs, unformed"):
        check(survivor(known=five), (), (heard("n3"),), Doubts(unformed=("n2",)))


def seen(
    answer: NodeStatus | None, moved: bool = False, running: tuple[Heard, ...] = ()
) -> tuple[Doubts, str]:
    """What is made of an open port, n2's by the log or, if it has moved, by the caller, where that
    is answered; n3's is closed. And the port's address."""

    async def tried() -> tuple[Doubts, str]:
        def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def probe(address: str, *, tls: None) -> NodeStatus | None:
            return answer

        async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
            there = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            closed = [f"127.0.0.1:{port}" for port in free_ports(2)]
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(last_resort, "probe", probe)
                n2 = closed[1] if moved else there
                addresses = ((NAMES[1], n2), (NAMES[2], closed[0]))
                known = replace(configuration(), addresses=addresses)
                asked = (there, n2, *closed)
                return await doubts(survivor(known=known), running, asked, None), there

    return asyncio.run(tried())


def test_who_is_silent_is_tried_for_connections() -> None:
    """A closed port is as good as lost; who answers, as whoever it be, isn't silent."""
    assert seen(None)[0] == Doubts(listening=("n2",))
    assert seen(NodeStatus(broker_group="g1", node_id="n2"))[0] == Doubts()


@pytest.mark.parametrize("moved", [False, True])
def test_who_answers_only_the_second_time_is_not_lost(moved: bool) -> None:
    """A member that was just in an election when it was asked first: nobody knows its log."""
    late = NodeStatus(broker_group="g1", node_id="n2", role="follower")
    late.health.disk_id = b"n2".ljust(16, b"-")
    found, _ = seen(late, moved)
    assert found == Doubts(late=("n2",))
    assert seen(late, moved, (heard("n2"),))[0] == Doubts()
    for count in (3, 5):
        with pytest.raises(RecoveryRefused, match=r"n2 answers now.* Ask again"):
            check(survivor(known=configuration(count)), (), (), found)


def test_where_the_caller_says_is_tried_for_connections() -> None:
    """As long as it isn't known who is there."""
    found, there = seen(None, moved=True)
    assert found == Doubts(elsewhere=(there,))
    assert seen(NodeStatus(broker_group="g2", node_id="n2"), moved=True)[0] == Doubts()


@pytest.mark.parametrize("moved", [False, True])
def test_who_answers_unformed_by_a_members_id_is_told(moved: bool) -> None:
    """Not so of another group, nor one that is nobody here, nor one that is heard on its disk."""
    waiting = NodeStatus(broker_group="g1", node_id="n2", role="unformed")
    assert seen(waiting, moved)[0] == Doubts(unformed=("n2",))
    assert seen(waiting, moved, (heard("n2"),))[0] == Doubts()
    for field, value in (("broker_group", "g2"), ("node_id", "n1"), ("role", "follower")):
        other = NodeStatus()
        other.CopyFrom(waiting)
        setattr(other, field, value)
        assert seen(other, moved)[0] == Doubts()


def test_who_was_not_asked_is_no_loss() -> None:
    """The log of an adopted group says of nobody where it is found. Who names addresses has said
    where they may be."""

    def found(*addresses: str, known: Configuration) -> Doubts:
        return asyncio.run(doubts(survivor(known=known), (), addresses, None))

    (closed,) = free_ports(1)
    three, five = configuration(3), configuration(5)
    assert found(known=three) == Doubts(unasked=("n2", "n3"))
    assert found(f"127.0.0.1:{closed}", known=three) == Doubts()
    with pytest.raises(RecoveryRefused, match=r"n2, n3 wasn't asked.* name with --bootstrap"):
        check(survivor(), (), (), found(known=three))
    some = replace(five, addresses=tuple((name, f"127.0.0.1:{closed}") for name in NAMES[:4]))
    assert found(known=some) == Doubts(unasked=("n5",))
    check(survivor(known=some), (), (), found(known=some))
    with pytest.raises(RecoveryRefused, match="n5 wasn't asked"):
        check(survivor(known=some), (survivor("n2", 3, 12, some),), (), found(known=some))
    left = survivor("n5", 3, 12, some)  # its directory is there: nobody needs to ask it
    check(survivor(known=some), (left,), (), found(known=some))


def test_learners_that_can_be_reached_are_no_majority() -> None:
    known = replace(configuration(3), learners=frozenset({NodeId("n9")}))
    check(survivor(known=known), (), (heard("n9"),))


@pytest.mark.parametrize("epoch", [GroupEpoch(), A])
def test_who_refills_its_log_may_have_the_longer_one(epoch: GroupEpoch) -> None:
    """It runs, and says nothing of its end, nor of its epoch. As one of a majority it is no loss:
    it is given its bytes by whoever is started."""
    five = configuration(5, epoch)
    refills = replace(heard("n5", 0, 0), role=REFILLING_ROLE)
    with pytest.raises(RecoveryRefused, match=r"n5 at n5:1 .*refills its log.* --data"):
        check(survivor(known=five), (), (refills,))
    with pytest.raises(RecoveryRefused, match=r"n5 at n5:1 .*refills its log"):
        check(
            survivor(known=five), (replace(survivor("n2", 3, 12, five), disk_id=b""),), (refills,)
        )
    three = configuration(3, epoch)
    with pytest.raises(RecoveryRefused, match="n2 can be reached, and with n1 that is a majority"):
        check(survivor(known=three), (), (replace(refills, node_id="n2"),))


@pytest.mark.parametrize(("term", "index"), [(3, 21), (4, 5)], ids=["longer", "newer"])
def test_the_longest_log_is_recovered(term: int, index: int) -> None:
    """By its last term first: of two entries of one index the one of the newer term stands."""
    five = configuration(5)
    with pytest.raises(RecoveryRefused, match=f"n2 in /data/n2 has the longer log.* {index}"):
        check(survivor(known=five), (survivor("n2", term, index, five),), ())
    with pytest.raises(RecoveryRefused, match="n2 at n2:1 has the longer log"):
        check(survivor(known=five), (), (heard("n2", term, index),))


def test_who_decides_alone_loses_nobody() -> None:
    with pytest.raises(RecoveryRefused, match="n1 decides alone"):
        check(survivor(known=configuration(1)), (), ())
    joint = replace(configuration(1), voters_outgoing=frozenset(NAMES[:3]))
    check(survivor(known=joint), (), ())


def test_who_was_given_up_before_is_not_gone_on_from() -> None:
    """Nor is somebody compared with it who was."""
    five, later, other = configuration(5), configuration(5, A), configuration(5, B)
    for mine, theirs in ((five, later), (later, five), (later, other)):
        with pytest.raises(RecoveryRefused, match="given up before"):
            check(survivor(known=mine), (survivor("n2", 1, 1, theirs),), ())
        with pytest.raises(RecoveryRefused, match="given up before"):
            check(survivor(known=mine), (), (heard("n2", 1, 1, theirs.epoch),))


def test_a_directory_of_another_group_is_no_survivor() -> None:
    with pytest.raises(RecoveryRefused, match="broker group g2"):
        check(survivor(), (replace(survivor("n2"), broker_group="g2"),), ())
