"""Disks that fail or are slow, below real processes: how they end, and what the group does."""

from __future__ import annotations

import asyncio
import errno
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.ending import DISK_ERRNOS, disk_failure_in, ending_of
from broker.local_group.process import spawn_detached, use_spawner
from chaos.faults import FaultOrders
from chaos.real.arena import Arena, ArenaOptions, arena
from dledger.client import Client, ClientOptions
from dledger.outcome import ExitCode
from store.errors import CorruptionFound, StorageFailed, StorageFull
from tests.warm import spawn

TOPIC = "t"
WAIT_S = 60.0
TICK_MS, SLOW_MS = 50, 500  # five times the usual tick; two thirds of the shortest election


@pytest.fixture(autouse=True)
def _nodes_are_children() -> Iterator[None]:
    """How they end is for their parent to hear."""
    use_spawner(spawn_detached)
    yield
    use_spawner(spawn)


def within_group(
    folder: Path,
    act: Callable[[Arena, Client], Awaitable[None]],
    tick_ms: int | None = None,
) -> None:
    """Three nodes that serve, and a client of them.

    Args:
        tick_ms: of nodes' timers; None: as they have it.
    """

    async def scenario() -> None:
        async with arena(folder / "group", ArenaOptions(nodes=3, seed=1)) as made:
            for node in made.group.nodes:
                made.retime(node.id, tick_ms)
            await made.group.up()
            addresses = ",".join(made.client_addresses)
            async with Client.connect(
                addresses, options=ClientOptions(deadline_s=WAIT_S)
            ) as client:
                await client.create_topic(TOPIC, queues=1)
                await act(made, client)

    asyncio.run(scenario())


async def roles(made: Arena) -> tuple[str, str, int]:
    """The leader, one that follows, and the term; once somebody leads and serves."""
    deadline = time.monotonic() + WAIT_S
    while True:
        status = await made.group.status()
        following = [node.id for node in status.nodes if node.role == "follower"]
        if status.serves and status.leader and following:
            return status.leader, following[0], status.term or 0
        assert time.monotonic() < deadline, status
        await asyncio.sleep(0.05)


async def ended(pid: int) -> int:
    """The exit code of a node, once it is over."""
    _, status = await asyncio.wait_for(asyncio.to_thread(os.waitpid, pid, 0), WAIT_S)
    return os.waitstatus_to_exitcode(status)


def pid_of(made: Arena, node_id: str) -> int:
    process = made.group.node(node_id).process
    assert process is not None
    return process.pid


async def send(client: Client, count: int) -> list[float]:
    """How long each of so many sends took, one after the other, in seconds."""
    took = []
    async with client.producer() as producer:
        for number in range(count):
            began = time.monotonic()
            await producer.send(TOPIC, str(number).encode())
            took.append(time.monotonic() - began)
    return took


def failing(operation: str) -> Callable[[FaultOrders], FaultOrders]:
    return lambda orders: replace(orders, failing={operation: "EIO"})


@pytest.mark.parametrize(
    ("who", "operation"),
    [("leader", "fdatasync"), pytest.param("follower", "pwritev", marks=pytest.mark.long)],
)
def test_node_whose_disk_fails_ends_with_4_and_the_group_goes_on(
    tmp_path: Path, who: str, operation: str
) -> None:
    """Sends are stored meanwhile; a start on the disk that still fails ends with 4 as well, and on
    one that works again the node is a member as before."""

    async def act(made: Arena, client: Client) -> None:
        leader, follower, term = await roles(made)
        victim = leader if who == "leader" else follower
        pid = pid_of(made, victim)
        made.meant_to_be_down.add(victim)
        made.order("broken", victim, failing(operation))
        stored = asyncio.create_task(send(client, 20))
        assert await ended(pid) == ExitCode.DISK_FAILED
        assert len(await stored) == 20
        now, _, new_term = await roles(made)
        assert now != victim
        assert (new_term > term) == (who == "leader")
        assert '"kind":"StorageFailed"' in made.log_since(victim).replace(": ", ":")
        made.order("broken", victim, failing("fsync" if operation == "fdatasync" else operation))
        made.group._launch([victim])
        assert await ended(pid_of(made, victim)) == 4
        assert "storage failed" in made.log_since(victim)
        made.order("broken", victim, None)
        await made.start(victim)
        await send(client, 1)
        status = await made.group.status()
        assert all(node.alive for node in status.nodes)

    within_group(tmp_path, act)


@pytest.mark.long
def test_start_on_a_disk_that_cannot_be_read_ends_with_4(tmp_path: Path) -> None:
    """EIO on what a start reads is the disk's failure, not the program's."""

    async def act(made: Arena, client: Client) -> None:
        _, follower, _ = await roles(made)
        made.terminate(follower)
        assert await ended(pid_of(made, follower)) == 0
        made.order("broken", follower, failing("pread"))
        made.group._launch([follower])
        assert await ended(pid_of(made, follower)) == 4
        assert len(await send(client, 3)) == 3

    within_group(tmp_path, act)


@pytest.mark.parametrize("who", ["leader", pytest.param("follower", marks=pytest.mark.long)])
def test_disk_that_is_only_slow_moves_no_leader_and_slows_nobody(tmp_path: Path, who: str) -> None:
    """Two thirds of the time of an election for each sync: the other two are a majority that is as
    fast as ever. All times are five times the usual ones, so that a machine that has others to run
    moves no leader either."""

    async def act(made: Arena, client: Client) -> None:
        leader, follower, term = await roles(made)
        victim = leader if who == "leader" else follower
        before = await send(client, 50)
        made.order("slow", victim, lambda orders: replace(orders, sync_delay_ms=SLOW_MS))
        await asyncio.sleep(2 * SLOW_MS / 1000)
        slow = await send(client, 100)
        assert (await roles(made))[0::2] == (leader, term)
        # A send that waited for the slow disk would take that long, and more.
        assert statistics.median(slow) < max(SLOW_MS / 2000, 3 * statistics.median(before))
        made.order("slow", victim, None)
        await send(client, 5)
        assert (await roles(made))[0::2] == (leader, term)

    within_group(tmp_path, act, tick_ms=TICK_MS)


@pytest.mark.parametrize("number", sorted(DISK_ERRNOS), ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("filename", "is_its_disk"),
    [
        (None, True),
        (7, True),
        ("data/n1", True),
        ("data/n1/commitlog/00000000000000000000", True),
        ("data/n1/../n1/config", True),
        (Path("data/n1/hard_state").absolute(), True),
        (b"data/n1/abort", True),
        ("data/n12/abort", False),
        ("data/n1/../../tls/ca.pem", False),
        ("/etc/tls/ca.pem", False),
    ],
)
def test_error_of_a_file_elsewhere_says_nothing_of_the_disk(
    number: int, filename: object, *, is_its_disk: bool
) -> None:
    """Whatever is wrong where certificates lie, the data's disk needs no other."""
    error = OSError(number, os.strerror(number), filename)
    directory = Path("data/n1")
    assert (ending_of(error, directory) == ExitCode.DISK_FAILED) is is_its_disk
    assert (disk_failure_in(error, directory) is not None) is is_its_disk


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageFailed("flush", OSError(5, "Input/output error")), 4),
        (StorageFailed("flush", OSError(28, "No space left on device")), 4),
        (StorageFailed("flush", ValueError("a defect")), 1),
        (StorageFailed("flush", OSError(30, "Read-only file system")), 4),
        (StorageFailed("flush", OSError(13, "Permission denied")), 1),
        (StorageFailed("flush", OSError(1, "Operation not permitted")), 1),
        (StorageFailed("preallocation", OSError(24, "Too many open files")), 1),
        (StorageFailed("flush", OSError(23, "Too many open files in system")), 1),
        (StorageFailed("flush", OSError(12, "Cannot allocate memory")), 1),
        (OSError(5, "Input/output error"), 4),
        (OSError(30, "Read-only file system"), 4),
        (OSError(98, "Address already in use"), 1),
        (OSError(28, "No space left on device"), 1),
        (TimeoutError(), 1),
        (StorageFull("data", 1, 0), 1),
        (CorruptionFound("file", 0, 1, 2), 1),
        (RuntimeError("a defect"), 1),
    ],
)
def test_exit_code_says_whether_it_was_the_disk(error: Exception, code: int) -> None:
    """4 asks for another disk: nothing else may end with it."""
    assert ending_of(error) == code
    if isinstance(error, OSError):
        assert (disk_failure_in(error) is not None) == (code == 4)
