"""One audit that believes what it may: what is believed, what is doubted, what is kept. See ADR 35.

The order is the rule. Stamps are taken before anything is read and again behind it; only a file
that was the same at both ends has a result that is kept, and only while it is the same one is that
believed. A finding voids what is kept around it and the audit is made again, so that no verdict but
*identical* rests on a kept result in what it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain as chained
from typing import Final

from audit.engines.engine import Engine, PassStarted
from audit.engines.placed import placed
from audit.keeping.kept import Kept, KeptDigests, Part, Row, encode_chain, encode_digests
from audit.keeping.pace import Pace
from audit.keeping.program import program_digest
from audit.keeping.recalling import Recalling, asks_of_whole
from audit.keeping.stamps import FileStamp, Place, Stamps, stamped
from audit.keeping.store import Memory
from audit.proof.chain import Chain
from audit.proof.findings import Cause, Finding
from audit.proof.replicas import Options, audit_replicas, silent
from audit.proof.report import Audit
from audit.reading.replica import Replica

MAX_DOUBTS: Final = 3  # Then nothing is believed.
# What is written within a tick of the disk's clock as it is read has the times of what was read.
SETTLED_S: Final = 2.0

# What surveys tell: no byte of the log, so nothing that was kept, is at the bottom. A start that is
# refused is none of these: it has read the log, perhaps where a kept result says that all is well.
_OF_SURVEYS: Final = frozenset(
    {
        *(Cause.UNREACHABLE_NODE, Cause.UNREADABLE_REPLICA, Cause.EMPTY_REPLICA, Cause.SHORTER),
        *(Cause.RETAINED_LATER, Cause.ALONE, Cause.CHECKPOINT_LOST),
        *(Cause.SAME_DISK, Cause.OVERTAKEN),
        Cause.QUEUE_SIZE,
    }
)
# What one segment shows may be another one's fault.
_OF_SEVERAL: Final = frozenset({Cause.DIGEST_BROKEN, Cause.NO_LEADERS})

Stamper = Callable[[Sequence[Replica], Engine], list[Stamps]]


class Remembering:
    """Audits that share a memory.

    Args:
        memory: what was proved before.
        period_s: everything is read again within so many seconds; 0: believe nothing.
        clock: seconds since the epoch.
        settled_s: a file that was changed within so many seconds is not kept.
    """

    def __init__(
        self,
        memory: Memory,
        period_s: float,
        *,
        clock: Callable[[], float],
        settled_s: float = SETTLED_S,
        stamper: Stamper = stamped,
    ) -> None:
        self._memory = memory
        self._period_s = period_s
        self._clock = clock
        self._settled_ns = int(settled_s * 1e9)
        self._stamper = stamper

    def audit(
        self,
        replicas: Sequence[Replica],
        engine: Engine,
        options: Options,
        started: PassStarted = silent,
    ) -> Audit:
        """As `audit_replicas`.

        Raises:
            UsageMistake: as there, or the memory is another broker group's.
        """
        engine = placed(engine)
        now = self._clock()
        before = self._stamper(replicas, engine)
        known = self._memory.kept(program_digest())
        believed = self._believed(known, _by_place(before), now)
        void: set[Place] = set()
        for _ in range(MAX_DOUBTS):
            passes = Recalling(options.bytes_per_s, believed)
            audited = audit_replicas(replicas, engine, options, started, passes)
            doubted = doubtful(audited, passes.used)
            if not doubted:
                break
            void |= doubted
            believed = {place: kept for place, kept in believed.items() if place not in doubted}
        else:
            passes = Recalling(options.bytes_per_s, {})
            audited = audit_replicas(replicas, engine, options, started, passes)
        after = _by_place(self._stamper(replicas, engine))
        same = self._unchanged(before, after)
        rows = list(_proved(passes, audited, same, now))
        ended = [*void, *self._ended(known, before, now)]
        self._memory.keep(audited.report.group, now, rows, ended)
        return audited

    def _believed(
        self, known: Mapping[Place, Kept], stamps: Mapping[Place, FileStamp], now: float
    ) -> dict[Place, Kept]:
        """What may be believed in this round."""
        if self._period_s <= 0 or not program_digest():
            return {}
        same = {p: kept for p, kept in known.items() if stamps.get(p) == kept.stamp}
        pace = Pace(self._period_s, now - self._memory.last_audit(now))
        due = pace.due({p: (now - kept.proved, kept.stamp.size) for p, kept in same.items()})
        return {place: kept for place, kept in same.items() if place not in due}

    def _unchanged(
        self, before: Sequence[Stamps], after: Mapping[Place, FileStamp]
    ) -> dict[Place, FileStamp]:
        """Files that were the same while they were read, and had been for a while."""
        return {
            (each.replica, base): stamp
            for each in before
            for base, stamp in each.files
            if after.get((each.replica, base)) == stamp
            and stamp.ctime_ns < each.taken_ns - self._settled_ns
        }

    def _ended(
        self, known: Mapping[Place, Kept], before: Sequence[Stamps], now: float
    ) -> list[Place]:
        """What needn't be kept any longer: its file is gone, or another, or its time is over."""
        seen = {each.replica for each in before if each.files}
        there = _by_place(before)
        pace = Pace(max(self._period_s, 1.0), 0)
        return [
            place
            for place, kept in known.items()
            if (place[0] in seen and there.get(place) != kept.stamp)
            or pace.is_over(now - kept.proved)
        ]


def doubtful(audited: Audit, used: set[Place]) -> set[Place]:
    """Which of the kept results that were used have to do with something that was found."""
    size = audited.plan.segment_size
    differing = {segment.base for segment, _ in audited.comparison.differing_blocks()}
    doubted = {place for place in used if place[1] in differing}
    for finding in audited.report.findings:
        if finding.cause in _OF_SURVEYS:
            continue
        doubted |= {place for place in used if _touches(finding, place[1], size)}
        if not finding.places or finding.cause in _OF_SEVERAL:
            doubted |= {place for place in used if place[0] in finding.replicas}
    return doubted


def _touches(finding: Finding, base: int, size: int) -> bool:
    return any(start < base + size and end > base for start, end in finding.places)


def _proved(
    passes: Recalling, audited: Audit, same: Mapping[Place, FileStamp], now: float
) -> Iterator[Row]:
    """What this audit read and found nothing in, and may be kept."""
    size = audited.plan.segment_size
    differing = {segment.base for segment, _ in audited.comparison.differing_blocks()}
    findings = [each for each in audited.report.findings if each.cause not in _OF_SURVEYS]
    # What was read of one of them may be the other's.
    shared = {r for each in findings if each.cause is Cause.SHARED_FILE for r in each.replicas}
    for place, stamp in same.items():
        base = place[1]
        if stamp.size != size or base in differing or place[0] in shared:
            continue
        if not passes.is_of(place, stamp.file):
            continue
        if any(_touches(finding, base, size) for finding in findings):
            continue
        digests = _whole(passes, place, size)
        if digests is not None:
            payload = encode_digests(digests)
            yield Row(place, Part.DIGESTS, stamp, program_digest(), now, payload)
        task, chain = passes.walked.get(place, (None, None))
        if task and chain and _is_clean(chain) and asks_of_whole(task, chain):
            yield Row(place, Part.CHAIN, stamp, program_digest(), now, encode_chain(chain))


def _whole(passes: Recalling, place: Place, size: int) -> KeptDigests | None:
    """The digests of all of a segment."""
    parts = sorted(passes.hashed.get(place, ()), key=lambda each: each[0].first_block)
    if not parts or any(digests.problem is not None for _, digests in parts):
        return None
    edges = tuple(dict.fromkeys(chained.from_iterable(part.edges for part, _ in parts)))
    is_whole = (edges[0], edges[-1]) == (place[1], place[1] + size)
    joined = b"".join(digests.digests for _, digests in parts)
    if not is_whole or len(joined) != 8 * (len(edges) - 1):
        return None
    return KeptDigests(edges, joined)


def _is_clean(chain: Chain) -> bool:
    """Everything in the segment is as it was written, and its runs tell its units."""
    ends = chain.ends
    return (
        not (chain.faults or chain.more or chain.gaps or chain.open_units)
        and chain.units is not None
        and chain.first_digest is not None
        and chain.last_digest is not None
        and ends.begins_whole
        and ends.ends_whole
        and ends.is_whole
    )


def _by_place(stamps: Sequence[Stamps]) -> dict[Place, FileStamp]:
    return {(each.replica, base): stamp for each in stamps for base, stamp in each.files}
