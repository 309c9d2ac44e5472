"""Reading one segment from end to end: CRCs, running digests, the rules, ConsumeQueue units.

The work of the check of derived files, done beside the files. Each entry's digest must continue the
one before it (ADR 6), and each record must be where its queue's ConsumeQueue says (ADR 7). What can
only be judged with other segments at hand is returned for `audit.proof.derived` to judge: where
queues end, which topics were deleted later, how the first digest continues the segment before.

Entries are taken many at once while nothing is wrong with them (`audit.proof.runs`), and one by one
where something may be: faults are only ever found one by one. Of replicas that were found to hold
the same bytes one log is read, against the queues of all; if anything at all is wrong with any of
them, each is read by itself (docs/adr/0034-the-fast-way-of-an-audit.md).
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Final

from audit.proof.chain import (
    Chain,
    ChainTask,
    Fault,
    ReadTask,
    SeenUnit,
    Settled,
    again_met,
    deletion_in,
    digest_fault,
    entry_fault,
    settlement_in,
    unit_fault,
)
from audit.proof.findings import Cause
from audit.proof.intact import Growing
from audit.proof.invariants import SegmentRules
from audit.proof.queue_files import QueueFiles, QueueKey, is_deleted
from audit.proof.runs import (
    Batches,
    Framed,
    QueueUnits,
    batches_in,
    digests_continue,
    framed_in,
    queues_of,
)
from audit.proof.scan import ItemKind, ScanTask, Window, next_item
from audit.proof.unit_runs import UnitRuns
from audit.reading.pace import Pace
from dledger.reading.compound import batches_in as unit_batches
from dledger.reading.compound import commands_in
from dledger.reading.entry import (
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    claim_of,
    digest_of,
    preamble_of,
    verify_frame,
)
from dledger.reading.files import opened
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.layout import file_name, topic_folder
from store.dispatch import UNIT_SIZE, units_for_entry
from store.errors import DivergenceFound
from store.intact import IntactRun
from store.voiding import voided

RUN_BYTES: Final = 4 << 20  # What is looked at at once; an entry that is larger is taken alone.
WORTH: Final = 8  # A run is a try worth that is at least this part of what was searched.
MAX_FAULTS: Final = 100  # Of each cause a task names so many and counts the rest.
MAX_GAPS: Final = 1000  # So many are told apart; the last one takes what follows.

_CAUSES: Final = {
    ItemKind.BROKEN: Cause.BAD_CRC,
    ItemKind.STRAY: Cause.STRAY_FILLER,
    ItemKind.MISPLACED: Cause.WRONG_PLACE,
    ItemKind.ZEROS: Cause.OLD_COPY,
}


class _NotAlike(Exception):
    """Something is wrong with one of the members that are read together. Never leaves here."""


def read_chains(task: ReadTask) -> list[Chain]:
    """What the segment holds, by each member of the task."""
    if len(task.members) > 1:
        try:
            chain = _read(task.members)
            return [replace(chain, replica=member.replica) for member in task.members]
        except _NotAlike:
            pass
    return [_read((member,)) for member in task.members]


def _read(members: tuple[ChainTask, ...]) -> Chain:
    """What the first member's segment holds; a file that can't be read holds nothing.

    Raises:
        _NotAlike: there are several members, and with one of them something is wrong.
    """
    reader = _SegmentReader(members)
    task = members[0]
    try:
        with opened(os.path.join(task.commitlog, file_name(task.base))) as descriptor:
            reader.read(Window(descriptor), os.fstat(descriptor).st_size)
    except OSError:
        reader.give_up()  # The first pass reports it.
    finally:
        reader.close()
    return reader.chain()


class _SegmentReader:
    """Walks the first member's segment and keeps what `Chain` tells of it."""

    def __init__(self, members: tuple[ChainTask, ...]) -> None:
        self._members = members
        self._is_shared = len(members) > 1
        self._task = task = members[0]
        self._queues = [QueueFiles(member.queues_root) for member in members]
        self._end = min(task.end - task.base, task.segment_size)
        self._singly_to = 0  # Up to here the entries are taken one by one.
        self._pace = Pace(task.bytes_per_s)
        self._rules = SegmentRules(task.base)
        self._faults: list[Fault] = []
        self._of_queues: dict[tuple[Cause, QueueKey], Fault] = {}
        self._more: Counter[Cause] = Counter()
        self._gaps: list[tuple[int, int]] = []
        self._at = 0  # Where in the segment it has come to.
        self._first: int | None = None
        self._previous: int | None = None
        self._ends: dict[QueueKey, int] = {}
        self._units = UnitRuns()
        self._intact = Growing()
        self._deleted: dict[str, int] = {}
        self._open_units: list[SeenUnit] = []
        self._settled = Settled()
        self._entries = self._records = self._verified = 0

    def close(self) -> None:
        """No file is open."""
        for queues in self._queues:
            queues.close()

    def chain(self) -> Chain:
        task = self._task
        return Chain(
            task.replica,
            task.base,
            (*self._faults, *self._of_queues.values()),
            tuple(self._more.items()),
            self._first,
            self._previous,
            tuple(sorted(self._ends.items())),
            tuple(self._deleted.items()),
            tuple(self._gaps),
            self._rules.ends(),
            self._units.told(),
            self._entries,
            self._records,
            self._verified,
            self._run(),
            tuple(self._open_units),
            self._settled,
        )

    def _run(self) -> IntactRun | None:
        """The segment's entries, for whoever opens the log, if all is right with them."""
        return None if self._faults or self._gaps else self._intact.told()

    def read(self, window: Window, length: int) -> None:
        """Every entry up to the task's end; `length`: the file's, in bytes."""
        while self._at < self._end:
            if self._at >= self._singly_to and self._take_run(window):
                continue
            header, frame = self._next(window, length)
            if header is not None:
                self._take(header, frame)

    def give_up(self) -> None:
        """What follows can't be read."""
        self._lose()
        self._gap(self._at, self._end)

    # --- entries in which nothing is wrong, many at once ---------------------------------------

    def _take_run(self, window: Window) -> bool:
        """The entries that begin here are taken, if nothing at all is wrong with them. If not,
        nothing has changed, and as far as they go the same bytes are looked at one by one."""
        at = self._at
        framed = framed_in(window.read(at, min(RUN_BYTES, self._end - at)), self._task.base + at)
        scanned, framed = framed.scanned, framed.upto_deletion()
        # Where few can be taken together, the search for them must not cost more than it saves.
        self._singly_to = at + (framed.size if framed.size * WORTH >= scanned else scanned)
        if not framed.headers or not digests_continue(framed, self._previous):
            return False
        batches = batches_in(framed)
        if batches is None or not self._as_said(framed):
            return False
        rules = self._rules.copy()
        if any(self._broken(rules, framed, batches, each) for each in range(len(framed.headers))):
            return False
        queues = queues_of(framed, batches)
        if not all(self._have(queue, each) for queue, each in queues.items()):
            return False
        if self._previous is None and at == 0:
            self._first = framed.headers[0].digest
        self._previous = framed.headers[-1].digest
        self._rules = rules
        for queue, each in queues.items():
            self._ends[queue] = each.end
            self._units.expect(queue, each.first, each.all())
        for number, header in enumerate(framed.headers):
            self._intact.add(header, partial(framed.frame, number))
        self._entries += len(framed.headers)
        self._records += batches.bounds[-1]
        self._spend(framed.size)
        self._at = at + framed.size
        return True

    def _as_said(self, framed: Framed) -> bool:
        """Whether the digests are those that the nodes said."""
        digests = {header.index: header.digest for header in framed.headers}
        return all(
            digests.get(member.said[0], member.said[1]) == member.said[1]
            for member in self._members
        )

    def _broken(self, rules: SegmentRules, framed: Framed, batches: Batches, number: int) -> bool:
        """Whether the entry breaks a rule; the rules have gone on."""
        header, batch = framed.headers[number], batches.of[number]
        if batch is not None:
            return bool(rules.broken_by_batch(header, batch))
        return bool(rules.broken_by(header, framed.frame(number)))

    def _have(self, queue: QueueKey, units: QueueUnits) -> bool:
        """Whether the ConsumeQueues have these units, as far as each has to."""
        for queues, member in zip(self._queues, self._members, strict=True):
            expected = units.through(member.derived_index)
            if queues.units(queue, units.first, len(expected) // UNIT_SIZE) != expected:
                return False
        return True

    # --- one by one ----------------------------------------------------------------------------

    def _next(self, window: Window, length: int) -> tuple[EntryHeader | None, bytes]:
        """The intact entry that lies here; None, and a fault, if none does."""
        at = self._at
        head = window.read(at, HEADER_SIZE)
        size = claim_of(head, 0)[0] if len(head) == HEADER_SIZE else 0
        if HEADER_SIZE <= size <= self._end - at:
            frame = window.read(at, size)
            header = self._verify(frame, at)
            if header is not None:
                self._spend(size)
                self._at = at + size
                return header, frame
        self._at = self._pass_over(window, at, length)
        return None, b""

    def _take(self, header: EntryHeader, frame: bytes) -> None:
        """What the entry says, held against what is known."""
        self._intact.add(header, lambda: frame)
        self._entries += 1
        self._records += header.record_count
        for member in self._members:
            if header.index == member.said[0] and header.digest != member.said[1]:
                detail = f"{header.digest:016x} in the file, {member.said[1]:016x} said"
                self._keep(entry_fault(Cause.POSITION_DIGEST, header, detail))
        for why in self._rules.broken_by(header, frame):
            self._keep(entry_fault(Cause.NO_LEADERS, header, why))
        if header.is_batch:
            self._check_units(header, frame)
        elif header.is_known:
            self._take_parts(header, frame)

    def _take_parts(self, header: EntryHeader, frame: bytes) -> None:
        """What units hold, and commands of their own; units that lie are told by the rules."""
        if header.is_compound and header.record_count and self._is_shared:
            raise _NotAlike  # Each member's queues say which of them are void.
        try:
            batches = unit_batches(header, frame) if header.is_compound else ()
            for batch in batches:
                self._check_units(batch.header, batch.frame, batch.unit)
            for body in commands_in(header, frame):
                self._note_deletion(header, body)
                self._note_settled(body)
        except InvalidFrame:
            return

    def _note_settled(self, body: bytes) -> None:
        """What the log says of units is what this segment's are, as far as they are in it."""
        said = settlement_in(body)
        if said is None:
            return
        faults, self._open_units = said.judge(self._open_units)
        for fault in faults:
            self._count(fault)
        refused = self._settled.refused | said.refused
        self._settled = Settled(max(said.through, self._settled.through), refused)

    def _verify(self, frame: bytes, at: int) -> EntryHeader | None:
        """The header of an intact entry that lies where it says; its digest is checked too."""
        try:
            header = verify_frame(frame, 0, None)
        except InvalidFrame:
            return None
        if header.physical_offset != self._task.base + at:
            return None
        if self._previous is not None:
            digest = digest_of(frame, 0, header.total_size, self._previous)
            if digest != header.digest:
                self._keep(digest_fault(self._task.base + at, header, digest))
        elif at == 0:
            self._first = header.digest
        self._previous = header.digest
        return header

    def _pass_over(self, window: Window, at: int, length: int) -> int:
        """Where reading goes on behind what is no intact entry; a fault unless it is a filler, or
        what a file that is too short ends with: that lacks bytes, which the first pass tells."""
        task = self._task
        scan = ScanTask(
            task.replica, task.commitlog, task.base, task.segment_size, ((task.base, task.end),)
        )
        item = next_item(window, scan, at, 0)
        end = self._end
        if item is None or (length < end and at + item.size >= length):
            self._lose()
            self._gap(at, end)
            return task.segment_size
        self._spend(item.size)
        cause = _CAUSES.get(item.kind)
        if cause is not None:
            self._lose()
            self._keep(Fault(cause, item.start, item.size, item.index, item.term, item.detail))
            if item.kind is not ItemKind.STRAY:
                self._gap(at, min(at + item.size, end))
        elif item.kind is ItemKind.ENTRY:  # It reaches beyond what is claimed.
            self._lose()
            self._gap(at, end)
        return at + max(item.size, FILLER_HEADER_SIZE)

    def _lose(self) -> None:
        """What the next entry follows isn't known."""
        self._previous = None
        self._rules.damaged()

    def _check_units(self, header: EntryHeader, frame: bytes, unit: int | None = None) -> None:
        """Args:
        unit: of a compound entry that the batch is of: its units are void where it was refused.
        """
        try:
            topic, queue_id, base, expected = units_for_entry(header, frame)
            incarnation = preamble_of(header, frame).incarnation
        except (InvalidRecord, InvalidFrame, DivergenceFound) as error:
            self._keep(entry_fault(Cause.RECORDS_LIE, header, str(error)))
            return
        queues = self._queues[0]
        queue = (queues.folder(topic, incarnation, header.index), queue_id)
        self._ends[queue] = base + header.record_count
        if unit is not None and header.index <= self._task.derived_index:
            expected = self._seen(header, unit, queue, (base, expected))
        self._units.expect(queue, base, expected)
        if not incarnation:
            self._units.give_up()  # Its folder is a guess from those that are there now.
        if self._is_shared:
            self._check_alike(header, queue, (incarnation, base, expected))
        if header.index > self._task.derived_index:
            return
        found = queues.units(queue, base, header.record_count)
        if found == expected:
            return
        for number in range(header.record_count):
            here = slice(number * UNIT_SIZE, (number + 1) * UNIT_SIZE)
            if found[here] != expected[here]:
                self._count(unit_fault(header, queue, base + number, expected[here], found[here]))

    def _seen(
        self, header: EntryHeader, unit: int, queue: QueueKey, units: tuple[int, bytes]
    ) -> bytes:
        """What the ConsumeQueue is to hold of a batch: as it does, if that is void; what the log
        says of the unit comes later, and is compared then."""
        base, expected = units
        void = voided(expected, base)
        found = self._queues[0].units(queue, base, header.record_count)
        if found in (void, expected):
            place = header.physical_offset, header.total_size
            seen = SeenUnit(header.index, unit, found == void, header.term, *place, queue)
            self._open_units.append(seen)
        return void if found == void else expected

    def _check_alike(
        self, header: EntryHeader, queue: QueueKey, units: tuple[int, int, bytes]
    ) -> None:
        """The other members' queues, too. Where an entry doesn't name its topic's incarnation,
        each member's folders say which it is."""
        incarnation, base, expected = units
        wanted = QueueUnits(base)
        wanted.add(header.index, expected)
        if not incarnation or not self._have(queue, wanted):
            raise _NotAlike

    def _note_deletion(self, header: EntryHeader, body: bytes) -> None:
        """Queues of a deleted topic are rightly gone, and may begin again at offset 0."""
        deletion = deletion_in(body)
        if deletion is None:
            return
        gone, incarnation = deletion.name, deletion.incarnation
        if incarnation:
            gone = topic_folder(gone, incarnation)
        self._deleted[gone] = header.index
        self._units.forget(gone)
        self._ends = {
            queue: end for queue, end in self._ends.items() if not is_deleted(queue[0], [gone])
        }
        self._open_units = [u for u in self._open_units if not is_deleted(u.queue[0], [gone])]
        self._of_queues = {
            key: f for key, f in self._of_queues.items() if not is_deleted(key[1][0], [gone])
        }

    def _spend(self, size: int) -> None:
        self._verified += size
        self._pace.spend(size)

    def _count(self, fault: Fault) -> None:
        """A unit's fault, under its queue's: there are as many of these as there are queues, so
        none of them displaces another."""
        if self._is_shared:
            raise _NotAlike
        assert fault.queue is not None
        key = fault.cause, fault.queue
        first = self._of_queues.get(key)
        self._of_queues[key] = fault if first is None else again_met(first, fault)

    def _keep(self, fault: Fault) -> None:
        """An entry's fault. What fails alike with nothing intact between is one."""
        if self._is_shared:
            raise _NotAlike
        last = self._faults[-1] if self._faults else None
        end = 0 if last is None else last.last_end or last.start + last.size
        if last is not None and (last.cause, end) == (fault.cause, fault.start):
            self._faults[-1] = again_met(last, fault)
        elif sum(each.cause is fault.cause for each in self._faults) < MAX_FAULTS:
            self._faults.append(fault)
        else:
            self._more[fault.cause] += 1

    def _gap(self, start: int, end: int) -> None:
        """Nothing intact is known of these bytes of the segment."""
        start, end = self._task.base + start, self._task.base + end
        if start >= end:
            return
        if self._is_shared:
            raise _NotAlike
        if self._gaps and (self._gaps[-1][1] == start or len(self._gaps) == MAX_GAPS):
            self._gaps[-1] = self._gaps[-1][0], end
        else:
            self._gaps.append((start, end))
