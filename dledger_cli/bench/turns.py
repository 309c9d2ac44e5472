"""How long a node's event loop is held, load by load, beside what an echo's is held.

A node runs in this process, on a loop that measures its turns (`dledger_cli.bench.turn_loop`), in a
folder that is gone afterwards; what is asked of it goes through the door's handlers, with the
answers' bytes made as gRPC makes them. So a figure is the longest turn of one load in milliseconds
of the loop thread's processor time, and what else the machine does matters little. Loads are as
large as clients can make them: see each one's name. The log's own loads call the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from broker.assembly import facts_of
from broker.config import RaftConfig
from broker.doors.grpc.broker import BrokerDoor
from broker.node import Node, tune_interpreter
from broker.picture import node_facts
from broker.raft_options import parse_frames
from broker.replica import Replica
from broker.state.groups import JoinWish, Settings
from broker.state.level import COMMAND_LEVELS
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef
from dledger.reading.entry import EntryKind
from dledger.wire import broker_pb2 as pb
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.full_state import TOPICS, full_machine
from dledger_cli.bench.inside import SEGMENT_BYTES, serving_node, small
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.snapshot import MOST_MS, take_snapshot
from dledger_cli.bench.turn_loop import TurnLoop, Turns, measure_echo
from store.commitlog import CommitLog, CommitLogOptions

TARGET = Target(Comparison.AT_MOST, MOST_MS)
LOG_SEGMENT_BYTES = 16 << 20
AT_ONCE = 100  # calls that arrive in one turn
RECHECK_MS = 4_000  # less than after which a held pull looks again, more than asking all takes

BIG_TOPICS = 40  # of 1,024 queues each
BIG_MEMBERS = 100
LEVEL = COMMAND_LEVELS["join_group"]

Found = dict[str, list[float]]


class _Call:
    """A call whose answer is read at once."""

    def add_done_callback(self, callback: Callable[[object], None], /) -> None:
        callback(None)


class Loads:
    """The loads of one node, each measured into `found`."""

    def __init__(self, node: Node, turns: Turns, found: Found) -> None:
        self._replica: Replica = node.replica
        self._services = node.replica.services
        self._door = BrokerDoor(node.replica.services)
        self._turns = turns
        self._found = found

    async def _measure(self, name: str, load: Awaitable[object]) -> None:
        await asyncio.sleep(0)
        with self._turns.measured(self._found, name):
            await load
            await asyncio.sleep(0)

    async def messages(self) -> None:
        """Sends and pulls of many small messages."""
        for topic in ("whole", "single"):
            await self._services.topics.create(topic, 1, if_not_exists=True)
        sends = self._services.sends
        tagged = [small("whole", 0, 40_000, b"", tag="a")]
        await self._measure("Send: 1 batch of 40,000", sends.send(b"", tagged))
        long_tags = [small("whole", 0, 1, b"", tag=f"{each}" + "x" * 32_000) for each in range(130)]
        joined = replace(long_tags[0], count=130, records=b"".join(b.records for b in long_tags))
        await self._measure("Send: 130 messages, tags of 32 KB", sends.send(b"", [joined]))
        many = [small("whole", 0, 60)] * 1_024
        await self._measure("Send: 1,024 batches of 60", sends.send(b"", many))
        for _ in range(32):
            await sends.send(b"", [small("single", 0, 1)] * 1_024)
        await self._measure("Pull: 32,768 of one batch", self._pull("whole", 0))
        await self._measure("Pull: 32,768 entries of one", self._pull("single", 0))

    async def held(self, count: int) -> None:
        """As many pulls as may be held, woken by one message, and asked again to wait in vain."""
        await self._services.topics.create("awaited", 1, if_not_exists=True)
        for name, hold_ms in (("woken by a message", 20_000), ("at their end", RECHECK_MS)):
            end = self._replica.machine.topics["awaited"].next_offsets[0]
            asked = pb.PullRequest(topic="awaited", offset=end, hold_ms=hold_ms)
            pulls: list[asyncio.Task[pb.PullResponse]] = []
            for _ in range(0, count, AT_ONCE):
                some = [self._door.pull(asked, _Call()) for _ in range(AT_ONCE)]
                pulls += [asyncio.create_task(each) for each in some]
                await asyncio.sleep(0)
            while self._replica.held.statistics().held < len(pulls):  # noqa: ASYNC110  for a bench
                await asyncio.sleep(0)
            ended = asyncio.gather(*pulls)
            with self._turns.measured(self._found, f"{count:,} held pulls {name}"):
                if hold_ms > RECHECK_MS:
                    await self._services.sends.send(b"", [small("awaited", 0, 1)])
                await ended

    async def _pull(self, topic: str, offset: int) -> None:
        request = pb.PullRequest(
            topic=topic, queue_id=0, offset=offset, max_messages=32_768, max_bytes=8 << 20
        )
        (await self._door.pull(request, _Call())).SerializeToString()

    async def topics(self, count: int) -> None:
        """Many of them: made, filled, listed, kept, told of, deleted."""
        topics, names = self._services.topics, [f"t{number}" for number in range(count)]
        text = f"{count:,}"

        async def make(name: str) -> None:
            await topics.create(name, 1, if_not_exists=False)

        async def fill() -> None:
            for first in range(0, count, 1_000):
                batches = [small(name, 0, 1) for name in names[first : first + 1_000]]
                await self._services.sends.send(b"", batches)

        async def list_page() -> None:
            request = pb.ListTopicsRequest()
            (await self._door.list_topics(request, _Call())).SerializeToString()

        await self._measure(f"create {text} topics", in_groups(names, make))
        await self._measure(f"first message of {text} queues", fill())
        await self._measure(f"ListTopics, {text} topics", list_page())
        await self._measure(f"housekeeping, {text} queues", self._replica.housekeeping.make_round())
        await self._measure("metrics", self._tell())
        await self._measure("GetStatus", self._services.cluster.status())
        await self._measure("delete 1,000 topics", in_groups(names[:1_000], self._delete))

    async def _delete(self, name: str) -> None:
        await self._services.topics.delete(TopicRef(name))

    async def _tell(self) -> None:
        services, links = self._services, self._replica.transport.links()
        node_facts(facts_of(self._replica.parts, services.sends, services.pulls, links))

    async def groups(self) -> None:
        """A topic of many queues with many consumer groups."""
        await self._services.topics.create("wide", 1_024, if_not_exists=True)
        await self._services.sends.send(b"", [small("wide", each, 1) for each in range(1_024)])
        wanted = tuple((queue_id, 1) for queue_id in range(1_024))

        async def commit(group: str) -> None:
            await self._services.offsets.commit(OffsetCommit(group, "wide", wanted, is_reset=False))

        async def describe() -> None:
            request = pb.DescribeTopicRequest(name="wide")
            (await self._door.describe_topic(request, _Call())).SerializeToString()

        for group in range(99):
            await commit(f"g{group}")
        await self._measure("CommitOffsets, 1,024 queues", commit("g99"))
        await self._measure("DescribeTopic, 1,024 queues, 100 groups", describe())
        await self._measure("delete a topic of 1,024 queues", self._delete("wide"))

    async def big_group(self) -> None:
        """A consumer group of many members and more queues than anybody has: what it is given at
        first, and what is asked back and taken when one more joins."""
        names = [f"big{number:02}" for number in range(BIG_TOPICS)]
        for name in names:
            await self._services.topics.create(name, 1_024, if_not_exists=True)
        while self._replica.machine.level.current < LEVEL:  # noqa: ASYNC110  for a bench
            await asyncio.sleep(0.05)
        stream = self._services.groups.attend()
        reading = asyncio.create_task(_read(stream.updates()))
        settings, text = Settings(topics=tuple(names)), f"a group of {BIG_TOPICS * 1_024:,} queues"
        try:

            async def join(number: int) -> None:
                token = number.to_bytes(8, "big")
                wish = JoinWish("big", f"m{number:04}", token, settings)
                await stream.join(number, wish, 0)

            async def begin() -> None:
                for number in range(BIG_MEMBERS):
                    await join(number)
                while self._replica.machine.leases.lease_count < BIG_TOPICS * 1_024:
                    stream.heartbeat(1)
                    await asyncio.sleep(0.05)

            async def one_more() -> None:
                await join(BIG_MEMBERS)
                machine = self._replica.machine
                while machine.groups.session_count <= BIG_MEMBERS or not machine.leases.held_count(
                    max(machine.groups.sessions())
                ):
                    stream.heartbeat(1)
                    await asyncio.sleep(0.05)

            await self._measure(f"{text}, {BIG_MEMBERS} members join", begin())
            await self._measure(f"{text}, one more joins", one_more())
        finally:
            stream.hang_up(None)
            await reading
            stream.close()


async def _read(updates: AsyncIterator[object]) -> None:
    async for _ in updates:
        pass


async def in_groups(names: list[str], call: Callable[[str], Awaitable[None]]) -> None:
    """`call` for each name, some at a time, as they would arrive."""
    for first in range(0, len(names), AT_ONCE):
        await asyncio.gather(*(call(name) for name in names[first : first + AT_ONCE]))


async def measure_log(directory: Path, found: Found, turns: Turns) -> None:
    """Segments full of the smallest entries: rolling, reading for who is far behind, cutting."""
    options = CommitLogOptions(segment_size_bytes=LOG_SEGMENT_BYTES, reserve_bytes=0)
    log = CommitLog.open(directory, options)
    failures: list[BaseException] = []
    log.on_failed = failures.append
    tick, firsts = 0, [1]
    with contextlib.closing(log):
        await asyncio.sleep(0)
        with turns.measured(found, "append and roll, smallest entries"):
            while log.statistics().segments < 10 and not failures:
                for _ in range(500):
                    if not log.has_room(60):
                        break
                    log.append(EntryKind.NOOP, log.last_index + 1, 1, 1, 0, b"")
                if log.statistics().segments > len(firsts):
                    firsts.append(log.last_index)
                tick += 1
                log.submit(tick)
                await asyncio.sleep(0.001 if log.unwritten_bytes > 1 << 20 else 0)
        for name, read in (
            ("an append from the disk, smallest entries", False),
            ("the same, read and taken by a follower", True),
        ):
            await asyncio.sleep(0)
            with turns.measured(found, name):
                frames = log.read(1, RaftConfig().max_append_entries)
                if read:
                    parse_frames(frames)
                await asyncio.sleep(0)
        for name, index in (
            ("cut in the newest full segment", firsts[-2] + 100_000),
            ("cut in the oldest segment", 100_000),
        ):
            await asyncio.sleep(0)
            with turns.measured(found, name):
                log.truncate_from(index)
                await asyncio.sleep(0)


async def measure_collection(found: Found, turns: Turns) -> None:
    """The interpreter's collector, with a full state that it has not seen before. What the loads
    before left behind isn't counted, nor what a node's start freezes."""
    gc.collect()
    gc.freeze()
    machine = full_machine()
    await asyncio.sleep(0)
    with turns.measured(found, "a full collection, 50,000 producers"):
        gc.collect()
        await asyncio.sleep(0)
    if len(machine.topics) != TOPICS:
        raise AssertionError("the state is there until here")


def measure_turns(directory: Path, topics: int, rounds: int, tell: Tell) -> Report:
    """The report of `rounds` rounds, each in a new folder in `directory`."""
    echoes: Found = {}
    found: Found = {}
    tune_interpreter()
    loop = TurnLoop()

    async def measure(folder: Path) -> None:
        tell("an echo")
        await measure_echo(echoes, loop.turns, "echo, 64 in flight")
        async with serving_node(folder / "n1") as node:
            loads = Loads(node, loop.turns, found)
            tell("messages")
            await loads.messages()
            tell("consumer groups")
            await loads.groups()
            tell("a consumer group of many queues")
            await loads.big_group()
            tell("topics")
            await loads.topics(topics)
            tell("held pulls")
            await loads.held(node.config.broker.max_held_pulls)
        tell("the log")
        await measure_log(folder / "log", found, loop.turns)
        tell("the collector")
        await measure_collection(found, loop.turns)
        tell("a snapshot")
        name = "a snapshot of a full state"
        await take_snapshot(full_machine(), folder / "snapshot", loop.turns, found, name)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="dledger-turns-", dir=directory) as folder:
                runner.run(measure(Path(folder)))
    return Report(
        benchmark="turns",
        parameters={"topics": topics, "rounds": rounds, "segment_bytes": SEGMENT_BYTES},
        yardsticks=tuple(Figure(name, "ms", Spread.of(each)) for name, each in echoes.items()),
        figures=tuple(
            Figure(name, "ms", Spread.of(each), target=TARGET) for name, each in found.items()
        ),
        notes=("the longest turn of each load, processor time of the loop's thread",),
    )
