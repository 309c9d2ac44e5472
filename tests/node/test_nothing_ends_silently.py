"""What runs for as long as a node does either goes on after an error or ends the node, loudly.

Each kind of long-lived work is given an error that nobody has thought of. Work that decides
something about the log ends the replica; work for one peer, or for nobody in particular, is told
and goes on. The table at the end names every place where such work begins: who adds one says here
what becomes of its errors.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from broker.ports import Rhythm
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from dledger import transport
from dledger.core.types import Index, NodeId
from dledger.errors import PeerRefused
from dledger.links import LinkTimes
from dledger.outbox import Outbox
from dledger.peer_security import PeerSecurity
from dledger.peers import PeerLink
from dledger.wire import commands_pb2 as kpb
from dledger.wire.raft_pb2 import HeartbeatRequest, PeerMessage
from store.errors import CorruptionFound
from tests.integration.members import Pair, pair
from tests.node.members import Members, make_configs, nothing_to_shut
from tests.node.test_replica import on_a_loop

ROOT = Path(__file__).parents[2]
N1, N2 = NodeId("n1"), NodeId("n2")
QUICK = Rhythm(housekeeping_s=0.02, scrub=ScrubPace(between_s=0.02))


class Planted(Exception):
    """Nobody expects it."""


def planted(*arguments: object, **named: object) -> Any:
    raise Planted(f"{len(arguments)} {len(named)}")


# --- what ends the replica ---------------------------------------------------------------------


def suspect(replica: Replica) -> None:
    """Gives the mender something to do."""
    replica.mender.suspect(replica.machine.topics["t"], 0)


def rot_something(replica: Replica) -> None:
    """Gives the repairs something to do; it has nobody to ask, which doesn't matter here."""
    folder = replica.config.data_directory / "commitlog"
    around = dataclasses.replace(
        replica.repairs._around,
        links=lambda: {N2: PeerLink(connected=False, reconnects=0, dropped=0, renewed=0)},
    )
    replica.repairs._around = around
    with (folder / f"{0:020}").open("r+b") as file:
        file.seek(20)
        file.write(b"\xff\xff\xff")
    with pytest.raises(CorruptionFound) as found:
        replica.log.verify(1, 1, 0)
    assert replica.repairs.takes(found.value)


def suspect_something(replica: Replica) -> None:
    """A peer is said to hold something else."""
    replica.comparison.suspect(1)


def store_something(replica: Replica) -> None:
    command = kpb.Command(create_topic=kpb.CreateTopicCommand(name="u", queue_count=1))
    replica.appender.submit(command)


def nothing(replica: Replica) -> None:
    """It comes by itself."""
    del replica


@pytest.mark.parametrize(
    ("part", "attribute", "cause"),
    [
        ("driver", "tick", nothing),
        ("membership", "on_tick", nothing),
        ("queues", "take", nothing),
        ("memory", "step", nothing),
        ("mender", "_repair", suspect),
        ("log.scrub", "step", nothing),
        ("repairs", "_mend", rot_something),
        ("comparison", "_inquire", suspect_something),
        ("machine", "apply", store_something),
        ("log", "submit", store_something),
        ("log._queue", "perform", store_something),
        ("log._preallocator", "create", nothing),
    ],
)
@on_a_loop
async def test_error_in_what_decides_ends_the_replica(
    tmp_path: Path, monkeypatch: Any, part: str, attribute: str, cause: Callable[[Replica], None]
) -> None:
    """It serves nobody any more, `wait` returns, and the stop says that it has failed."""
    group = Members(make_configs(tmp_path, 1), QUICK)
    group.start()
    replica = await group.leader()
    command = kpb.Command(create_topic=kpb.CreateTopicCommand(name="t", queue_count=1))
    assert await replica.appender.submit(command) is None
    owner: Any = replica
    for name in part.split("."):
        owner = getattr(owner, name)
    if part == "log._preallocator":
        replica.log.has_room(replica.config.store.segment_size_bytes * 4)
    monkeypatch.setattr(owner, attribute, planted)
    with capture_logs() as told:
        cause(replica)
        await replica.wait()
    assert not replica.leadership.serving
    assert any(each["event"] == "node_failed" for each in told)
    monkeypatch.undo()
    assert not await replica.stop(nothing_to_shut)


@on_a_loop
async def test_replica_that_has_failed_serves_no_more(tmp_path: Path) -> None:
    """What it had proposed is applied all the same until it stops, and begins nothing."""
    group = Members(make_configs(tmp_path, 1), QUICK)
    group.start()
    replica = await group.leader()
    replica.fail(RuntimeError("planted"))
    replica.leadership.on_applied(Index(replica.log.last_index))
    assert not replica.leadership.serving
    assert not await replica.stop(nothing_to_shut)


@on_a_loop
async def test_disk_failure_ends_the_replica_whatever_becomes_of_its_last_words(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The core is silent from then on: a node that went on without it would be a ghost."""
    group = Members(make_configs(tmp_path, 1), QUICK)
    group.start()
    replica = await group.leader()
    monkeypatch.setattr(replica.driver, "_run", planted)
    with pytest.raises(Planted):
        replica.driver.on_storage_failed(OSError("the disk"))
    await replica.wait()
    assert isinstance(replica.failure, OSError)
    assert not await replica.stop(nothing_to_shut)


# --- what goes on ------------------------------------------------------------------------------


class Once:
    """Raises at the first call, and is what it was from then on."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.calls = 0
        self._real = real

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise Planted
        return self._real(*arguments)


async def becomes_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def events(told: list[Any]) -> set[str]:
    return {each["event"] for each in told}


def test_links_are_looked_at_again_after_a_look_that_failed(monkeypatch: Any) -> None:
    """Else no stream would be dialed or found silent from then on."""

    async def run() -> None:
        monkeypatch.setattr(transport, "RETRY_S", 0.02)
        async with pair() as two:
            await two.talk()
            links = two.members[N1].transport._links
            failing = Once(links.on_time)
            monkeypatch.setattr(links, "on_time", failing)
            with capture_logs() as told:
                await becomes_true(lambda: failing.calls > 1)
            assert "peer_links_failed" in events(told)

    asyncio.run(run())


@pytest.mark.parametrize("which", [N1, N2], ids=["dialed", "accepted"])
def test_stream_that_cannot_be_written_to_ends_and_comes_again(
    monkeypatch: Any, which: NodeId
) -> None:
    """A peer that is heard and gets no answer is as good as none, and looks healthy. Not only the
    watchdog over silence ends it, which here would take a minute."""

    async def run() -> None:
        async with pair(LinkTimes(silence_s=60.0)) as two:
            await two.talk()
            breaks = two.members[N1].broken
            real, failing = Outbox.get, [True]
            mine = [*two.members[which].transport._outboxes.values()]

            async def get(outbox: Outbox) -> Any:
                message = await real(outbox)
                if failing and outbox in mine:
                    failing.clear()
                    raise Planted
                return message

            monkeypatch.setattr(Outbox, "get", get)
            request = PeerMessage(term=1, heartbeat_request=HeartbeatRequest())
            with capture_logs() as told:
                async with asyncio.timeout(10):
                    while not breaks:  # n1 asks, n2 answers: each writes on the same stream
                        two.members[N1].transport.send_request(N2, request)
                        await asyncio.sleep(0.005)
            assert "peer_stream_not_written" in events(told)
            await two.talk()

    asyncio.run(run())


def test_stream_whose_message_cannot_be_taken_ends_and_comes_again(monkeypatch: Any) -> None:
    async def run() -> None:
        async with pair() as two:
            await two.talk()
            links = two.members[N1].transport._links
            once = Once(links._on_message)
            monkeypatch.setattr(links, "_on_message", once)
            await two.talk()
            assert once.calls > 1, "no message was taken after the one that couldn't be"

    asyncio.run(run())


class Doubting(PeerSecurity):
    """Asks for names, and says of callers what the test wants said."""

    __slots__ = ("mood",)

    def check_caller(self, group: str, peer: str, proved: NodeId | None, shown: object) -> None:
        if moods:
            raise moods[-1]


moods: Final[list[Exception]] = []


def test_certificates_are_checked_again_after_a_check_that_failed(monkeypatch: Any) -> None:
    """Who is revoked after that loses its stream all the same."""

    async def run() -> None:
        monkeypatch.setattr(transport, "CALLERS_CHECKED_EVERY_S", 0.01)
        async with pair(is_started=False) as two:
            checking = two.members[N1].transport
            checking._security = Doubting(checks_names=True)
            start(two)
            await two.talk()
            with capture_logs() as told:
                moods.append(Planted())
                await becomes_true(lambda: "certificate_not_checked" in events(told))
                assert checking._callers
                moods.append(PeerRefused("revoked"))
                await becomes_true(lambda: not checking._callers)
            moods.clear()
            await two.talk()

    asyncio.run(run())


def start(two: Pair) -> None:
    for each in two.members.values():
        each.transport.start()


# --- every place -------------------------------------------------------------------------------

ENDS = "the replica ends: test_error_in_what_decides_ends_the_replica"
GOES_ON = "it is told, and goes on: see above"
GUARDED = "what is called is guarded by the driver, which ends the replica"
ONE_CALL = "one call's or connection's own: its caller is told"
NOTHING_ELSE = "it does nothing but wake somebody"
# Calls that begin something which nobody awaits; where, and what becomes of an error there.
BEGINS = frozenset(
    (
        *("create_task", "ensure_future", "run_coroutine_threadsafe", "call_later", "call_at"),
        *("call_soon", "call_soon_threadsafe", "later", "_later", "Thread", "add_done_callback"),
    )
)
TOLD: Final = "who waits is told INTERNAL, the log says why, and the next call begins anew"
AGAIN: Final = "a proposal that fails is told; a later tick makes another"
LOOKED_AGAIN: Final = "told, and looked at again: tests/broker/test_callers.py"
PLACES: Final = {
    "broker/doors/grpc/broker.py: on_end": ONE_CALL,
    "broker/doors/grpc/callers.py: _set_timer": LOOKED_AGAIN,
    "broker/doors/grpc/callers.py: _check_some": LOOKED_AGAIN,
    "broker/doors/grpc/groups.py: attend": ONE_CALL,
    "broker/holed.py: _filled": "it is raised where it is awaited, in the same breath",
    "broker/housekeeping.py: _begin_round": ENDS,
    "broker/housekeeping.py: _set_timer": ENDS,
    "broker/installing.py: offered": ENDS,
    "broker/leader/groups/ending.py: _await": AGAIN,
    "broker/leader/groups/forgetting.py: _forget_groups": AGAIN,
    "broker/leader/groups/assigning.py: _propose": AGAIN,
    "broker/leader/levels.py: on_tick": "the attempt is told to have failed; a later tick tries it",
    "broker/leader/retention.py: start": ENDS,
    "broker/log_start.py: start": ENDS,
    "broker/log_start.py: _whole": "who begins it waits for it, cancelled or not",
    "broker/loop_watch.py: start": "a witness: threading tells the error, and nobody needs it",
    "broker/mending.py: _begin": ENDS,
    "broker/node.py: _ports.call_from_worker": GUARDED,
    "broker/node.py: _open_metrics.facts": ONE_CALL,
    "broker/reading/held.py: wait": NOTHING_ELSE,
    "broker/comparing.py: _begin": ENDS,
    "broker/reading/held.py: _wake_in_turns": NOTHING_ELSE,
    "broker/reading/held.py: _begin_turn": NOTHING_ELSE,
    "broker/reading/held.py: _in_next_turn": NOTHING_ELSE,
    "broker/repairs.py: _begin": ENDS,
    "broker/repairs.py: _note_places": ENDS,
    "broker/scrubbing.py: start": ENDS,
    "broker/leader/units.py: _settle": AGAIN,
    "broker/leader/retries/pump.py: _look": ENDS,
    "broker/services/attendance.py: join": ONE_CALL,
    "broker/services/cluster.py: notify": "it only wakes who watches, which can't fail",
    "broker/services/consumers.py: move": ONE_CALL,
    "broker/services/deliveries.py: _set_to_work": TOLD,
    "broker/ticker.py: start": ENDS,
    "broker/ticker.py: _on_due": ENDS,
    "broker/turns.py: later": GUARDED,
    "broker/turns.py: _begin": NOTHING_ELSE,
    "dledger/applying.py: schedule": GUARDED,
    "dledger/driver.py: _schedule": GUARDED,
    "dledger/driver.py: _run": GUARDED,
    "dledger/endpoint.py: open": ONE_CALL,
    "dledger/endpoint.py: close": NOTHING_ELSE,
    "dledger/transport.py: start": GOES_ON,
    "dledger/transport.py: wake_at": GOES_ON,
    "dledger/transport.py: dial": "dialed anew: tests/integration/test_transport.py",
    "dledger/transport.py: _call": GOES_ON,
    "dledger/transport.py: _serve_call": GOES_ON,
    "store/worker.py: __init__": ENDS,
}
OTHERS = ("client", "spark", "testing", "terminal", "local_group")  # no part of a node


def begins_in(tree: ast.AST, inside: str) -> Iterator[str]:
    """The functions in which something is begun, by their names."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}.{node.name}" if inside else node.name
        if isinstance(node, ast.Call):
            called = node.func
            what = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if what in BEGINS:
                yield inside
        yield from begins_in(node, name)


def test_every_place_where_long_lived_work_begins_says_what_becomes_of_its_errors() -> None:
    found = set()
    for package in ("broker", "dledger", "store"):
        for path in sorted((ROOT / package).rglob("*.py")):
            file, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
            if not set(OTHERS) & set(file.parts) and any(f"{each}(" in text for each in BEGINS):
                found |= {f"{file.as_posix()}: {name}" for name in begins_in(ast.parse(text), "")}
    assert found == set(PLACES)
