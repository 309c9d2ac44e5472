"""Rolling upgrades, on real processes: programs of levels 1, 4 and 8 as they were, and this one.

The older program is the kept one (`tests.integration.older_program`), so this shows what releases
do together, and not what this one does with its level held down (`tests/node/test_levels.py`).

Source: docs/adr/0023-levels.md.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.doctor.asking import ask_group
from broker.doctor.facts import MemberFacts
from broker.doctor.finding import Kind
from broker.doctor.judging import judge
from broker.local_group.status import GroupStatus
from dledger.client import Client, ClientOptions, Message, PushOptions, StartFrom
from dledger.level import (
    COMPOUND_LEVEL,
    DELIVERY_LEVEL,
    FIRST_LEVEL,
    KNOWN_LEVEL,
    TOPIC_RULES_LEVEL,
)
from dledger.outcome import ExitCode
from dledger.reading.chunks import intact_entries
from dledger.reading.entry import parse_header
from tests.integration.older_program import MixedGroup
from tests.warm import program

pytestmark = pytest.mark.slow

LEADERSHIPS = 5  # that are tried until one lasts
WAIT_S = 60.0
TOPIC = "t"


class Load:
    """Somebody who sends all the time, one message after the other, and a group that follows."""

    def __init__(self, client: Client) -> None:
        self.sent: list[bytes] = []
        self._client = client
        self._ends = False

    async def run(self) -> None:
        async with self._client.producer() as producer:
            while not self._ends:
                body = b"%d" % len(self.sent)
                await producer.send(TOPIC, body)
                self.sent.append(body)
                if len(self.sent) % 5 == 0:
                    await self._client.commit_offsets("readers", TOPIC, {0: len(self.sent)})
                await asyncio.sleep(0.02)

    async def goes_on(self) -> None:
        """Messages are acknowledged from now on."""
        count = len(self.sent)
        await until(lambda: _true(len(self.sent) >= count + 10))

    def end(self) -> None:
        self._ends = True


async def _true(found: bool) -> bool:
    return found


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not await reached():
        assert time.monotonic() < deadline, "it doesn't happen in time"
        await asyncio.sleep(0.1)


@asynccontextmanager
async def loaded(group: MixedGroup) -> AsyncIterator[Load]:
    """The load, while this lasts; then all that was acknowledged is there once and in order."""
    options = ClientOptions(deadline_s=WAIT_S)
    async with Client.connect(",".join(group.local.addresses), options=options) as client:
        await client.create_topic(TOPIC, queues=1)
        load = Load(client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            yield load
            load.end()
        async with client.pull_consumer(TOPIC, start=StartFrom.FIRST, idle_timeout_s=3) as reader:
            assert [message.body async for message in reader] == load.sent


@asynccontextmanager
async def working(group: MixedGroup, load: Load, level: int) -> AsyncIterator[None]:
    """A consumer group that works in order meanwhile, where that level has them; by the end it has
    handled all that was sent until then, in its order."""
    if level < DELIVERY_LEVEL:
        yield
        return
    handled: dict[bytes, None] = {}  # in the order of first times
    options = ClientOptions(deadline_s=WAIT_S)
    async with Client.connect(",".join(group.local.addresses), options=options) as client:
        settings = PushOptions(in_order=True, suspend_s=0.05)
        consumer = client.push_consumer("crew", options=settings)

        @consumer.on(TOPIC)
        async def handle(message: Message) -> None:
            if int(message.body) % 10 == 3 and message.attempt == 1:
                raise RuntimeError("for once")
            handled[message.body] = None

        task = asyncio.create_task(consumer.run())
        yield
        count = len(load.sent)
        await until(lambda: _true(len(handled) >= count))
        consumer.stop()
        await task
        assert list(handled) == load.sent[: len(handled)]


async def members(group: MixedGroup) -> dict[str, MemberFacts]:
    facts = await ask_group(group.local.addresses, None)
    return {each.id: each for each in facts.members}


async def levels(group: MixedGroup) -> set[int]:
    return {each.level for each in (await members(group)).values()}


async def whole(group: MixedGroup) -> GroupStatus:
    """All nodes answer, one serves, and all hold what it had committed."""
    goal = 0
    while True:
        status = await group.local.status()
        if status.serves_fully:
            goal = goal or max(each.commit_index or 0 for each in status.nodes)
            if all((each.last_index or 0) >= goal for each in status.nodes):
                return status
        await asyncio.sleep(0.1)


async def upgrade(group: MixedGroup, node_id: str) -> None:
    """As docs/operations.md says it."""
    await group.stop(node_id)
    group.upgraded.add(node_id)
    await put_up(group, node_id)


async def put_back(group: MixedGroup, node_id: str) -> None:
    await group.stop(node_id)
    group.upgraded.remove(node_id)
    await put_up(group, node_id)


async def put_up(group: MixedGroup, node_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        await group.local.start(node_id)
        await whole(group)


async def told(group: MixedGroup, *words: str) -> tuple[int, str]:
    """How a command of this release ends, and what it says on both outputs."""
    bootstrap = ",".join(group.local.addresses)
    done = await asyncio.to_thread(program, *words, "--bootstrap", bootstrap)
    return done.returncode, done.stdout + done.stderr


def audit(group: MixedGroup) -> None:
    """Every byte that all three hold is the same, and so are the queues that derive from it."""
    directory = str(group.local.directory)
    done = program("audit", "replicas", "--json", "--derived", "--dir", directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "identical"


def test_group_is_upgraded_node_by_node_under_load(tmp_path: Path) -> None:
    """While one member is of the older release its level is in use, whoever leads; a node that is
    put back meanwhile goes on. The last one that is upgraded raises the level. A node that is put
    back then is told by name: it applies nothing, counts for a majority, and goes on where it was
    once the newer program is there again."""

    async def scenario(group: MixedGroup) -> None:
        await group.local.up()
        async with loaded(group) as load:
            await load.goes_on()
            status = await whole(group)
            last = status.leader or ""
            first, second = (each.id for each in status.nodes if each.id != last)
            await upgrade(group, first)
            await load.goes_on()
            await put_back(group, first)
            await load.goes_on()
            await upgrade(group, first)
            await upgrade(group, second)
            await load.goes_on()
            found = await members(group)
            assert {name: each.known_level for name, each in found.items()} == {
                first: KNOWN_LEVEL,
                second: KNOWN_LEVEL,
                last: FIRST_LEVEL,
            }
            assert {each.level for each in found.values()} == {FIRST_LEVEL}
            for _ in range(LEADERSHIPS):  # a busy machine may elect the older one again meanwhile
                await told(group, "group", "transfer", first)
                code, text = await told(group, "member", "demote", second)
                assert code == ExitCode.FAILED
                if "takes no administration" not in text:
                    break
            assert f"level {FIRST_LEVEL} is in use" in text
            await upgrade(group, last)
            await until(lambda: _has(group, {KNOWN_LEVEL}))
            await load.goes_on()
            await check_put_back_too_late(group, load, first, second)
        await group.local.down()
        audit(group)

    run(tmp_path, scenario)


async def _has(group: MixedGroup, wanted: set[int]) -> bool:
    return await levels(group) == wanted


async def check_put_back_too_late(group: MixedGroup, load: Load, node_id: str, other: str) -> None:
    await put_back(group, node_id)
    reason = (await members(group))[node_id].apply_stopped
    assert f"raises the level of formats and commands to {FIRST_LEVEL + 1}" in reason
    assert f"this program knows {FIRST_LEVEL}: install a newer one" in reason
    assert '"event": "apply_stopped"' in group.local.node(node_id).log_file.read_text()
    findings = judge(await ask_group(group.local.addresses, None))
    assert Kind.APPLY_STOPPED in {each.kind for each in findings if each.member == node_id}
    code, text = await told(group, "group", "doctor")
    assert code == ExitCode.FAILED, text
    assert "applying has stopped" in text
    code, text = await told(group, "group", "status")
    assert code == 0
    assert "install a newer one" in text
    code, text = await told(group, "member", "demote", other)
    assert code == ExitCode.FAILED
    assert f"{node_id}: the program knows less than level" in text
    await load.goes_on()
    await group.stop(other)  # without the node that was put back there is no majority now
    await load.goes_on()
    await put_up(group, other)
    await upgrade(group, node_id)
    await until(lambda: _has(group, {KNOWN_LEVEL}))
    await load.goes_on()


@pytest.mark.parametrize(
    ("level", "next_level"),
    [(4, COMPOUND_LEVEL), (8, TOPIC_RULES_LEVEL)],
)
@pytest.mark.long
def test_older_member_keeps_what_it_cannot_read(
    tmp_path: Path, level: int, next_level: int
) -> None:
    """Put back after the raise, it stops in front of it, takes the entries behind, counts for a
    majority with them, serves its log to who lacks it, and goes on with the newer program. A group
    that works in order, and fails now and then, goes on from level 8 to this one."""

    async def scenario(group: MixedGroup) -> None:
        await group.local.up()
        async with loaded(group) as load, working(group, load, level):
            await until(lambda: _has(group, {level}))
            await load.goes_on()
            assert bool(units_in(group)) == (level >= COMPOUND_LEVEL)
            names = [each.id for each in (await whole(group)).nodes]
            for name in names:
                await upgrade(group, name)
            await until(lambda: _has(group, {KNOWN_LEVEL}))
            await load.goes_on()
            older, other, third = names
            await put_back(group, older)
            reason = (await members(group))[older].apply_stopped
            assert f"raises the level of formats and commands to {next_level}" in reason
            await group.stop(other)  # no majority without the older one
            await load.goes_on()
            await put_up(group, other)
            await group.stop(third)
            await load.goes_on()
            await put_up(group, third)
            await upgrade(group, older)
            await until(lambda: _has(group, {KNOWN_LEVEL}))
            await load.goes_on()
        await group.local.down()
        assert units_in(group)
        audit(group)

    run(tmp_path, scenario, level)


def units_in(group: MixedGroup) -> int:
    """How many entries that hold units the first member's log has."""
    data = Path(group.local.nodes[0].config).parent / "data"
    found = 0
    for path in sorted((data / "commitlog").glob("0" * 12 + "*")):
        content = path.read_bytes()
        starts, _ = intact_entries(content)
        found += sum(parse_header(content, at).is_compound for at in starts)
    return found


def run(
    folder: Path, scenario: Callable[[MixedGroup], Awaitable[None]], level: int = FIRST_LEVEL
) -> None:
    async def within() -> None:
        group = MixedGroup(folder, level)
        try:
            await scenario(group)
        finally:
            group.local.kill_all()

    asyncio.run(within())
