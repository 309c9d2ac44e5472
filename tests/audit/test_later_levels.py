"""Logs of a level of formats and commands above the one that this program knows: whoever reads them
as data refuses them by name, wherever the level was raised.

Source: docs/adr/0023-levels.md.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.export import export_messages
from audit.contents.stats import sum_log
from audit.delivery.check import audit_delivery
from audit.engines.engine import LocalEngine
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from broker.state.registration import ProducerBounds
from broker.state.replicated import ReplicatedState
from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.outcome import ExitCode
from dledger.reading import levels
from dledger.reading.compound import UnitBody
from dledger.reading.entry import EntryKind
from dledger.reading.errors import LogOfLaterLevel
from dledger.reading.files import opened
from dledger.reading.lifetimes import Lifetimes, readable
from dledger.reading.survey import Survey
from dledger.records.layout import SNAPSHOT_FILE
from dledger.records.state_layout import LEVEL_SECTION
from dledger.wire import commands_pb2 as pb
from store.files import OsFiles
from store.snapshot_files import COPY, SnapshotFiles, SnapshotHead
from tests.audit.replicas import SEGMENT, Entry, LogBuilder, build, dropping, flip_bit, start_of
from tests.audit.test_lifetimes import create, data

LATER = KNOWN_LEVEL + 1
SAID = f"uses level {LATER} of formats and commands, and this program knows level {KNOWN_LEVEL}"


def raise_to(level: int) -> Entry:
    body = pb.Command(raise_level=pb.RaiseLevelCommand(level=level))
    return Entry(1, EntryKind.COMMAND, body=body.SerializeToString())


def raised_to(level: int) -> list[Entry]:
    """A log that ends at that level, a step at a time."""
    steps = [raise_to(each) for each in range(FIRST_LEVEL + 1, level + 1)]
    return [Entry(1, EntryKind.NOOP), create("a"), data("a", b"a1"), *steps, data("a", b"a2")]


def replica_of(path: Path, entries: list[Entry]) -> Replica:
    build(path, entries)
    return Replica(path.name, str(path))


def begun_at(path: Path, level: int, *behind: Entry) -> Survey:
    """A log that begins later, with a state of that level, and what follows that."""
    filling = [data("a", bytes(1000)) for _ in range(2 * SEGMENT // 1000)]
    build(path, [*raised_to(level), *filling, *behind])
    start = start_of(path, len(filling))
    for _ in dropping(path, start):
        pass
    state = ReplicatedState(10, 10, ProducerBounds())
    state.applied_index, state.level.current = start.index, level
    files = SnapshotFiles(path, OsFiles())
    head = SnapshotHead(bytes(16), start.index, start.term, start.digest, start.end_offset)
    unfinished = files.begin(head)
    unfinished.add(list(state.snapshot()))
    unfinished.finish()
    files.publish(unfinished)
    files.mend_base(head)
    log = committed_log(Replica(path.name, str(path)))
    assert log.retained_from
    return log


def base_of(log: Survey) -> Path:
    assert log.start is not None
    return SnapshotFiles(Path(log.commitlog).parent, OsFiles()).path(log.start.index)


def test_a_raise_beyond_what_is_known_is_refused(tmp_path: Path) -> None:
    """Again and again, and named: what lies behind it would be passed over as void. What doesn't
    reach to it yet is read."""
    replica = replica_of(tmp_path / "n1", raised_to(LATER))
    log, lifetimes = committed_log(replica), Lifetimes(0)
    for _ in range(2):
        with pytest.raises(LogOfLaterLevel, match=SAID) as refused:
            lifetimes.follow(log)
        assert (refused.value.level, refused.value.known) == (LATER, KNOWN_LEVEL)
        assert refused.value.commitlog == log.commitlog
    with pytest.raises(LogOfLaterLevel):
        readable(log)
    made, args = refused.value.__reduce__()
    assert str(made(*args)) == str(refused.value)


def test_a_stream_is_refused_when_the_raise_comes(tmp_path: Path) -> None:
    builder, lifetimes = LogBuilder(tmp_path / "n1", "n1"), Lifetimes(0)
    replica = Replica("n1", str(tmp_path / "n1"))
    for entry in raised_to(KNOWN_LEVEL):
        builder.add(entry)
        builder.flush()
    builder.dispatch()
    lifetimes.follow(committed_log(replica))
    builder.add(raise_to(LATER))
    builder.flush()
    builder.dispatch()
    with pytest.raises(LogOfLaterLevel, match=SAID):
        lifetimes.follow(committed_log(replica))
    builder.close()


def test_raises_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Of more than a step, to where it is, and in a unit, which holds none: no node stops there."""
    builder = LogBuilder(tmp_path / "n1", "n1")
    for entry in (*raised_to(KNOWN_LEVEL - 1), raise_to(LATER), raise_to(KNOWN_LEVEL - 1)):
        builder.add(entry)
        builder.flush()
    builder.add_units([UnitBody([], [raise_to(KNOWN_LEVEL).body])])
    for entry in (raise_to(LATER), raise_to(KNOWN_LEVEL), raise_to(1 << 31)):
        builder.add(entry)
        builder.flush()
    builder.dispatch(3)
    builder.log.checkpoint.note_consume_queue(builder.log.last_index, 1)
    builder.close()
    log = committed_log(Replica("n1", str(tmp_path / "n1")))
    assert log.settled_index == builder.log.last_index
    Lifetimes(0).follow(log)


def test_every_reader_refuses_and_none_calls_the_log_wrong(tmp_path: Path) -> None:
    """It is incomplete: 1 would say that messages were lost, or that the disk has rotted."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    replica = replica_of(tmp_path / "n1", raised_to(LATER))
    history = tmp_path / "history"
    history.touch()
    engine = LocalEngine()
    for work in (
        lambda: export_messages(replica, tmp_path / "out", engine),
        lambda: sum_log(replica, engine),
        lambda: audit_delivery([replica], [str(history)], engine),
    ):
        with pytest.raises(LogOfLaterLevel, match=SAID):
            work()
    engine.close()
    assert not (tmp_path / "out").exists()
    of = ["--replica", f"n1={replica.path}"]
    for arguments in (
        ["export", str(tmp_path / "out"), *of],
        ["stats", *of],
        ["delivery", "--history", str(history), *of],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == ExitCode.INCOMPLETE, result.output
        assert SAID in result.stderr


def test_spark_refuses_table_and_stream(tmp_path: Path) -> None:
    """When a query is planned, and no executor has anything to read."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark.source import CommitLogSource

    replica = replica_of(tmp_path / "n1", raised_to(LATER))
    made = CommitLogSource({"path": replica.path, "columns": "body"})
    reader, stream = made.reader(made.schema()), made.streamReader(made.schema())
    first = stream.initialOffset()
    for work in (
        reader.partitions,
        stream.reportLatestOffset,
        lambda: stream.latestOffset(first, stream.getDefaultReadLimit()),
    ):
        with pytest.raises(LogOfLaterLevel, match=SAID):
            work()


# --- logs that begin behind the raise -------------------------------------------------------------


def test_the_state_that_a_log_begins_with_says_its_level(tmp_path: Path) -> None:
    """The raise is gone with the log's front."""
    with pytest.raises(LogOfLaterLevel, match=SAID):
        readable(begun_at(tmp_path / "n1", LATER))
    readable(begun_at(tmp_path / "n2", KNOWN_LEVEL))
    log = begun_at(tmp_path / "n3", KNOWN_LEVEL, raise_to(LATER + 1), raise_to(LATER))
    with pytest.raises(LogOfLaterLevel, match=SAID):
        readable(log)


def test_a_raise_that_isnt_the_next_one_stops_nobody_there(tmp_path: Path) -> None:
    readable(begun_at(tmp_path / "n1", KNOWN_LEVEL, raise_to(LATER + 1)))


def test_who_is_overtaken_asks_the_state_that_the_log_begins_with_by_then(tmp_path: Path) -> None:
    """The raise went by unread."""
    log = begun_at(tmp_path / "n1", LATER)
    lifetimes = Lifetimes(0)
    lifetimes.follow(replace(log, retained_from=0, settled=0, start=None))
    with pytest.raises(LogOfLaterLevel, match=SAID):
        lifetimes.follow(log)


def spoilt(base: Path) -> None:
    """A bit of the level."""
    level = LATER.to_bytes(LEVEL_SECTION.size, "big")
    flip_bit(base, base.read_bytes().index(b"level" + level) + len(b"level") + 3)


def rotten(base: Path) -> None:
    """A bit of the head."""
    flip_bit(base, 40)


def of_another_log(base: Path) -> None:
    """All its sums fit."""
    content = bytearray(base.read_bytes())
    content[SNAPSHOT_FILE.at("digest")] ^= 1
    at = SNAPSHOT_FILE.at("head_crc")
    content[at : SNAPSHOT_FILE.end("head_crc")] = crc32c(content[:at]).to_bytes(4, "big")
    base.write_bytes(content)


@pytest.mark.parametrize("harm", [Path.unlink, spoilt, rotten, of_another_log])
def test_the_second_copy_says_it_where_the_first_cant(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """And a base that isn't this log's says nothing."""
    log = begun_at(tmp_path / "n1", LATER)
    harm(base_of(log))
    with pytest.raises(LogOfLaterLevel, match=SAID):
        readable(log)
    harm(base_of(log).with_suffix(COPY))
    readable(log)  # nobody says it any more


def test_without_that_state_any_raise_beyond_what_is_known_is_refused(tmp_path: Path) -> None:
    """Nobody knows which would be the next."""
    log = begun_at(tmp_path / "n1", KNOWN_LEVEL, raise_to(LATER + 1))
    base_of(log).unlink()
    base_of(log).with_suffix(COPY).unlink()
    with pytest.raises(LogOfLaterLevel, match=f"uses level {LATER + 1}"):
        readable(log)


def test_a_copy_that_cannot_be_read_leaves_it_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where neither can, that is told."""
    log, first = begun_at(tmp_path / "n1", LATER), True
    sick = str(base_of(log))

    def opened_or_not(name: str) -> AbstractContextManager[int]:
        if name == sick or not first:
            raise OSError(errno.EIO, "Input/output error", name)
        return opened(name)

    monkeypatch.setattr(levels, "opened", opened_or_not)
    with pytest.raises(LogOfLaterLevel, match=SAID):
        readable(log)
    first = False
    with pytest.raises(OSError, match="Input/output error"):
        levels.level_at_start(log)
