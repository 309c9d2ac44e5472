"""A run of an export into a table: what the table has is read from it, compared with the log, and
what is missing is appended, each step with its position in one transaction (ADR 36).

This must never write a row whose position isn't in the same transaction, nor append to a table that
it hasn't read. It knows the table by its port alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from audit.engines.engine import Progress, no_progress
from audit.errors import UsageMistake
from audit.reading.replica import Replica
from audit.reading.survey import check_reaches, check_topics, committed_log
from audit.tables.mark import Choice, Mark, Queue
from audit.tables.steps import Step, cut, steps
from dledger.reading.decode import COLUMNS, Wanted, read_records
from dledger.reading.lifetimes import followed
from dledger.reading.places import Place, check_same_log, ends_segment, gone_to
from dledger.reading.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa

# In a transaction: of log, and of its rows, which are in memory, three times at most. A few KiB of
# log may become gigabytes of decompressed bodies. An entry is in one transaction, however large: a
# log's are bounded far below STEP_BYTES.
STEP_BYTES: Final = 64 << 20
ROWS_BYTES: Final = 256 << 20


class MessageTable(Protocol):
    """A table of one of the formats, as it was when it was last read or written.

    Each method raises `UsageMistake` for a table that isn't right, and `Unreachable` for a store
    or catalog that doesn't answer.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def is_there(self) -> bool:
        """Whether somebody has made it."""
        ...

    def opened(self, choice: Choice) -> Mark | None:
        """The table is there, made if it has to be, is for `choice`, and has the log up to the
        mark; None: nothing of it."""
        ...

    def next_offset(self, queue: Queue) -> int | None:
        """The offset that comes next in the queue; None if the table has none of it."""
        ...

    def append(self, rows: pa.Table, mark: Mark, offsets: Mapping[Queue, int]) -> None:
        """Rows, mark and next offsets are in the table, in one transaction on exactly the version
        that was read.

        Raises:
            TableTaken: somebody else has written since; nothing was.
            CommitUnknown: nobody knows whether it was.
        """
        ...

    def sync(self) -> None:
        """All that the table holds outlives a power cut, whoever committed it.

        Raises:
            TableUnsynced: that isn't known.
        """
        ...


@dataclass(frozen=True, slots=True)
class TableExported:
    """What one run did; physical offsets."""

    start: int
    end: int
    messages: int
    commits: int


def export_to_table(
    replica: Replica,
    table: MessageTable,
    choice: tuple[frozenset[str] | None, bool],
    progress: Progress = no_progress,
    *,
    accept_retention: bool = False,
    step_bytes: int = STEP_BYTES,
    rows_bytes: int = ROWS_BYTES,
) -> TableExported:
    """The table has every wanted message that is committed, once, and on disk.

    Args:
        choice: topics (None: all), and whether deleted ones' messages are wanted, too.
        accept_retention: go on behind messages that retention took before they were exported.

    Raises:
        UsageMistake, OtherLog: replica, table and choice don't belong together.
        LogDamaged: the replica's log is, or isn't one log; what was before that is in the table.
        TableUnsynced: the table has it all, and isn't known to be on disk.
    """
    topics, includes_deleted = choice
    lifetimes = followed(whole := committed_log(replica))
    log, left_out = lifetimes.cut(whole), lifetimes.left_out(includes_deleted=includes_deleted)
    if topics and not table.is_there():  # One that was begun with a topic outlives it.
        check_topics(log, topics, lifetimes)
    wanted = Choice(log.broker_group or "", topics, includes_deleted)
    mark = table.opened(wanted)
    start = _start(log, table.name, mark, accept_retention=accept_retention)
    lifetimes.check_to(start + 1)  # It may not be one log, rather than another one.
    if mark is not None and mark.position < start:
        check_same_log(log, Place(mark.position, digest=mark.digest))
    digest = mark.digest if mark is not None and mark.position == start else None
    if digest is None and log.start is not None:  # where the log begins: behind what is gone
        digest = log.start.digest
    messages = commits = 0
    reached = at = start
    is_behind_hole = mark is not None and mark.position < gone_to(log)  # which was accepted, once
    wanted_rows = Wanted(COLUMNS, topics, left_out=left_out)
    for each in steps(log, start, log.settled, step_bytes, digest):
        lifetimes.check_to(each.part.end)
        for step, rows in _rows(each, wanted_rows, rows_bytes):
            at = step.part.end
            # Without rows, a commit every now and then keeps the next run from reading all of it
            # again; one where a segment ends, from missing it once it has gone, read as it is.
            is_due = is_behind_hole or at - reached >= STEP_BYTES or ends_segment(log, at)
            if step.digest is not None and (rows.num_rows or is_due):
                table.append(rows, Mark(at, step.digest), _next_offsets(table, rows))
                reached, messages, commits = at, messages + rows.num_rows, commits + 1
                is_behind_hole = False
            progress(step.part.end - step.part.start)
    table.sync()  # Also what a run before has committed: it may have been killed right then.
    return TableExported(start, at, messages, commits)


def _start(log: Survey, name: str, mark: Mark | None, *, accept_retention: bool) -> int:
    """Where to go on.

    Raises:
        UsageMistake: the log doesn't reach to where the table ends.
    """
    if mark is None:
        return log.retained_from
    if log.settled < mark.position:
        raise UsageMistake(
            f"{log.replica} is committed to {log.settled}, and {name} has its log up to "
            f"{mark.position}: name a replica that is as far"
        )
    check_reaches(log, name, mark.position, accept_retention=accept_retention)
    return max(mark.position, log.retained_from)


def _rows(step: Step, wanted: Wanted, rows_bytes: int) -> Iterator[tuple[Step, pa.Table]]:
    """The step's wanted messages, the step cut between entries where they are too large."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from dledger.reading.arrow import TYPES, to_arrow

    schema = pa.schema([(name, TYPES[name]) for name in COLUMNS])
    taken: list[pa.RecordBatch] = []
    size = 0
    parts = read_records(step.part, wanted)
    for batch in (batch for records in parts for batch in to_arrow(records)):
        taken.append(batch)
        size += batch.nbytes
        first, last = (taken[at]["index"][at].as_py() for at in (0, -1))
        if size >= rows_bytes and first < last:
            table = pa.Table.from_batches(taken, schema=schema)
            # Of the last entry more may come.
            whole = table.filter(pc.less(table["index"], last))
            taken = table.slice(whole.num_rows).to_batches()
            size = sum(rest.nbytes for rest in taken)
            before, step = cut(step, last)
            yield before, whole
    yield step, pa.Table.from_batches(taken, schema=schema)


def _next_offsets(table: MessageTable, rows: pa.Table) -> dict[Queue, int]:
    """Of each queue that has rows.

    Raises:
        UsageMistake: the table has some of them, whatever its position says.
    """
    found: dict[Queue, int] = {}
    groups = rows.group_by(["topic", "incarnation", "queue_id"]).aggregate(
        [("queue_offset", "min"), ("queue_offset", "max")]
    )
    for row in groups.to_pylist():
        queue = row["topic"], row["incarnation"], row["queue_id"]
        known = table.next_offset(queue)
        if known is not None and row["queue_offset_min"] < known:
            raise UsageMistake(
                f"{table.name} has queue {queue[2]} of {queue[0]!r} up to offset {known}, and "
                f"{row['queue_offset_min']} would be appended: it is another log's table"
            )
        found[queue] = row["queue_offset_max"] + 1
    return found
