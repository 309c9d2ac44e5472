"""Units of compound entries to those who read a log as data: audits, exports, dumps.

The directories are those of a group whose writers of units had conditions that failed
(`chaos.sim.unit_writers`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.commands.log import app as log_app
from audit.contents.stats import sum_log
from audit.engines.engine import LocalEngine
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from chaos.sim.unit_writers import TOPIC
from dledger.reading.compound import batches_in, unit_spans
from dledger.reading.decode import Wanted, read_records
from dledger.reading.entry import EntryHeader, parse_header
from dledger.reading.lifetimes import Lifetimes, readable
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import Command
from store.dispatch import UNIT_SIZE, units_for_entry
from store.voiding import is_void, voided
from tests.audit.simulated_group import group_plan, make_group


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    plan = replace(group_plan(), unit_writers=2, rate=120)
    return make_group(tmp_path_factory.mktemp("units"), plan)


@pytest.fixture
def group(made: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """A copy that may be changed."""
    return {
        name: Path(shutil.copytree(path, tmp_path / name)) for name, path in sorted(made.items())
    }


@pytest.fixture
def log(group: dict[str, Path]) -> Survey:
    return committed_log(Replica("n1", str(group["n1"])))


def compound(log: Survey) -> Iterator[tuple[EntryHeader, bytes]]:
    """The entries that hold units with records, in order."""
    return (each for each in with_records(log) if each[0].is_compound)


def with_records(log: Survey) -> Iterator[tuple[EntryHeader, bytes]]:
    """The entries that hold records, in units or not, in order."""
    for part in log_ranges(log, 0, log.settled):
        content = Path(part.path).read_bytes()[: part.end - part.base]
        at = 0
        while at + 56 <= len(content) and content[at + 4 : at + 8] == bytes.fromhex("daa320d1"):
            header = parse_header(content, at)
            if header.record_count:
                yield header, content[at : at + header.total_size]
            at += header.total_size


def contents(header: EntryHeader, frame: bytes) -> Iterator[bytes]:
    """The records of each batch."""
    if not header.is_compound:
        yield frame[header.first_record_at :]
        return
    for batch in batches_in(header, frame):
        yield batch.frame[batch.header.first_record_at :]


def units(directory: Path) -> dict[tuple[int, int], tuple[bytes, Path]]:
    """The topic's units by queue and offset, and the file of each."""
    found = {}
    (folder,) = (directory / "consumequeue").glob(f"{TOPIC}@*")
    for path in sorted(folder.rglob("0" * 20)):
        content = path.read_bytes()
        for offset in range(len(content) // UNIT_SIZE):
            unit = content[offset * UNIT_SIZE : (offset + 1) * UNIT_SIZE]
            if any(unit):
                found[int(path.parent.name), offset] = unit, path
    return found


def values(log: Survey, wanted: Wanted) -> dict[tuple[int, int], bytes]:
    """The topic's messages by queue and offset, as data."""
    names = ("queue_id", "queue_offset", "body")
    chosen = replace(wanted, columns=names, topics=frozenset({TOPIC}))
    return {
        (int(queue_id), int(offset)): bytes(body)
        for part in log_ranges(log, 0, log.settled)
        for records in read_records(part, chosen)
        for queue_id, offset, body in zip(*records.columns.values(), strict=True)
    }


def audited(group: dict[str, Path], *more: str) -> tuple[int, dict[str, object]]:
    replicas = [f"--replica={name}={path}" for name, path in group.items()]
    result = CliRunner().invoke(app, ["replicas", "--derived", "--json", *more, *replicas])
    return result.exit_code, json.loads(result.output)


def write(path: Path, offset: int, unit: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset * UNIT_SIZE)
        file.write(unit)


def test_there_is_something_to_show(group: dict[str, Path], log: Survey) -> None:
    """Units that took effect, units that were refused, in several segments."""
    voids = [is_void(unit, offset) for (_, offset), (unit, _) in units(group["n1"]).items()]
    assert min(sum(voids), len(voids) - sum(voids)) >= 10
    assert len({header.physical_offset >> 14 for header, _ in compound(log)}) > 2


def test_replicas_audit_identical(group: dict[str, Path]) -> None:
    """Void units are what the log says, in every replica."""
    code, report = audited(group)
    assert (code, report["verdict"]) == (0, "identical"), report


def test_data_has_all_but_what_was_refused(group: dict[str, Path], log: Survey) -> None:
    """Offset by offset, by what the log itself says."""
    cut, left_out = readable(log)
    assert cut.settled == log.settled
    of_queues = units(group["n1"])
    void = {place for place, (unit, _) in of_queues.items() if is_void(unit, place[1])}
    found = values(log, Wanted(left_out=left_out))
    assert set(found) == set(of_queues) - void
    everything = values(log, Wanted())
    assert set(everything) == set(of_queues)
    records = {
        (record.queue_id, record.queue_offset): record.body
        for header, frame in with_records(log)
        for content in contents(header, frame)
        for record in decode_records(content)
        if record.topic == TOPIC
    }
    assert everything == records
    total = sum_log(Replica("n1", str(group["n1"])), LocalEngine(), frozenset({TOPIC}))
    assert total.topics()[TOPIC].messages == len(found)


def test_what_the_log_has_not_said_yet_is_not_read_yet(log: Survey) -> None:
    """Wherever a reader catches the log, it reads no unit of which nothing is said, and none that
    will be said to have been refused."""
    _, last = readable(log)
    starts = sorted(header.physical_offset + header.total_size for header, _ in compound(log))
    for end in starts[:: max(1, len(starts) // 12)]:
        early = replace(log, settled=end)
        cut, left_out = readable(early)
        assert cut.settled < end, "nothing is said of the entry that ends there"
        assert left_out.refused <= last.refused
        seen = values(cut, Wanted(left_out=left_out))
        assert seen.items() <= values(log, Wanted(left_out=last)).items()


def test_a_log_is_followed_as_it_grows(log: Survey) -> None:
    lifetimes = Lifetimes(0)
    for header, _ in compound(log):
        lifetimes.follow(replace(log, settled=header.physical_offset))
    lifetimes.follow(log)
    assert lifetimes.left_out().refused == readable(log)[1].refused
    assert lifetimes.cut(log) == log


@pytest.mark.parametrize("to_void", [True, False])
def test_a_unit_that_is_void_otherwise_than_the_log_says_is_found(
    group: dict[str, Path], log: Survey, *, to_void: bool
) -> None:
    """A message that one replica hides, or one that it gives away: all of its unit, or a part."""
    real = {}
    for header, frame in compound(log):
        for batch in batches_in(header, frame):
            topic, queue_id, base, expected = units_for_entry(batch.header, batch.frame)
            if topic == TOPIC:
                real[queue_id, base] = expected
    place, (unit, path) = next(
        (place, found)
        for place, found in units(group["n2"]).items()
        if is_void(found[0], place[1]) != to_void and place in real
    )
    other = voided(real[place], place[1]) if to_void else real[place]
    assert unit != other[:UNIT_SIZE]
    write(path, place[1], other[:UNIT_SIZE])
    code, report = audited(group)
    assert code == 1, report
    said = json.dumps(report)
    assert "consume queue unit wrong" in said
    assert '"n2"' in said


def test_a_unit_that_is_neither_is_found(group: dict[str, Path]) -> None:
    """A void unit's mark has rotted."""
    place, (unit, path) = next(
        (place, found) for place, found in units(group["n3"]).items() if is_void(found[0], place[1])
    )
    write(path, place[1], unit[:-1] + bytes((unit[-1] ^ 1,)))
    code, report = audited(group)
    assert code == 1, report


def test_a_dump_shows_units(group: dict[str, Path], log: Survey) -> None:
    """Each with its batches and commands; one that says what became of others, too."""
    header, frame = next(iter(compound(log)))
    arguments = ["dump", "--data", str(group["n1"]), "--json", "--messages"]
    result = CliRunner().invoke(log_app, arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    (line,) = [line for line in lines if line.get("index") == header.index]
    spans = unit_spans(header, frame)
    assert len(line["units"]) == len(spans)
    for shown, span in zip(line["units"], spans, strict=True):
        assert len(shown["batches"]) == len(span.batches)
        assert len(shown["commands"]) == len(span.commands)
        for batch, each in zip(shown["batches"], span.batches, strict=True):
            assert batch["records"] == each.record_count == len(batch["messages"])
            assert batch["topic"] in line["topics"]
    commands = [
        command for each in lines for unit in each.get("units", ()) for command in unit["commands"]
    ]
    assert any("settleUnits" in command for command in commands)
    named = [Command.FromString(body) for span in spans for body in span.commands]
    assert len(named) == sum(len(unit["commands"]) for unit in line["units"])
