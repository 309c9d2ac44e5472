"""Messages of topics that were deleted: left out by whoever reads the log as data, unless asked."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from audit.contents.export import export_messages
from audit.contents.stats import sum_log
from audit.engines.engine import LocalEngine
from audit.errors import UsageMistake
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.reading.checkpoint import decode_checkpoint, encode_checkpoint
from dledger.reading.compound import UnitBody
from dledger.reading.decode import Wanted, read_records
from dledger.reading.entry import EntryHeader, EntryKind
from dledger.reading.errors import LogDamaged
from dledger.reading.lifetimes import Lifetimes, readable
from dledger.reading.log_start import LogStart
from dledger.reading.ranges import log_ranges
from dledger.wire import commands_pb2 as pb
from tests.audit.replicas import SEGMENT, Entry, LogBuilder, build, dropping, start_of
from tests.store.test_compound import batch


def create(name: str) -> Entry:
    body = pb.Command(create_topic=pb.CreateTopicCommand(name=name, queue_count=1))
    return Entry(1, EntryKind.COMMAND, body=body.SerializeToString())


def make(name: str) -> Entry:
    body = pb.Command(make_topic=pb.MakeTopicCommand(name=name, queue_count=1))
    return Entry(1, EntryKind.COMMAND, body=body.SerializeToString())


def delete(name: str, incarnation: int = 0) -> Entry:
    body = pb.Command(delete_topic=pb.DeleteTopicCommand(name=name, incarnation=incarnation))
    return Entry(1, EntryKind.COMMAND, body=body.SerializeToString())


def data(topic: str, *bodies: bytes) -> Entry:
    return Entry(1, topic=topic, count=len(bodies), bodies=bodies)


# Entry 1 is a no-op, as behind every election.
LIVES = [
    Entry(1, EntryKind.NOOP),
    *(create("a"), create("b")),  # 2, 3
    *(data("a", b"a1", b"a2"), data("b", b"b1")),  # 4, 5
    *(delete("a", 99), delete("c"), create("b")),  # 6, 7, 8: all void
    delete("a", 2),  # 9
    create("a"),  # 10
    data("a", b"a3"),  # 11
    delete("b"),  # 12: an older release's, of whichever has the name
]


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    build(tmp_path / "n1", LIVES)
    return Replica("n1", str(tmp_path / "n1"))


def bodies(replica: Replica, wanted: Wanted) -> list[bytes]:
    log = committed_log(replica)
    found: list[bytes] = []
    for part in log_ranges(log, 0, log.settled):
        for records in read_records(part, wanted):
            found += records.columns["body"]  # type: ignore[arg-type]
    return found


def test_topics_end_with_the_command_that_deletes_them(replica: Replica) -> None:
    """And begin with the one that creates them; void commands change nothing."""
    assert readable(committed_log(replica))[1].ended == (("a", 2, 9), ("b", 3, 12))


@pytest.mark.parametrize("named", [True, False])
def test_a_topic_that_was_made_with_its_wishes_ends_too(tmp_path: Path, named: bool) -> None:
    """It begins with another command than one that was made without, and ends with the same."""
    entries = [make("a"), data("a", b"a1"), make("a"), delete("a", 2 * named), make("a")]
    build(tmp_path / "n1", [Entry(1, EntryKind.NOOP), *entries, data("a", b"a2")])
    replica = Replica("n1", str(tmp_path / "n1"))
    _, left_out = readable(committed_log(replica))
    assert left_out.ended == (("a", 2, 5),)
    assert bodies(replica, Wanted(("body",), left_out=left_out)) == [b"a2"]


def test_a_creation_that_was_refused_hides_no_end(tmp_path: Path) -> None:
    """There was no room for the first `a`, and one was there already at the third; nor is a number
    that no creation of the name has one."""
    entries = [create("a"), create("a"), create("a"), data("a", b"a1")]
    build(tmp_path / "n1", [Entry(1, EntryKind.NOOP), *entries, delete("a", 5), delete("a", 3)])
    replica = Replica("n1", str(tmp_path / "n1"))
    _, left_out = readable(committed_log(replica))
    assert left_out.ended == (("a", 3, 7),)
    assert not bodies(replica, Wanted(("body",), left_out=left_out))


@pytest.mark.parametrize("named", [True, False])
def test_a_creation_without_effect_hides_no_end_of_before_the_log(
    tmp_path: Path, named: bool
) -> None:
    """Whoever makes a topic if there is none leaves one each time. The second `a` lives on: that
    the first one is deleted again takes nothing from it."""
    later = [create("a"), data("a", b"a1"), create("a"), delete("a", 2 * named)]
    anew = [create("a"), *[delete("a", 2)] * named, create("a"), data("a", b"a2")]
    entries = [Entry(1, EntryKind.NOOP), create("a"), *later, *anew]
    built = build(tmp_path / "n1", entries)
    log = committed_log(Replica("n1", str(tmp_path / "n1")))
    lifetimes = Lifetimes(start := built.headers[2].physical_offset)
    lifetimes.follow(replace(log, retained_from=start))
    assert lifetimes.ended == (("a", 2 * named, 6),)
    assert lifetimes.made_anew == (("a", 2 * named, 6),)
    left = Wanted(("body",), left_out=lifetimes.left_out())
    assert bodies(Replica("n1", str(tmp_path / "n1")), left) == [b"a2"]


def test_messages_of_the_living_are_left(replica: Replica) -> None:
    """A topic of the same name that was made anew lives; and all of them, if that is asked."""
    _, left_out = readable(committed_log(replica))
    assert bodies(replica, Wanted(("body",), left_out=left_out)) == [b"a3"]
    assert bodies(replica, Wanted(("body",))) == [b"a1", b"a2", b"b1", b"a3"]


def test_a_log_is_followed_as_it_grows(tmp_path: Path) -> None:
    """What was read isn't read again; a topic that ends later ended."""
    builder, lifetimes = LogBuilder(tmp_path / "n1", "n1"), Lifetimes(0)
    found = []
    for part in (LIVES[:8], LIVES[8:9], LIVES[9:]):
        for entry in part:
            builder.add(entry)
            builder.flush()
        builder.dispatch()
        lifetimes.follow(committed_log(Replica("n1", str(tmp_path / "n1"))))
        found.append([name for name, _, _ in lifetimes.ended])
    builder.close()
    assert found == [[], ["a"], ["a", "b"]]


@pytest.mark.parametrize("named", [True, False])
def test_who_was_overtaken_by_retention_forgets_who_lived(tmp_path: Path, named: bool) -> None:
    """`a` was deleted and made anew in what went unread (9, 10). Its next end is told by the
    command that deletes it: it names the later one, which was never seen to begin."""
    built = build(tmp_path / "n1", [*LIVES, delete("a", 10 if named else 0)])
    log, lifetimes = committed_log(Replica("n1", str(tmp_path / "n1"))), Lifetimes(0)
    before, after = (built.headers[index - 1].physical_offset for index in (6, 11))
    lifetimes.follow(replace(log, settled=before))
    lifetimes.follow(replace(log, retained_from=after))
    assert lifetimes.ended == (("b", 0, 12), ("a", 10 if named else 0, 13))
    left = Wanted(("body",), left_out=lifetimes.left_out())
    parts = list(log_ranges(log, after, log.settled))
    assert not [got.columns["body"] for part in parts for got in read_records(part, left)]


def test_what_retention_took_is_told_of_no_more(tmp_path: Path) -> None:
    """A stream of years would give all that was ever deleted, and refused, with each batch. What
    the log still has stays, and all of it while it isn't sure what went."""
    built = build(tmp_path / "n1", LIVES)
    log, lifetimes = committed_log(Replica("n1", str(tmp_path / "n1"))), Lifetimes(0)
    lifetimes.follow(log)
    later = replace(log, retained_from=built.headers[9].physical_offset)
    unsure = LogStart(9, end_offset=later.retained_from + 1)
    for start, left in ((unsure, ["a", "b"]), (LogStart(9), ["b"]), (LogStart(4), ["b"])):
        lifetimes.follow(replace(later, start=start))
        assert [name for name, _, _ in lifetimes.ended] == left


def test_units_that_retention_took_are_told_of_no_more(tmp_path: Path) -> None:
    """Refused or not: nobody reads them again."""
    with_refused_unit(tmp_path / "n1")
    log, lifetimes = committed_log(Replica("n1", str(tmp_path / "n1"))), Lifetimes(0)
    for gone, left in ((0, {(2, 1)}), (1, {(2, 1)}), (2, set())):
        lifetimes.follow(replace(log, start=LogStart(gone)))
        assert lifetimes.left_out().refused == left


def test_export_and_stats_leave_them_out(replica: Replica, tmp_path: Path) -> None:
    """By default."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    engine = LocalEngine()
    assert export_messages(replica, tmp_path / "some", engine).messages == 1
    every = export_messages(replica, tmp_path / "all", engine, includes_deleted=True)
    assert every.messages == 4
    assert [*sum_log(replica, engine).queues] == [("a", 0)]
    assert [*sum_log(replica, engine, includes_deleted=True).queues] == [("a", 0), ("b", 0)]
    engine.close()


@pytest.mark.parametrize("includes_deleted", [False, True])
def test_an_export_outlives_the_topics_it_was_begun_with(
    tmp_path: Path, includes_deleted: bool
) -> None:
    """The ConsumeQueues of one that was deleted are gone, and so is the log's entry that deleted
    it, some day; yet only with the same choice of topics does an export go on."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    later = [data("a", bytes(1000)) for _ in range(SEGMENT // 1000)]
    built = build(tmp_path / "n1", [*LIVES, *later])
    replica, target = Replica("n1", str(tmp_path / "n1")), tmp_path / "out"
    for folder in (tmp_path / "n1" / "consumequeue").glob("b*"):
        shutil.rmtree(folder)
    chosen, engine = frozenset({"b"}), LocalEngine(processes=1)

    def run(to: Path = target) -> int:
        done = export_messages(replica, to, engine, chosen, includes_deleted=includes_deleted)
        return done.messages

    assert run() == includes_deleted
    for _ in dropping(tmp_path / "n1", start_of(tmp_path / "n1", len(built.headers))):
        pass
    assert run() == 0
    with pytest.raises(UsageMistake, match="no message of topic 'b'"):
        run(tmp_path / "another")
    assert not (tmp_path / "another").exists()


def test_table_and_stream_leave_them_out(replica: Replica) -> None:
    """By default; what a batch brings is what lives when it is planned."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark.source import CommitLogSource

    for told, wanted in (("false", [b"a3"]), ("true", [b"a1", b"a2", b"b1", b"a3"])):
        options = {"path": replica.path, "columns": "body", "includeDeleted": told}
        made = CommitLogSource(options)
        reader, stream = made.reader(made.schema()), made.streamReader(made.schema())
        start = stream.initialOffset()
        planned = stream.partitions(start, stream.reportLatestOffset())
        for parts, read in ((reader.partitions(), reader.read), (planned, stream.read)):
            rows = [row for part in parts for batch in read(part) for row in batch.to_pylist()]
            assert [row["body"] for row in rows] == wanted


def test_a_planned_batch_leaves_them_out_where_less_is_known_committed(replica: Replica) -> None:
    """As for a moment where a replica lost its queues."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from dledger.spark.source import CommitLogSource

    end, page = committed_log(replica).settled, Path(replica.path) / "checkpoint"
    state = decode_checkpoint(page.read_bytes())
    assert state is not None
    page.write_bytes(encode_checkpoint(replace(state, consume_queue_index=0)))
    made = CommitLogSource({"path": replica.path, "columns": "body"})
    stream = made.streamReader(made.schema())
    planned = stream.partitions(stream.initialOffset(), {"offset": end})
    rows = [row for part in planned for batch in stream.read(part) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [b"a3"]


def test_a_planned_batch_has_no_unit_of_which_nothing_is_known(tmp_path: Path) -> None:
    """It was planned when the log was known committed to behind what says which of its units were
    refused; after a restart, where a replica lost its queues, less is, and the batch waits."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")
    from pyspark.sql.streaming.datasource import ReadMaxBytes

    from dledger.spark.source import CommitLogSource

    headers = with_refused_unit(tmp_path / "n1")
    end, page = headers[2].physical_offset, tmp_path / "n1" / "checkpoint"
    made = CommitLogSource({"path": str(tmp_path / "n1"), "columns": "body"})
    stream = made.streamReader(made.schema())
    first = stream.initialOffset()
    planned = stream.latestOffset(first, ReadMaxBytes(end))
    assert planned["offset"] == end, "the batch ends between its units and what settles them"

    def read() -> list[bytes]:
        stream = made.streamReader(made.schema())
        parts = stream.partitions(first, planned)
        rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
        return [row["body"] for row in rows]

    assert read() == [b"kept"]
    whole = page.read_bytes()
    state = decode_checkpoint(whole)
    assert state is not None
    page.write_bytes(encode_checkpoint(replace(state, consume_queue_index=1)))
    with pytest.raises(LogDamaged, match="waits until more is known committed"):
        read()
    page.write_bytes(whole)
    assert read() == [b"kept"]


def with_refused_unit(path: Path) -> list[EntryHeader]:
    """A replica: a no-op, an entry of two units, what refuses the second, a no-op; its headers."""
    builder = LogBuilder(path, "n1")
    builder.add(Entry(1, EntryKind.NOOP))
    builder.add_units([UnitBody([batch(0, b"kept")], []), UnitBody([batch(0, b"refused")], [])])
    settled = pb.SettleUnitsCommand(through=2, refused=[pb.RefusedUnit(index=2, unit=1)])
    body = pb.Command(settle_units=settled).SerializeToString()
    builder.add(Entry(1, EntryKind.COMMAND, body=body))
    builder.add(Entry(1, EntryKind.NOOP))
    builder.flush()
    builder.log.checkpoint.note_consume_queue(4, 0)
    builder.close()
    return builder.headers
