"""`dledger audit delivery`: were the messages delivered that clients say were sent?

On one machine a task judges the queues of one share: it reads the histories, keeps what they say
of its queues, reads those queues' messages from the log, and compares. So a task's memory is its
share's, no message travels between processes, and only anomalies and counts come back; the price
is that each task reads everything. There are as many shares as tasks run at once, and more where a
share would pass `SHARE_BYTES`. On Spark everything is read once (`audit.delivery.distributed`).

The tail of the log decides what may be called lost: a copy that was put aside at noon can't tell
what became of a message acknowledged at one. Nodes that run say how far they are committed; `tail`
says whether one of them knows.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from audit.delivery.history import QueueKey, QueueStory, Story, read_histories, sizes_of
from audit.delivery.judge import Anomaly, Kind, LoggedQueue, sent_twice
from audit.delivery.judged import (
    DeliveryTask,
    Judged,
    QueueCount,
    QueueStarts,
    payload_of,
    value_of,
)
from audit.delivery.starts import starts_of
from audit.delivery.tail import known_committed, open_tail
from audit.delivery.witness import Witness, passed_over, witness_among
from audit.engines.engine import Engine, Progress, no_progress
from audit.errors import AuditError, FrontGone, UsageMistake
from audit.reading.replica import Replica
from audit.reading.survey import committed_log
from dledger.outcome import ExitCode
from dledger.reading.decode import LogRange, Wanted, read_records
from dledger.reading.errors import LogDamaged, ReadingError
from dledger.reading.lifetimes import Lifetimes, followed
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.errors import FormatError, HistoryCorrupt

SCHEMA: Final = "dledger-delivery/1"
LOOKS: Final = 4  # at a log whose front goes meanwhile
SHARE_BYTES: Final = 64 << 20  # Of the histories; about six times as much in memory.
_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "index", "body")


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """One delivery audit. `committed`: the physical offset up to which the log was read;
    `anomalies` holds at most `MAX_ANOMALIES` of a kind a task, what is undecided last; `counts`
    counts all, by kind."""

    engine: str
    replica: str
    committed: int
    tail_is_known: bool
    starts_are_known: bool
    operations: int
    queues: tuple[QueueCount, ...]
    counts: dict[str, int]
    anomalies: tuple[Anomaly, ...]
    notes: tuple[str, ...]
    total_s: float

    @property
    def exit_code(self) -> ExitCode:
        if any(count for kind, count in self.counts.items() if kind != Kind.UNDECIDED):
            return ExitCode.INCONSISTENT
        # Histories of which nothing was compared say nothing, least of all that it was delivered.
        is_open = self.counts[Kind.UNDECIDED] or not self._compared or self._may_lack
        return ExitCode.INCOMPLETE if is_open else ExitCode.CONSISTENT

    @property
    def _compared(self) -> int:
        return sum(queue.compared for queue in self.queues)

    @property
    def _may_lack(self) -> bool:
        """Whether something is gone, and nobody knows if retention took it."""
        return not self.starts_are_known and any(queue.expired for queue in self.queues)

    @property
    def verdict(self) -> str:
        match self.exit_code:
            case ExitCode.CONSISTENT:
                return "delivered"
            case ExitCode.INCOMPLETE:
                return "undecided"
            case _:
                return "violated"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be judged, whatever log it is held against. `size_bytes`: of the histories;
    `committed`: an entry that was committed before their `ends` were taken; 0: nobody can tell."""

    histories: tuple[str, ...]
    size_bytes: int
    ends: tuple[int, ...]
    committed: int

    def of(self, log: Survey, lifetimes: Lifetimes, witness: Witness) -> DeliveryTask:
        """All of it against that log, whose tail isn't known."""
        return DeliveryTask(
            self.histories,
            _whole_log(log),
            starts_of(log, lifetimes),
            tail_is_known=False,
            share=0,
            shares=1,
            weight=self.size_bytes + log.settled - log.retained_from,
            host=witness.replica.host,
            left_out=lifetimes.left_out(includes_deleted=True),
            ends=self.ends,
            ended=lifetimes.ended_since(self.committed),
        )


def audit_delivery(
    replicas: Sequence[Replica],
    histories: Sequence[str],
    engine: Engine,
    progress: Progress = no_progress,
    share_bytes: int = SHARE_BYTES,
    *,
    ends: Sequence[int] | None = None,
    earlier: Sequence[Replica] = (),
) -> DeliveryReport:
    """What the histories and the group's log disagree on (`audit.delivery.witness`).

    Args:
        histories: paths, readable wherever tasks run.
        share_bytes: of the histories, how much a task should hold.
        ends: how large the histories were before the replicas were asked for their positions, if
            they may go on being written: `sizes_of`; as they are now if nobody says.
        earlier: the replicas, as they had answered before `ends` was taken. What was begun behind
            `ends` is behind what was committed then; none: nobody knows.

    Raises:
        UsageMistake: a history can't be used, or no replica holds a log, or theirs lie on hosts of
            their own and tasks run anywhere.
        NotTheGroups: no log that can be read is shown to be the group's.
        NoAnswer: no log can be read.
        LogDamaged: the log lacks a segment, isn't one log, or can't be read to its end.
        FrontGone: its front went while it was read, each time.
    """
    started = time.monotonic()
    if engine.is_spread:
        _check_read_anywhere(replicas)
    sizes = sizes_of(histories)
    ends = tuple(sizes if ends is None else ends)
    shares = max(engine.parallelism, -(-sum(sizes) // share_bytes))
    asked = _Asked(tuple(histories), sum(sizes), ends, known_committed(earlier))
    for _ in range(LOOKS):
        witness = witness_among(replicas)
        try:
            log, lifetimes = _cut(witness.log)
            tail = open_tail(replicas, log.settled)
            task = replace(asked.of(log, lifetimes, witness), tail_is_known=not tail)
            judged = _judge(task, shares, engine, progress)
            _check_judged(judged)
            break
        except (LogDamaged, OSError) as error:
            if not _has_front_gone(witness):
                raise
            reason = str(error)
    else:
        raise FrontGone(witness.replica.id, LOOKS, reason)
    report = _report(engine.name, witness.replica.id, log.settled, task, judged)
    notes = (
        *_notes(judged, report.queues),
        *_notes_of_starts(report.queues, task.starts, tail),
        *_notes_of_growth(histories, ends),
        *witness.notes,
        *passed_over(replicas),
    )
    return replace(report, notes=notes, total_s=round(time.monotonic() - started, 4))


def _cut(log: Survey) -> tuple[Survey, Lifetimes]:
    """The log as far as it says of every unit what became of it, and its topics' lives.

    Raises:
        LogDamaged: it can't be read to there.
    """
    lifetimes = followed(log)
    log = lifetimes.cut(log)
    lifetimes.check_to(log.settled)  # Entries that are intact are read on across a hole.
    return log, lifetimes


def _has_front_gone(witness: Witness) -> bool:
    """Whether the log begins later by now: what couldn't be read needn't be damaged."""
    try:
        return committed_log(witness.replica).retained_from > witness.log.retained_from
    except (AuditError, ReadingError, OSError):
        return False


def _report(
    engine: str, replica: str, settled: int, whole: DeliveryTask, judged: Sequence[Judged]
) -> DeliveryReport:
    """All shares together; nothing is noted yet."""
    queues = sorted(
        (queue for each in judged for queue in each.queues),
        key=lambda queue: (queue.topic, queue.queue_id),
    )
    counts = sum((Counter(queue.anomalies) for queue in queues), Counter[str]())
    return DeliveryReport(
        engine,
        replica,
        settled,
        whole.tail_is_known,
        all(whole.starts.of(each.key) is not None for each in queues if each.expired)
        and not whole.starts.unknown,
        judged[0].operations,
        tuple(queues),
        {kind.value: counts[kind] for kind in Kind},
        tuple(sorted((a for each in judged for a in each.anomalies), key=_by_gravity)),
        (),
        0.0,
    )


def _check_judged(judged: Sequence[Judged]) -> None:
    """Returns if every share could be judged.

    Raises:
        UsageMistake: a history can't be used.
        LogDamaged: the log can't be read to its end.
    """
    if mistake := min((each.mistake for each in judged if each.mistake), default=""):
        raise UsageMistake(mistake)
    if damage := next((each.damage for each in judged if each.damage), ""):
        raise LogDamaged(damage)


def _judge(whole: DeliveryTask, shares: int, engine: Engine, progress: Progress) -> list[Judged]:
    """The audit's task, in about so many shares."""
    if engine.name == "spark":  # Looked at by name, so that nobody else imports what Spark needs.
        from audit.delivery.distributed import judge_on_spark
        from audit.engines.spark import SparkEngine

        assert isinstance(engine, SparkEngine)
        return judge_on_spark(whole, shares, engine, progress)
    tasks = [replace(whole, share=share, shares=shares) for share in range(shares)]
    return engine.run(judge_share, tasks, progress)


def judge_share(task: DeliveryTask) -> Judged:
    """The anomalies of one share's queues."""
    try:
        story = read_histories(task.histories, task.keeps, task.ends)
    except (HistoryCorrupt, OSError) as error:
        return Judged(mistake=str(error))
    story.settle(task.ended)
    told = Judged()
    for key in story.queues:
        if key[0] not in story.deleted and (mistake := sent_twice(key, story.queues[key])):
            told.complain(mistake)
    if told.mistake:
        return told
    try:
        logged = _read_log(task, story)
    except (ReadingError, FormatError, OSError) as error:
        return Judged(damage=str(error))
    judged = Judged(deleted=tuple(sorted(story.deleted)), operations=story.operations)
    for key in sorted(logged.keys() | story.queues.keys()):
        if key[0] not in story.deleted:
            log = logged.get(key) or task.log_of(key)
            judged.judge(key, log, story.queues.get(key) or QueueStory())
    return judged


def delivery_as_json(report: DeliveryReport) -> dict[str, object]:
    """The report's facts; see docs/audit.md for each field."""
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit_code": int(report.exit_code),
        **asdict(report),
    }


def _read_log(task: DeliveryTask, story: Story) -> dict[QueueKey, LoggedQueue]:
    """The share's queues of the histories' topics, as the log has them."""
    queues: dict[QueueKey, LoggedQueue] = {}
    lives: dict[QueueKey, tuple[LoggedQueue, ...]] = {}  # None of what isn't in the share.
    wanted = Wanted(_COLUMNS, frozenset(story.topics - story.deleted), left_out=task.left_out)
    for part in task.parts:
        for records in read_records(part, wanted):
            columns = [records.columns[name] for name in _COLUMNS]
            for topic, queue_id, offset, index, body in zip(*columns, strict=True):
                key = (str(topic), int(queue_id))
                if key not in lives:
                    if task.keeps(key):
                        queues[key] = task.log_of(key)
                    lives[key] = queues[key].lives if key in queues else ()
                if lives[key]:
                    life = task.starts.life_of(key[0], int(index))
                    lives[key][life].add(int(offset), value_of(payload_of(body)))
    return queues


def _check_read_anywhere(replicas: Sequence[Replica]) -> None:
    """No replica's files are on a machine of theirs: other machines have another one's there.

    Raises:
        UsageMistake: some are.
    """
    if places := [f"{each.id} on {each.host}" for each in replicas if each.host]:
        raise UsageMistake(
            f"{', '.join(places)}: on a cluster a delivery audit's tasks run anywhere. Of files "
            "that every executor can read name no host (--replica NAME=PATH); else --engine local "
            "reads them where they lie"
        )


def _whole_log(log: Survey) -> tuple[LogRange, ...]:
    """The ranges of everything that is committed and retained.

    Raises:
        LogDamaged: a segment of it is missing.
    """
    parts = [
        part for part in log_ranges(log, log.retained_from, log.settled) if part.start < part.end
    ]
    at = log.retained_from
    for part in parts:
        if part.start > at:
            raise LogDamaged(f"{log.replica} lacks bytes {at} to {part.start} of its log")
        at = part.end
    if at < log.settled:
        raise LogDamaged(f"{log.replica} lacks bytes {at} to {log.settled} of its log")
    return tuple(parts)


def _by_gravity(anomaly: Anomaly) -> tuple[bool, str, int, int, str]:
    """By place, and what may be nothing behind all that is something."""
    offset = -1 if anomaly.offset is None else anomaly.offset
    is_open = anomaly.kind is Kind.UNDECIDED
    return is_open, anomaly.topic, anomaly.queue_id, offset, anomaly.kind.value


def _notes(judged: Sequence[Judged], queues: Sequence[QueueCount]) -> list[str]:
    deleted = sorted({topic for each in judged for topic in each.deleted})
    notes = [f"topic {topic} was deleted, or may have been: not judged" for topic in deleted]
    if not any(queue.compared for queue in queues):
        notes.append("no message that was acknowledged or delivered was held against the log")
    if filtered := sum(each.filtered for each in judged):
        notes.append(
            f"{filtered} polls wanted some of the messages only: what they passed over isn't judged"
        )
    told = sum(len(each.anomalies) for each in judged)
    if (all_of_them := sum(sum(queue.anomalies.values()) for queue in queues)) > told:
        notes.append(f"{told} of {all_of_them} anomalies are told in full")
    return notes


def _notes_of_starts(queues: Sequence[QueueCount], starts: QueueStarts, tail: str) -> list[str]:
    """What the log doesn't tell of queues, or tells of more than one topic."""
    return [
        *_notes_of_ends(queues, starts, tail),
        *_notes_of_lives(queues, starts),
        *_notes_of_former(queues, starts),
    ]


def _notes_of_ends(queues: Sequence[QueueCount], starts: QueueStarts, tail: str) -> list[str]:
    """What isn't judged because the log doesn't reach there."""
    notes = []
    gone = Counter(
        {queue.key: queue.expired for queue in queues if not starts.tells_of(queue.topic)}
    )
    expired = sum(queue.expired for queue in queues) - gone.total()
    if gone.total():
        notes.append(
            f"{gone.total()} acknowledged messages are of topics that neither the log nor the "
            "state that it begins with knows: they went with their topics before, or are lost"
        )
    if expired and starts.unknown:
        notes.append(
            f"{expired} acknowledged messages lie before what is left of their queues: where those "
            f"begin isn't known ({starts.unknown}), so they were taken away by retention, or lost"
        )
    elif expired:
        notes.append(f"{expired} acknowledged messages were taken away by retention: not judged")
    if tail:
        notes.append(f"{tail}: what is acknowledged behind the log's end is undecided, not lost")
    return notes


def _notes_of_lives(queues: Sequence[QueueCount], starts: QueueStarts) -> list[str]:
    """Which names more than one topic had, by the log."""
    return [
        f"{len(starts.ends[topic]) + 1} topics had the name {topic}, one after the other, the last "
        f"of them from entry {starts.ends[topic][-1]} on, and no history tells of it: what may be "
        "of one or of another is undecided"
        for topic in sorted({queue.topic for queue in queues} & starts.ends.keys())
    ]


def _notes_of_former(queues: Sequence[QueueCount], starts: QueueStarts) -> list[str]:
    """Of which names a topic may have been that the log doesn't tell of any more, and be what is
    wrong with the one of now."""
    wrong = {
        queue.topic
        for queue in queues
        if any(n for k, n in queue.anomalies.items() if k != Kind.UNDECIDED)
    }
    return [
        f"topic {topic} was made by entry {made}: what a former one of the name was sent, of which "
        "the log that is left doesn't tell, is told as lost or phantom"
        for topic, made in sorted((starts.made or {}).items())
        if topic in wrong
    ]


def _notes_of_growth(histories: Sequence[str], ends: Sequence[int]) -> list[str]:
    """Which histories went on while the log was compared."""
    return [
        f"{path} went on being written: what it tells behind byte {end} came after the log was "
        "asked for its end, and is of unknown outcome"
        for path, end in zip(histories, ends, strict=True)
        if os.path.exists(path) and os.path.getsize(path) > end
    ]
