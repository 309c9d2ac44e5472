"""Data directories of groups of releases before this one: they open, are served, and audit
identical, before and after.

What is in them and who made it: `tests.integration.older_program`. How members of both releases
work together: `tests/integration/test_rolling_upgrade.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from broker.config import NodeConfig
from broker.recovery import recover
from broker.services.messages import PullRequest
from broker.state.machine import StateMachine
from broker.state.offsets import OffsetCommit
from broker.state.retries import Queue as Level
from broker.state.topics import TopicRef
from dledger.level import DELIVERY_LEVEL, KNOWN_LEVEL
from dledger.reading.decode import Wanted, read_records
from dledger.reading.ranges import checked_log, log_ranges
from dledger.reading.survey import survey_folder
from dledger.records.reserved import LEVELS as LEVELS_OF_DELAY
from dledger.records.reserved import SCHEDULE_TOPIC
from tests.integration.older_program import (
    ANEW,
    COMMITTED,
    GONE,
    KEPT,
    LEVELS,
    SEGMENT,
    WORK,
    data_of,
    unpacked,
)
from tests.node.members import Members, make_configs
from tests.node.test_replica import Call

WAITS_AT = 2  # the queue of the first delay of failed messages


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> int:
    """Of the older release."""
    return int(request.param)


@pytest.fixture
def configs(tmp_path: Path, level: int) -> list[NodeConfig]:
    """The three nodes', on what the older release left."""
    unpacked(data_of(level), tmp_path)
    return [
        config.model_copy(
            update={
                "broker_group": "local",
                "store": config.store.model_copy(update={"segment_size_bytes": SEGMENT}),
            }
        )
        for config in make_configs(tmp_path, 3)
    ]


def bodies(directory: Path) -> list[tuple[object, ...]]:
    """Every message of a log as data, in its order."""
    log = checked_log(survey_folder("n", str(directory)))
    wanted = Wanted(columns=("topic", "queue_id", "queue_offset", "tags", "body"))
    return [
        row
        for part in log_ranges(log, 0, log.end)
        for records in read_records(part, wanted)
        for row in zip(*records.columns.values(), strict=True)
    ]


WRITTEN = [
    *(("kept", 1, number, "red", body) for number, body in enumerate(KEPT)),
    *(("gone", 0, number, None, body) for number, body in enumerate(GONE)),
    *(("gone", 0, number, None, body) for number, body in enumerate(ANEW)),
]


WORKED = [
    *(("work", 0, at, "blue" if at % 2 else "red", body) for at, body in enumerate(WORK)),
    ("%DLQ%crew", 0, 0, "red", WORK[2]),
    (SCHEDULE_TOPIC, WAITS_AT, 0, "red", WORK[0]),
]


def written(level: int) -> list[tuple[object, ...]]:
    """All that a release of that level has written, in its order."""
    return [*WRITTEN, *(WORKED if level >= DELIVERY_LEVEL else ())]


def check_identical(configs: list[NodeConfig]) -> None:
    replicas = [f"--replica={each.node_id}={each.data_directory}" for each in configs]
    result = CliRunner().invoke(app, ["replicas", "--derived", *replicas])
    assert result.exit_code == 0, result.output
    assert "identical" in result.output


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))]
)
def test_each_opens_with_all_its_state(configs: list[NodeConfig], level: int, number: int) -> None:
    """Topics, offsets, producers and messages are those that the older release had."""
    found = recover(configs[number])
    try:
        topics = {each.name: each.next_offsets for each in found.machine.topics.values()}
        assert topics.pop("kept") == [0, len(KEPT)]
        assert topics.pop("gone") == [len(ANEW), 0]
        if level >= DELIVERY_LEVEL:
            check_delivery(found.machine)
        else:
            assert not topics
        assert found.machine.offsets.of("readers", "kept") == {1: COMMITTED}
        assert found.machine.messages_applied == len(written(level))
        assert len(found.machine.producers) == (3 if level >= DELIVERY_LEVEL else 2)
        assert found.machine.level.current == level
    finally:
        found.log.close()
        found.directory.close()


def check_delivery(machine: StateMachine) -> None:
    """What groups were through with, what waits for them, what is in hand."""
    ends = {topic.name: topic.next_offsets for topic in machine.topics.values()}
    assert ends["work"] == [len(WORK)]
    assert ends["%RETRY%crew"] == [0]
    assert ends["%DLQ%crew"] == [1]
    schedule = machine.topics[SCHEDULE_TOPIC]
    assert schedule.next_offsets == [int(at == WAITS_AT) for at in range(LEVELS_OF_DELAY)]
    assert machine.retries.moved_to(Level(schedule.incarnation, WAITS_AT)) == 0
    crew = machine.groups.get("crew")
    assert crew is not None
    assert (crew.settings.max_attempts, crew.settings.tags) == (3, (("work", ("red",)),))
    assert machine.offsets.of("crew", "work") == {0: len(WORK)}
    (shop,) = machine.deliveries.in_topic("shop", machine.topics["work"].incarnation).values()
    assert [offset for each in shop for offset in each.offsets()] == [0, 3]
    assert shop.next == 4


def test_they_audit_identical_as_they_are(configs: list[NodeConfig], level: int) -> None:
    check_identical(configs)
    assert bodies(configs[0].data_directory) == written(level)


def test_they_are_served_and_audit_identical_afterwards(
    configs: list[NodeConfig], level: int
) -> None:
    """The level goes up, as all three are of this release, and they go on writing, units too; not a
    byte of what there was is another one. What waited to be tried again is, as its time has come.
    """

    async def serve() -> None:
        group = Members(configs)
        group.start()
        leader = await group.leader()
        replicas = list(group.replicas.values())
        await group.until(
            lambda: {each.machine.level.current for each in replicas} == {KNOWN_LEVEL}
        )
        asked = PullRequest(TopicRef("kept"), 1, COMMITTED)
        pulled = await leader.services.pulls.pull(asked, Call())
        assert pulled.records
        await group.until(lambda: not leader.mender.is_at_work)
        commit = OffsetCommit("readers", "kept", ((1, len(KEPT)),), is_reset=False)
        assert await leader.services.offsets.commit(commit)
        last = leader.log.header_at(leader.log.last_index)
        assert last.is_compound
        await group.until(lambda: all(e.machine.applied_index >= last.index for e in replicas))
        assert {e.machine.offsets.of("readers", "kept")[1] for e in replicas} == {len(KEPT)}
        if level >= DELIVERY_LEVEL:
            await group.until(
                lambda: all(e.machine.topics["%RETRY%crew"].next_offsets == [1] for e in replicas)
            )
        await asyncio.gather(*(group.stop(name) for name in list(group.replicas)))

    before = [_log(each) for each in configs]
    asyncio.run(serve())
    check_identical(configs)
    again = [("%RETRY%crew", 0, 0, "red", WORK[0])] if level >= DELIVERY_LEVEL else []
    assert bodies(configs[1].data_directory) == [*written(level), *again]
    for config, log in zip(configs, before, strict=True):
        assert _log(config).startswith(log)


def _log(config: NodeConfig) -> bytes:
    """What is in the first segment, without the zeros behind it."""
    return (config.data_directory / "commitlog" / f"{0:020d}").read_bytes().rstrip(b"\0")
