"""Who replaces a lost disk waits for it to vote, unless it is an observer's."""

from __future__ import annotations

import asyncio
from dataclasses import replace as changed
from typing import Any

import pytest

from broker.doors.grpc.cluster import ClusterDoor
from broker.forming import replacing
from broker.forming.errors import FormationRefused
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


class Calls:
    """A leader that gives these answers in turn, then the last one, and n2 on a new disk."""

    def __init__(self, *answers: cpb.ReplaceDiskResponse, known_level: int = 9) -> None:
        self.answers = list(answers)
        self.known_level = known_level
        self.joined: list[bytes] = []

    async def describe(self, address: str) -> Description:
        leader = Description("g", "n1", 1 << 20, b"d" * 16, 0, FORMED, None, 7, 1, ())
        new = changed(leader, node_id="n2", disk_id=DISK, state=UNFORMED, last_index=0)
        new = changed(new, known_level=self.known_level)
        return leader if address == LEADER else new

    async def join(self, address: str, disk_id: bytes) -> None:
        assert address == NEW
        self.joined.append(disk_id)

    async def held_log(self, address: str) -> cpb.HeldLog | None:
        raise AssertionError("it comes with nothing")

    async def level(self, address: str) -> int:
        assert address == LEADER
        return 9

    async def replace_disk(
        self, address: str, node_id: str, disk_id: bytes, held: cpb.HeldLog | None = None
    ) -> cpb.ReplaceDiskResponse:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def replaced(calls: Calls, wait_s: float) -> Replaced:
    return asyncio.run(replace(calls, Replacement("n2", NEW, LEADER), wait_s))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "CATCH_UP_POLL_S", 0.001)


def test_a_voters_disk_is_waited_for() -> None:
    calls = Calls(LEARNS, LEARNS, VOTES)
    done = replaced(calls, 60.0)
    assert (done.votes, done.is_done, calls.joined) == (True, True, [DISK])
    late = replaced(Calls(LEARNS), 0.01)
    assert not late.is_done


def test_an_observers_disk_is_what_the_lost_one_was() -> None:
    """It joins, and never votes by itself."""
    calls = Calls(OBSERVES, LEARNS)
    done = replaced(calls, 0.05)
    assert (done.votes, done.observes, done.is_done) == (False, True, True)
    assert calls.joined == [DISK]


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
    """It would apply nothing, and a log that begins behind the raise can't be filled into it. A
    release that doesn't say what it knows is taken in, as ever."""
    with pytest.raises(FormationRefused, match="n2 knows level 8, and the group uses level 9"):
        replaced(Calls(VOTES, known_level=8), 60.0)
    assert replaced(Calls(VOTES, known_level=0), 60.0).votes
