"""What is asked of one segment of one replica, and what comes of it: values, and words for faults.

The asking is `audit.proof.reading`'s. Here is also the seam between two segments, which is checked
when both have been read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from audit.proof.findings import Cause
from audit.proof.invariants import Broken, SegmentEnds
from audit.proof.queue_files import QueueKey
from audit.proof.unit_runs import UnitRun
from dledger.reading.entry import (
    HEADER_SIZE,
    EntryHeader,
    digest_of,
    parse_header,
    verify_frame,
)
from dledger.reading.files import opened, read_at
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name
from dledger.wire.commands_pb2 import Command, DeleteTopicCommand
from store.dispatch import UNIT_SIZE
from store.intact import IntactRun


@dataclass(frozen=True, slots=True)
class ChainTask:
    """Read one segment up to physical offset `end`, and its records' units.

    Args:
        derived_index: the ConsumeQueues hold the units of entries up to it.
        said: index and digest that the node said of its committed log; (0, 0) if none did.
    """

    replica: str
    commitlog: str
    base: int
    segment_size: int
    end: int
    derived_index: int
    said: tuple[int, int]
    bytes_per_s: float
    host: str | None = None

    @property
    def weight(self) -> int:
        return min(self.end - self.base, self.segment_size)

    @property
    def queues_root(self) -> str:
        return os.path.join(os.path.dirname(self.commitlog), "consumequeue")


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Read one segment of replicas that were found to hold the same bytes there, and are on one
    host; or of one replica."""

    members: tuple[ChainTask, ...]

    @property
    def weight(self) -> int:
        return self.members[0].weight

    @property
    def host(self) -> str | None:
        return self.members[0].host


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault within a segment: an entry's, or a queue's if `queue` is given. Of a fault that was
    met `count` times in a row (entries) or in a queue (units) this is the first; `last_end` is
    where the last one ends, a physical offset."""

    cause: Cause
    start: int
    size: int
    index: int
    term: int
    detail: str
    queue: QueueKey | None = None
    count: int = 1
    last_end: int = 0


class SeenUnit(NamedTuple):
    """A batch of unit `unit` of a compound entry, as its ConsumeQueue has it: void or not. Of one
    that isn't settled within its segment (ADR 54)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks this for
    unit: int
    is_void: bool
    term: int
    start: int
    size: int
    queue: QueueKey

    def fault(self) -> Fault:
        """What is wrong where the log says otherwise."""
        said = "is void there, and the log says that it took effect"
        if not self.is_void:
            said = "isn't void there, and the log says that it was refused"
        detail = f"{self.queue[0]}/{self.queue[1]}: unit {self.unit} of entry {self.index} {said}"
        return Fault(
            Cause.QUEUE_WRONG, self.start, self.size, self.index, self.term, detail, self.queue
        )


class Settled(NamedTuple):
    """What a segment says of units before it: up to entry `through` (0: nothing), which of them
    were refused."""

    through: int = 0
    refused: frozenset[tuple[int, int]] = frozenset()

    def judge(self, seen: Iterable[SeenUnit]) -> tuple[list[Fault], list[SeenUnit]]:
        """What is wrong with those that it speaks of, and the others."""
        faults, left = [], []
        for each in seen:
            if each.index > self.through:
                left.append(each)
            elif each.is_void != ((each.index, each.unit) in self.refused):
                faults.append(each.fault())
        return faults, left


NOTHING_SETTLED: Final = Settled()


@dataclass(frozen=True, slots=True)
class Chain:
    """What one segment holds. `first_digest` is that of its first entry, `last_digest` that of
    its last; None if that entry is damaged, or isn't the segment's last by what is there.
    `queue_ends`: next queue offset of each queue. `deleted`: topics whose deletion is in this
    segment, as their folders are called, and the index of the entry that says so. `more`: how many
    faults of a cause weren't kept. `gaps`: physical ranges of which nothing intact is known.
    `ends`: what the segments beside it must fit. `units`: what its entries have in the
    queues, those of topics deleted within it aside; None where runs don't tell that. `run`: its
    entries, where nothing was found in any of them, nor between them."""

    replica: str
    base: int
    faults: tuple[Fault, ...]
    more: tuple[tuple[Cause, int], ...]
    first_digest: int | None
    last_digest: int | None
    queue_ends: tuple[tuple[QueueKey, int], ...]
    deleted: tuple[tuple[str, int], ...]
    gaps: tuple[tuple[int, int], ...]
    ends: SegmentEnds
    units: tuple[UnitRun, ...] | None
    entries: int
    records: int
    verified_bytes: int
    run: IntactRun | None = None
    open_units: tuple[SeenUnit, ...] = ()
    settled: Settled = NOTHING_SETTLED


@dataclass(frozen=True, slots=True)
class SeamTask:
    """Check that the first entry of a segment continues `digest`, that of the entry before."""

    replica: str
    commitlog: str
    base: int
    digest: int
    host: str | None = None

    @property
    def weight(self) -> int:
        return HEADER_SIZE


def check_seam(task: SeamTask) -> Fault | None:
    """The fault, if the running digest breaks between two segments; or if nobody can tell, as what
    was read a moment ago can't be read again. One that has gone was retention's, which goes on."""
    path = os.path.join(task.commitlog, file_name(task.base))
    try:
        with opened(path) as descriptor:
            header = parse_header(read_at(descriptor, HEADER_SIZE, 0), 0)
            frame = read_at(descriptor, header.total_size, 0)
            verify_frame(frame, 0, None)
    except FileNotFoundError:
        return None
    except (OSError, InvalidFrame) as error:
        detail = f"{path}: whether it goes on from the one before it wasn't checked: {error}"
        return Fault(Cause.UNREADABLE_SEGMENT, task.base, 0, 0, 0, detail)
    digest = digest_of(frame, 0, header.total_size, task.digest)
    if digest == header.digest:
        return None
    return digest_fault(task.base, header, digest)


def deletion_in(body: bytes) -> DeleteTopicCommand | None:
    """The deletion that the command is, if it is one."""
    try:
        command = Command.FromString(body)
    except DecodeError:
        return None
    return command.delete_topic if command.WhichOneof("body") == "delete_topic" else None


def settlement_in(body: bytes) -> Settled | None:
    """What the command says of units, if it does."""
    try:
        command = Command.FromString(body)
    except DecodeError:
        return None
    if command.WhichOneof("body") != "settle_units":
        return None
    said = command.settle_units
    return Settled(said.through, frozenset((each.index, each.unit) for each in said.refused))


def again_met(first: Fault, again: Fault) -> Fault:
    """Both as one, told as the first of them."""
    return replace(first, count=first.count + 1, last_end=again.start + again.size)


def entry_fault(cause: Cause, header: EntryHeader, detail: str) -> Fault:
    return Fault(
        cause, header.physical_offset, header.total_size, header.index, header.term, detail
    )


def broken_fault(broken: Broken) -> Fault:
    """The fault of an entry that doesn't follow what other segments hold."""
    return entry_fault(Cause.NO_LEADERS, broken.header, broken.why)


def digest_fault(start: int, header: EntryHeader, digest: int) -> Fault:
    detail = f"{digest:016x} continues the entry before, {header.digest:016x} is there"
    return Fault(Cause.DIGEST_BROKEN, start, header.total_size, header.index, header.term, detail)


def unit_fault(
    header: EntryHeader, queue: QueueKey, offset: int, expected: bytes, found: bytes
) -> Fault:
    missing = len(found) < UNIT_SIZE or not any(found)
    cause = Cause.QUEUE_MISSING if missing else Cause.QUEUE_WRONG
    detail = f"{queue[0]}/{queue[1]} at queue offset {offset}: {expected.hex()} expected, "
    detail += "nothing found" if missing else f"{found.hex()} found"
    return Fault(
        cause, header.physical_offset, header.total_size, header.index, header.term, detail, queue
    )
