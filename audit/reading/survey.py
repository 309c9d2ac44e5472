"""The first look at a replica, wherever it lies: on this machine, on another, or behind its node.

Runs beside the replica (an engine may send it to another host) and returns a small value; what the
value says is described where it is made of a folder, in `dledger.reading.survey`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from audit.errors import NodeRefused, UsageMistake
from audit.reading.replica import Replica
from dledger.reading.checkpoint import CheckpointState
from dledger.reading.errors import NotALog
from dledger.reading.files import printable
from dledger.reading.log_start import FROM_THE_FIRST, LogStart, decode_start
from dledger.reading.places import gone_to
from dledger.reading.ranges import readable_log
from dledger.reading.sizes import possible_size
from dledger.reading.survey import (
    Position,
    SegmentFile,
    Survey,
    begin_of,
    behind,
    impossible_claim,
    is_foreign,
    survey_folder,
)
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FILE_NAME

if TYPE_CHECKING:  # Executors may do without protobuf, by which lifetimes are followed.
    from dledger.reading.lifetimes import Lifetimes
    from dledger.wire.audit_pb2 import LogSurvey

_NAMED_TOPICS: Final = 10


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Look at one replica."""

    replica: Replica

    @property
    def host(self) -> str | None:
        return self.replica.host

    @property
    def weight(self) -> int:
        return 1


def survey(task: SurveyTask) -> Survey:
    """What is in the replica's directory; a directory that can't be read is a value too."""
    replica = task.replica
    if replica.silence:
        return Survey(replica.id, replica.path, problem=replica.silence, silent=True)
    if replica.address is not None and replica.position is not None:
        return _survey_node(replica.id, replica.address, replica.position)
    return survey_folder(replica.id, replica.path, replica.position)


def committed_log(replica: Replica) -> Survey:
    """The survey of a replica that holds a readable log.

    Raises:
        UsageMistake: it doesn't.
        LogDamaged: where its committed end is, damage hides.
    """
    try:
        return readable_log(survey(SurveyTask(replica)))
    except NotALog as error:
        raise UsageMistake(str(error)) from error


def check_topics(log: Survey, topics: frozenset[str] | None, lifetimes: Lifetimes) -> None:
    """The log may hold messages of each of them, or tells of it: of one that was deleted there are
    no ConsumeQueues. Where none lie beside the log, as beside a bare copy of it, nobody knows
    before it is read.

    Raises:
        UsageMistake: of one it holds none.
    """
    queues = {folder.partition("@")[0] for folder, _ in log.consume_queues}
    known = queues | lifetimes.names
    missing = sorted((topics or frozenset()) - known)
    if queues and missing:
        there = ", ".join(sorted(known)[:_NAMED_TOPICS]) + (", ..." * (len(known) > _NAMED_TOPICS))
        raise UsageMistake(
            f"{log.replica} has no message of topic {missing[0]!r}; of {there} it has"
        )


def check_reaches(log: Survey, name: str, position: int, *, accept_retention: bool) -> None:
    """The log still has what comes behind `position`, up to which `name` has it.

    Raises:
        UsageMistake: it doesn't, and that isn't accepted.
    """
    if gone_to(log) > position and not accept_retention:
        raise UsageMistake(
            f"bytes {position} to {log.retained_from} of the log were deleted on "
            f"{log.replica} before {name} had them: name a replica that has them, or "
            "--accept-retention"
        )


def _survey_node(name: str, address: str, position: Position) -> Survey:
    """The survey of a node's folder as the node itself tells it."""
    from audit.reading.remote import node_log  # Executors may do without gRPC.

    try:
        with node_log(address) as log:
            told = log.survey()
    except NodeRefused as error:
        return Survey(name, "", problem=str(error.strerror), silent=True)
    if told.problem:
        return Survey(name, told.commitlog, problem=told.problem)
    segments = tuple(
        SegmentFile(int(file.name), file.size)
        for file in told.files
        if FILE_NAME.fullmatch(file.name) and not is_foreign(file.name)
    )
    # What it committed by its followers' disks may not be on its own yet.
    end = min(position.committed, told.committed_offset)
    size = possible_size(told.segment_size_bytes)
    checkpoint = None
    if told.checkpoint_readable:
        checkpoint = CheckpointState(first_offset=told.checkpoint_first_offset)
    start, begin = begin_of(_start_told(told), segments, size, checkpoint)
    segments = behind(segments, size, begin)
    if problem := impossible_claim(told.commitlog, segments, size, (begin, end)):
        return Survey(name, told.commitlog, problem=problem)
    return Survey(
        replica=name,
        commitlog=told.commitlog,
        broker_group=told.broker_group,
        segment_size=size,
        checkpoint_readable=told.checkpoint_readable,
        retained_from=begin,
        start=start,
        settled=end,
        settled_index=position.index if end == position.committed else 0,
        end=end,
        derived_index=told.checkpoint_consume_queue_index,
        segments=segments,
        foreign=tuple(printable(file.name) for file in told.files if is_foreign(file.name)),
        answered=True,
        is_running=True,
        address=address,
    )


def _start_told(told: LogSurvey) -> LogStart | None:
    """What the node's start note says; None where it doesn't tell, as one of a release before."""
    if not told.HasField("log_start"):
        return None
    if not told.log_start:
        return FROM_THE_FIRST
    try:
        return decode_start(told.log_start)
    except InvalidFrame:
        return None
