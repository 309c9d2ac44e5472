"""Who replaces a lost disk waits for it to vote, unless it is an observer's."""

from __future__ import annotations

import asyncio
from dataclasses import replace as changed
from typing import Any

import pytest

from broker.doors.grpc.cluster import ClusterDoor
from broker.forming import replacing
from broker.forming.errors import FormationRefused, MemberUnreachable, Superseded
from broker.forming.planning import FORMED, UNFORMED, Description
from broker.forming.replacing import Replaced, Replacement, replace
from dledger.core.types import Configuration, NodeId
from dledger.outcome import ExitCode
from dledger.wire import cluster_pb2 as cpb
from dledger_cli import group
from tests.cli.called import command

LEADER, NEW, DISK = "a:1", "a:2", b"x" * 16
VOTES, OBSERVES, LEARNS = (
    cpb.ReplaceDiskResponse(votes=True),
    cpb.ReplaceDiskResponse(observes=True),
    cpb.ReplaceDiskResponse(),
)


class Group:
    """What the group's log says of n2, beside n1 that leads: on which disk, and as what, and by
    which entry. With each look it is one step further in `course`."""

    def __init__(self, *course: str) -> None:
        self.course = list(course)
        self.disk, self.index = b"l" * 16, 7
        self.named: list[bytes] = []

    def name(self, disk: bytes) -> cpb.ReplaceDiskResponse:
        if disk != self.disk:
            self.disk, self.index = disk, self.index + 1
            self.named.append(disk)
        role = self.course[0]
        return cpb.ReplaceDiskResponse(votes=role == "voter", observes=role == "observer")

    def members(self) -> cpb.Members:
        role = self.course.pop(0) if len(self.course) > 1 else self.course[0]
        n1 = cpb.MemberStatus(node_id="n1", role="voter", address=LEADER, match_index=9)
        n2 = cpb.MemberStatus(
            node_id="n2", role=role, address=NEW, disk_id=self.disk, match_index=9
        )
        return cpb.Members(
            members=[n1, n2] if role else [n1], configuration_index=self.index, committed=True
        )


class Calls:
    """n1, which leads the group, and n2 on a new disk."""

    def __init__(
        self,
        group: Group | str,
        *course: str,
        disk: bytes = DISK,
        known_level: int = 9,
        level: int = 9,
    ) -> None:
        self.group = group if isinstance(group, Group) else Group(group, *course)
        self.disk = disk
        self.known_level = known_level
        self.group_level = level
        self.joined: list[bytes] = []
        self.asked: list[str] = []
        self.is_silent = False  # who led is gone

    async def describe(self, address: str) -> Description:
        leader = Description("g", "n1", 1 << 20, b"d" * 16, 0, FORMED, None, 7, 1, ())
        new = changed(leader, node_id="n2", disk_id=self.disk, state=UNFORMED, last_index=0)
        new = changed(new, known_level=self.known_level)
        return leader if address == LEADER else new

    async def join(self, address: str, disk_id: bytes) -> None:
        assert address == NEW
        self.joined.append(disk_id)

    async def held_log(self, address: str) -> cpb.HeldLog | None:
        raise AssertionError("it comes with nothing")

    async def level(self, address: str) -> int:
        assert address == LEADER
        return self.group_level

    async def replace_disk(
        self, address: str, node_id: str, disk_id: bytes, held: cpb.HeldLog | None = None
    ) -> cpb.ReplaceDiskResponse:
        assert (address, node_id) == (LEADER, "n2")
        return self.group.name(disk_id)

    async def list_members(self, address: str) -> cpb.Members:
        self.asked.append(address)
        if self.is_silent and address == LEADER:
            raise MemberUnreachable(address, "gone")
        return self.group.members()


def replaced(calls: Calls, wait_s: float) -> Replaced:
    return asyncio.run(replace(calls, Replacement("n2", NEW, LEADER), wait_s))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "CATCH_UP_POLL_S", 0.001)


def test_a_voters_disk_is_waited_for() -> None:
    calls = Calls("learner", "learner", "voter")
    done = replaced(calls, 60.0)
    assert (done.votes, done.is_done, calls.joined) == (True, True, [DISK])
    late = replaced(Calls("learner"), 0.01)
    assert not late.is_done


def test_an_observers_disk_is_what_the_lost_one_was() -> None:
    """It joins, and never votes by itself."""
    calls = Calls("observer")
    done = replaced(calls, 0.05)
    assert (done.votes, done.observes, done.is_done) == (False, True, True)
    assert (calls.joined, calls.asked) == ([DISK], []), "nothing more is waited for"


def test_the_door_says_what_a_member_is() -> None:
    """As the configuration in force has it."""
    n1, n2, n3 = map(NodeId, ("n1", "n2", "n3"))

    class Cluster:
        async def replace_disk(self, *_: object) -> Configuration:
            return Configuration(
                voters=frozenset({n1}), learners=frozenset({n2, n3}), observers=frozenset({n2})
            )

    service: Any = Cluster()
    for name, wanted in ((n1, VOTES), (n2, OBSERVES), (n3, LEARNS)):
        request = cpb.ReplaceDiskRequest(node_id=name, disk_id=DISK)
        answer = asyncio.run(ClusterDoor(service).replace_disk(request, None))
        assert answer == wanted


def test_two_administrators_do_not_undo_each_others_disk() -> None:
    """Each has found n2 on another disk: the one that was emptied in between, or put back. The one
    whose disk counts no more is told, and the other one's is in the log, once."""
    group = Group("learner")

    async def both() -> list[Replaced | BaseException]:
        first, second = (Calls(group, disk=disk) for disk in (DISK, b"y" * 16))
        wanted = Replacement("n2", NEW, LEADER)
        return await asyncio.gather(
            *(replace(each, wanted, 0.2) for each in (first, second)), return_exceptions=True
        )

    told, going_on = asyncio.run(both())
    assert group.named == [DISK, b"y" * 16]
    assert isinstance(told, Superseded)
    assert f"has named disk {(b'y' * 16).hex()} for n2 since, in entry 9" in str(told)
    assert going_on == Replaced("n2", b"y" * 16, votes=False)


def test_who_waits_is_told_that_the_member_was_taken_out() -> None:
    with pytest.raises(Superseded, match="n2 was taken in, and isn't a member any more"):
        replaced(Calls("learner", ""), 60.0)


def test_others_are_asked_when_the_leader_is_gone() -> None:
    """To name the disk once more could undo what another administrator has named meanwhile."""
    calls = Calls("learner")

    async def run() -> Replaced:
        waiting = asyncio.ensure_future(replace(calls, Replacement("n2", NEW, LEADER), 60.0))
        while not calls.asked:
            await asyncio.sleep(0)
        calls.is_silent = True
        calls.group.course = ["learner", "voter"]
        return await waiting

    assert asyncio.run(run()).votes
    assert calls.group.named == [DISK]
    assert NEW in calls.asked


def test_who_led_and_was_never_asked_again_is_looked_for_anew() -> None:
    """What others know may be older than the disk."""
    calls = Calls("learner")
    calls.is_silent = True
    assert not replaced(calls, 60.0).is_done
    assert calls.asked == [LEADER]


@pytest.mark.parametrize(
    ("found", "text", "code"),
    [
        (Replaced("n2", DISK, votes=True), "and votes", ExitCode.DONE),
        (Replaced("n2", DISK, votes=False, observes=True), "and observes", ExitCode.DONE),
        (Replaced("n2", DISK, votes=False), "doesn't vote yet", ExitCode.UNREACHABLE),
    ],
)
def test_the_command_says_what_it_is(
    found: Replaced, text: str, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attempt(*_: object) -> Replaced:
        return found

    monkeypatch.setattr(group, "_replace", attempt)
    monkeypatch.setattr(group, "tell_what_holds_up", lambda _: None)
    ended = command("group", "replace", "n2", "--wait", "0", "--bootstrap", "n1:1")
    assert (ended.returncode, text in ended.stdout) == (code, True)


def test_a_program_that_is_too_old_is_not_taken_in() -> None:
    """It would apply nothing, and a log that begins behind the raise can't be filled into it. One
    that doesn't say what it knows is of a release before level 9."""
    with pytest.raises(FormationRefused, match="n2 knows level 8, and the group uses level 9"):
        replaced(Calls("voter", known_level=8), 60.0)
    with pytest.raises(FormationRefused, match="n2 knows at most level 8, and the group uses"):
        replaced(Calls("voter", known_level=0), 60.0)
    assert replaced(Calls("voter", known_level=9), 60.0).votes
    assert replaced(Calls("voter", known_level=0, level=8), 60.0).votes
