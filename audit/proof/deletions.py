"""Topics that are deleted while their replicas are audited: their queues are rightly gone.

A node that applies a deletion puts the topic's folder aside at once, and that entry may lie behind
the end that was taken before anything was read. So where a replica at which a node may be at work
lacks units, and their folder with them, what its log has behind that end is looked through for the
deletion. Nothing else excuses: neither a folder that is gone, nor another incarnation's deletion.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from audit.engines.engine import Engine
from audit.proof.chain import Chain, deletion_in
from audit.proof.findings import Cause
from audit.proof.plan import Plan
from audit.proof.queue_files import is_deleted
from dledger.reading.chunks import LogRange
from dledger.reading.commands import command_frames
from dledger.reading.compound import commands_in
from dledger.reading.entry import EntryHeader
from dledger.reading.files import names_in
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FILE_NAME, topic_folder


@dataclass(frozen=True, slots=True)
class DeletedTask:
    """Look whether `folders`, of topics below `queues_root`, are gone, and were deleted behind the
    physical offset `end`, which lies between entries."""

    replica: str
    commitlog: str
    queues_root: str
    segment_size: int
    end: int
    folders: tuple[str, ...]
    host: str | None = None

    @property
    def weight(self) -> int:
        return len(self.folders)


# By replica, the folders that a deletion behind its audited end took.
Deleted = Mapping[str, frozenset[str]]


def deleted_meanwhile(
    plan: Plan, chains: Iterable[Chain], engine: Engine, hosts: Mapping[str, str | None]
) -> Deleted:
    """Which of the folders in which units are missed were deleted behind what was audited."""
    missed: dict[str, set[str]] = {}
    for chain in chains:
        for fault in chain.faults:
            if fault.cause is Cause.QUEUE_MISSING and fault.queue is not None:
                missed.setdefault(chain.replica, set()).add(fault.queue[0])
    tasks = [
        _task(plan, each, missed[each.replica], hosts.get(each.replica))
        for each in plan.surveys
        if each.is_running and each.replica in missed
    ]
    if not tasks:
        return {}
    found = zip(tasks, engine.run(deleted_folders, tasks), strict=True)
    return {task.replica: folders for task, folders in found}


def _task(plan: Plan, log: Survey, folders: Iterable[str], host: str | None) -> DeletedTask:
    root = os.path.join(os.path.dirname(log.commitlog), "consumequeue")
    wanted = tuple(sorted(folders))
    return DeletedTask(log.replica, log.commitlog, root, plan.segment_size, log.end, wanted, host)


def deleted_folders(task: DeletedTask) -> frozenset[str]:
    """Those of the task's folders that are gone by a deletion that the log tells of."""
    gone = {each for each in task.folders if not os.path.lexists(f"{task.queues_root}/{each}")}
    found: set[str] = set()
    if gone:
        for deleted in _deletions(task):
            found |= {folder for folder in gone if is_deleted(folder, [deleted])}
            if found == gone:
                break
    return frozenset(found)


def _deletions(task: DeletedTask) -> Iterator[str]:
    """What is deleted behind the task's end, as folders are called, up to where no intact entry
    follows: in the segments that are there now, so no writer is ever run after."""
    at = task.end
    try:
        for name in sorted(filter(FILE_NAME.fullmatch, names_in(task.commitlog))):
            base = int(name)
            if base + task.segment_size <= at:
                continue
            if base > at:
                return
            part = LogRange(task.commitlog, base, at, base + task.segment_size)
            for header, frame in command_frames(part):
                if header.physical_offset < at:
                    return
                yield from _deletions_in(header, frame)
            at = base + task.segment_size
    except OSError:
        return


def _deletions_in(header: EntryHeader, frame: bytes) -> Iterator[str]:
    try:
        deletions = [deletion_in(body) for body in commands_in(header, frame)]
    except InvalidFrame:  # Void on every node, with all that is in it.
        return
    for each in deletions:
        if each is not None:
            yield topic_folder(each.name, each.incarnation) if each.incarnation else each.name


def notes_of_deleted(deleted: Deleted, replicas: Sequence[str]) -> Iterator[str]:
    """A line for each replica of which queues weren't compared."""
    for replica in replicas:
        if folders := sorted(deleted.get(replica, ())):
            names = ", ".join(map(repr, folders))
            yield (
                f"{replica}: topics deleted while it was audited ({names}): what was read of their "
                "ConsumeQueues by then was right, and the rest is gone"
            )
