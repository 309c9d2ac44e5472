"""Is one log right by itself? Each entry, record, CRC and running digest of it, and nothing beside.

Segments are read one after the other by the same code as in the check of derived files
(`audit.proof.reading`), so memory holds one of them's findings, and of the whole log where its
queues and producers have come to. What lies around a log (term and vote, ConsumeQueues, whether a
node would start) is `dledger audit copy`'s to say; what other replicas hold, `audit replicas`'.

    verdict     said of what was read when                                       exit code
    sound       every entry and record is right, and none is missing             0
    incomplete  something is missing, and nothing that is there is wrong         3
    damaged     something that is there is wrong                                 1

Of a range of entries, or of a log of which nothing says that its beginning went rightly, what
wasn't found is missing, too (`audit.proof.ranges`).

Of a directory that a node holds, what that node had settled is read: bytes that never change again,
whatever it does meanwhile. Otherwise everything is; what lies behind the durable watermark was
promised to nobody, so what is wrong there is the *tail* that a start cuts, and no damage. A backup
is read to where its `backup.json` says that it ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.engines.engine import Progress
from audit.proof.chain import (
    Chain,
    ChainTask,
    Fault,
    ReadTask,
    SeamTask,
    broken_fault,
    check_seam,
)
from audit.proof.findings import VERDICT_OF, Cause, Verdict
from audit.proof.invariants import SegmentEnds, between_segments
from audit.proof.ranges import (
    EVERYTHING,
    Missing,
    bases_from,
    digest_before,
    first_index,
    missing_of,
)
from audit.proof.reading import read_chains
from audit.proof.scope import UNKNOWN_START
from audit.proof.soundness import Soundness
from dledger.reading.errors import LogDamaged
from dledger.reading.files import opened
from dledger.reading.headers import walk_headers
from dledger.reading.ranges import checked_log
from dledger.reading.survey import Survey, commitlog_of, survey_folder
from dledger.records.layout import file_name
from store.holding import holder_of

SCHEMA: Final = "dledger-log/1"
TOO_LONG: Final = "segment too long"  # nothing that audits of several replicas look at

_LACKS: Final = {cause for cause, verdict in VERDICT_OF.items() if verdict is Verdict.INCOMPLETE}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is wrong: byte `offset` of `file`, where what should be an intact entry
    begins (a checksum doesn't tell which of its bytes). `count`: so many entries in a row.
    `is_tail`: behind what was durable."""

    file: str
    offset: int
    size: int
    cause: str
    detail: str
    index: int = 0
    term: int = 0
    count: int = 1
    is_tail: bool = False

    @property
    def verdict(self) -> Soundness:
        """What it says of the log."""
        if self.is_tail:
            return Soundness.SOUND
        return Soundness.INCOMPLETE if self.cause in _LACKS else Soundness.DAMAGED


@dataclass(frozen=True, slots=True)
class SegmentVerified:
    """One segment. Indexes are None where it has no intact entry; `left_out`: places that are like
    those that are told, and too many; those of the tail aside."""

    file: str
    base: int
    first_index: int | None
    last_index: int | None
    entries: int
    records: int
    verified_bytes: int
    places: tuple[Place, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """What a log claims, and how far it is read. `end`: the physical offset up to which entries
    must be right, all of them where no checkpoint says how far it was durable; `read_end`: that up
    to which there may be some. `holder`: who runs on it."""

    survey: Survey
    holder: str | None
    end: int
    read_end: int

    @property
    def segment_size(self) -> int:
        return self.survey.segment_size or 0

    def is_tail(self, start: int) -> bool:
        """Whether what lies at that physical offset was promised to nobody."""
        return start >= self.end


@dataclass(slots=True)
class LogSum:
    """What all that was read comes to. `missing`: which of the wanted entries were not found."""

    verdict: Soundness = Soundness.SOUND
    first: Place | None = None
    places: int = 0
    first_index: int | None = None
    last_index: int | None = None
    segments: int = 0
    entries: int = 0
    records: int = 0
    verified_bytes: int = 0
    tail: Place | None = None
    missing: tuple[Missing, ...] = ()

    def add(self, segment: SegmentVerified) -> None:
        """The segment is one of those that were read."""
        self.segments += 1
        self.entries += segment.entries
        self.records += segment.records
        self.verified_bytes += segment.verified_bytes
        self.places += segment.left_out
        if self.first_index is None:
            self.first_index = segment.first_index
        self.last_index = segment.last_index or self.last_index
        for place in segment.places:
            if place.is_tail:
                self.tail = self.tail or place
                continue
            self.places += 1
            self.first = self.first or place
            self._worsen(place.verdict)

    def lack(self, missing: tuple[Missing, ...]) -> None:
        """These entries were wanted and not found."""
        self.missing = missing
        if missing:
            self._worsen(Soundness.INCOMPLETE)

    def _worsen(self, verdict: Soundness) -> None:
        self.verdict = max(self.verdict, verdict, key=list(Soundness).index)


def open_log(path: Path, *, is_ours: bool = False) -> OpenedLog:
    """The log in a data directory, or in its `commitlog`; nothing of it has been read but headers.

    Args:
        is_ours: this process holds the directory, and nobody writes there but itself.

    Raises:
        NotALog: there is none, or it can't be read.
        LogDamaged: its files can't be the log that its checkpoint says they are.
        HolderUnknown: whether a node holds it can't be told, and with it what is settled.
    """
    commitlog = commitlog_of(os.fspath(path))
    # First who holds it: what was settled when it was held stays so if it is let go.
    holder = None if is_ours else holder_of(Path(commitlog).parent)
    survey = survey_folder("log", os.fspath(path))
    if survey.problem and os.access(commitlog, os.R_OK | os.X_OK) and os.path.isdir(commitlog):
        raise LogDamaged(survey.problem)
    checked_log(survey)
    if holder is not None:
        # Where the settled end is hidden by damage, what was durable is read, to meet it.
        end = survey.settled if survey.astray is None else survey.end
        return OpenedLog(survey, holder, end, end)
    if survey.is_backup:  # what lies behind its end means nothing
        return OpenedLog(survey, None, survey.end, survey.end)
    return OpenedLog(survey, None, survey.end, max(survey.end, _tail_end(survey)))


def verify_log(
    log: OpenedLog,
    wanted: tuple[int, int] = EVERYTHING,
    tell: Callable[[SegmentVerified], None] = lambda segment: None,
    progress: Progress = lambda size: None,
) -> LogSum:
    """Every segment with an entry that is `wanted` (first and last index, both of them) was read
    whole, and told in order.

    Args:
        progress: told bytes as they are read, of `weight_of` them.
    """
    total, reading = LogSum(), _Reading(log, begins=wanted[0] <= EVERYTHING[0])
    bases = bases_from(log.survey, log.read_end, wanted[0])

    def read() -> Iterator[SegmentEnds]:
        for base in bases:
            yield from reading.take(base)
            # Asked for the next: what doesn't follow in this one has been found by now.
            segment = reading.told()
            total.add(segment)
            tell(segment)
            progress(min(log.read_end - base, log.segment_size))
            if segment.last_index is not None and segment.last_index >= wanted[1]:
                return

    begin = bases[0] if bases else 0
    # What lies before the first that is read is known only where the log begins.
    before = log.survey.start if begin == log.survey.retained_from else None
    for broken in between_segments(read(), log.segment_size, begin, before):
        reading.found(broken_fault(broken))
    total.lack(missing_in(log, wanted, (total.first_index, total.last_index)))
    return total


def missing_in(
    log: OpenedLog, wanted: tuple[int, int], found: tuple[int | None, int | None]
) -> tuple[Missing, ...]:
    """What of the wanted range was not found, of which the first and last index are given. Where a
    node that holds the log had settled nothing of it, nothing was looked at: that is no proof."""
    if log.holder is not None and log.read_end <= log.survey.retained_from < log.survey.end:
        low, high = wanted
        return ((low, None if high == EVERYTHING[1] else high),)
    return missing_of(log.survey, wanted, *found)


def weight_of(log: OpenedLog, wanted: tuple[int, int] = EVERYTHING) -> int:
    """About how many bytes there are to read: a segment that doesn't end as it seems has one more
    read behind it."""
    bases = bases_from(log.survey, log.read_end, wanted[0])
    total = 0
    for base in bases:
        index = None if wanted[1] == EVERYTHING[1] else first_index(log.survey, base)
        if total and index is not None and index > wanted[1]:
            break
        total += min(log.read_end - base, log.segment_size)
    return total


def _tail_end(survey: Survey) -> int:
    """Where entries end that nobody was promised: behind the watermark, as the headers lead."""
    size, end = survey.segment_size or 0, survey.end
    for segment in survey.segments:
        if segment.base + size <= survey.end:
            continue
        if segment.base > end:
            break
        try:
            with opened(os.path.join(survey.commitlog, file_name(segment.base))) as descriptor:
                at, _, reason = walk_headers(descriptor, segment.base, size)
        except OSError:
            break
        end = max(end, segment.base + at)
        if reason != "filler":
            break
        end = segment.base + size
    return end


class _Reading:
    """One segment after the other: `take`, `found` for what others say of it, `told`. `begins`: it
    is read from the log's beginning on, whichever entry that is."""

    def __init__(self, log: OpenedLog, *, begins: bool) -> None:
        self._log = log
        self._begins = begins
        self._base = 0
        self._chain: Chain | None = None  # of the segment that is being read; None: it is missing
        self._before: Chain | None = None
        self._places: list[Place] = []

    def take(self, base: int) -> Iterator[SegmentEnds]:
        """The segment was read; what the segments beside it must fit, unless it is missing."""
        self._base, self._before, self._chain, self._places = base, self._chain, None, []
        lacks = self._lacking(base)
        self._places += lacks
        survey = self._log.survey
        if self._begins and base == survey.retained_from and survey.start is None:
            self._place(base, 0, Cause.START_UNKNOWN, UNKNOWN_START)
        if any(place.offset == 0 for place in lacks):
            return
        self._chain = chain = self._read(base)
        for fault in (*chain.faults, *self._seam(chain)):
            self.found(fault)
        if chain.gaps and not self._places:
            start, end = chain.gaps[0][0], chain.gaps[-1][1]
            detail = "the disk gives no bytes there"
            self._place(start, end - start, Cause.UNREADABLE_SEGMENT, detail)
        yield chain.ends

    def found(self, fault: Fault) -> None:
        """It is wrong with the segment that was taken last."""
        if fault.queue is None:  # queues are another command's
            size = (fault.last_end or fault.start + fault.size) - fault.start
            self._place(fault.start, size, fault.cause, fault.detail, fault)

    def told(self) -> SegmentVerified:
        """The segment that was taken last."""
        chain, file = self._chain, self._file(self._base)
        places = tuple(sorted(self._places, key=lambda place: place.offset))
        if chain is None:
            return SegmentVerified(file, self._base, None, None, 0, 0, 0, places)
        first, last = chain.ends.first, chain.ends.last
        return SegmentVerified(
            file=file,
            base=self._base,
            first_index=first.index if first else None,
            last_index=last.index if last else None,
            entries=chain.entries,
            records=chain.records,
            verified_bytes=chain.verified_bytes,
            places=places,
            left_out=sum(count for cause, count in chain.more if not self._is_of_tail(cause)),
        )

    def _is_of_tail(self, cause: Cause) -> bool:
        """Whether the places of that cause that aren't told are the tail's: they lie behind those
        that are."""
        told = [place for place in self._places if place.cause == cause]
        return bool(told) and max(told, key=lambda place: place.offset).is_tail

    def _file(self, base: int) -> str:
        return os.path.join(self._log.survey.commitlog, file_name(base))

    def _place(
        self, start: int, size: int, cause: str, detail: str, fault: Fault | None = None
    ) -> None:
        """`start` is a physical offset."""
        log = self._log
        self._places.append(
            Place(
                file=self._file(self._base),
                offset=start - self._base,
                size=size,
                cause=cause,
                detail=detail,
                index=fault.index if fault else 0,
                term=fault.term if fault else 0,
                count=fault.count if fault else 1,
                is_tail=cause != TOO_LONG and log.is_tail(start),
            )
        )

    def _lacking(self, base: int) -> list[Place]:
        """What the file lacks of the bytes that have to be there, or has too many."""
        log, file = self._log, self._file(base)
        size = next((each.size for each in log.survey.segments if each.base == base), None)
        wanted = min(log.end - base, log.segment_size)
        before, self._places = self._places, []
        if size is None:
            self._place(base, wanted, Cause.MISSING_SEGMENT, f"{file} is not there")
        elif size < wanted:
            detail = f"the file ends there, and {wanted} bytes of it were durable"
            self._place(base + size, wanted - size, Cause.TRUNCATED_SEGMENT, detail)
        elif size > log.segment_size:
            detail = f"the file is longer than a segment of {log.segment_size} bytes"
            self._place(base + log.segment_size, size - log.segment_size, TOO_LONG, detail)
        found, self._places = self._places, before
        return found

    def _read(self, base: int) -> Chain:
        survey = self._log.survey
        task = ChainTask(
            replica=survey.replica,
            commitlog=survey.commitlog,
            base=base,
            segment_size=self._log.segment_size,
            end=min(self._log.read_end, base + self._log.segment_size),
            derived_index=0,
            said=(0, 0),
            bytes_per_s=0,
        )
        (chain,) = read_chains(ReadTask((task,)))
        return chain

    def _seam(self, chain: Chain) -> Iterator[Fault]:
        """The fault, if the segment's first entry doesn't continue the digest before it."""
        digest = self._digest_before(chain.base)
        if digest is None or chain.first_digest is None:
            return
        fault = check_seam(SeamTask(chain.replica, self._log.survey.commitlog, chain.base, digest))
        if fault is not None:
            yield fault

    def _digest_before(self, base: int) -> int | None:
        survey = self._log.survey
        if base == survey.retained_from and survey.start is not None:
            return survey.start.digest
        if self._before is not None:
            return self._before.last_digest
        # The first that is read, or what lies before it is missing.
        return digest_before(survey, base)
