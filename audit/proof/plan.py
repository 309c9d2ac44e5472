"""What is to be read: from surveys to blocks, and from blocks to tasks. Pure.

The log is cut into segments, a segment into blocks. Block edges are a function of the surveys
alone, so all replicas are hashed over the same ranges and digests can be compared by place. A
block also ends where some replica's claim ends: the last block of a shorter replica is hashed in
part, and the others are hashed over that part as well.

Tasks are few and large, because a task costs far more than its bookkeeping (measured: 96 small
Spark tasks hash 0.4 GB/s, two large ones 3.5 GB/s), but small enough that progress can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from audit.errors import UsageMistake
from dledger.reading.survey import Survey

DEFAULT_BLOCK_BYTES: Final = 256 << 10
MIN_BLOCK_BYTES: Final = 4096
MAX_BLOCK_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The blocks of one segment: block i is `[edges[i], edges[i + 1])`, physical offsets."""

    base: int
    edges: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit compares: blocks of the log, in order, and who claims to hold up to where."""

    segment_size: int
    block_size: int
    start: int
    end: int
    segments: tuple[SegmentPlan, ...]
    surveys: tuple[Survey, ...]

    def survey_of(self, replica: str) -> Survey:
        """The survey of the replica with that id."""
        return next(each for each in self.surveys if each.replica == replica)


@dataclass(frozen=True, slots=True)
class DigestPart:
    """Neighbouring blocks of one segment, by their edges; `first_block` numbers the first one
    within the segment."""

    base: int
    first_block: int
    edges: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.edges[-1] - self.edges[0]


@dataclass(frozen=True, slots=True)
class DigestTask:
    """Hash these parts of one replica, at `bytes_per_s` at most (0: as fast as it goes); by its
    node at `address`, if there is one."""

    replica: str
    commitlog: str
    parts: tuple[DigestPart, ...]
    bytes_per_s: float
    host: str | None = None
    address: str | None = None
    segment_size: int = 0

    @property
    def weight(self) -> int:
        """Bytes to read."""
        return sum(part.size for part in self.parts)


def make_plan(surveys: Sequence[Survey], block_size: int = DEFAULT_BLOCK_BYTES) -> Plan:
    """The blocks to compare; none if no replica claims anything.

    Raises:
        UsageMistake: the replicas are of several broker groups or have segments of several sizes,
            so their positions mean different bytes; or the block size is out of its range.
    """
    if not MIN_BLOCK_BYTES <= block_size <= MAX_BLOCK_BYTES or block_size & (block_size - 1):
        raise UsageMistake(
            f"a block of {block_size} bytes: wanted is a power of two from {MIN_BLOCK_BYTES} "
            f"to {MAX_BLOCK_BYTES}"
        )
    readable = [each for each in surveys if not each.problem]
    _check_same("broker group", {s.replica: s.broker_group for s in readable})
    sizes = {s.replica: s.segment_size for s in readable}
    _check_same("segment size", sizes)
    segment_size = next((size for size in sizes.values() if size), 0)
    claims = [each for each in readable if each.end > 0]
    if not segment_size or not claims:
        return Plan(segment_size or 0, block_size, 0, 0, (), tuple(surveys))
    start = min(each.retained_from for each in claims)
    end = max(each.end for each in claims)
    cuts = sorted({each.end for each in claims} | {each.retained_from for each in claims})
    # Between claims that lie far apart there may be more segments than could be counted.
    bases = {
        base
        for each in claims
        for base in range(
            each.retained_from - each.retained_from % segment_size, each.end, segment_size
        )
    }
    segments = tuple(
        SegmentPlan(base, _edges(base, segment_size, block_size, (start, end), cuts))
        for base in sorted(bases)
    )
    return Plan(segment_size, block_size, start, end, segments, tuple(surveys))


def digest_tasks(plan: Plan, hosts: dict[str, str | None], task_bytes: int) -> list[DigestTask]:
    """Every block of every replica that claims to hold it, in tasks of about `task_bytes`.

    Args:
        hosts: replica id to where it lies.
    """
    tasks: list[DigestTask] = []
    for survey in plan.surveys:
        batch: list[DigestPart] = []
        for part in _split(_claimed(plan, survey), max(task_bytes, plan.block_size)):
            if batch and sum(each.size for each in batch) + part.size > task_bytes:
                tasks.append(_task(plan, survey, batch, hosts))
                batch = []
            batch.append(part)
        if batch:
            tasks.append(_task(plan, survey, batch, hosts))
    return tasks


def block_tasks(
    plan: Plan, blocks: Sequence[tuple[SegmentPlan, int]], hosts: Mapping[str, str | None]
) -> list[DigestTask]:
    """Those of `blocks`, in the log's order, that each replica claims to hold, a part each."""
    tasks = []
    for survey in plan.surveys:
        parts = [
            DigestPart(segment.base, number, segment.edges[number : number + 2])
            for segment, number in blocks
            if holds(survey, *segment.edges[number : number + 2])
        ]
        if parts:
            tasks.append(_task(plan, survey, parts, hosts))
    return tasks


def is_overtaken(survey: Survey) -> bool:
    """Whether the log begins by now behind all that its node said to be committed: a snapshot was
    installed since, or retention went on so far."""
    return survey.is_running and 0 < survey.end < survey.retained_from


def holds(survey: Survey, start: int, end: int) -> bool:
    """Whether the replica claims all of `[start, end)`."""
    return not survey.problem and survey.retained_from <= start and end <= survey.end


def _task(
    plan: Plan, survey: Survey, batch: list[DigestPart], hosts: Mapping[str, str | None]
) -> DigestTask:
    return DigestTask(
        survey.replica,
        survey.commitlog,
        tuple(batch),
        0,
        hosts.get(survey.replica),
        survey.address,
        plan.segment_size,
    )


def _check_same(what: str, values: Mapping[str, object]) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in known.items())
        raise UsageMistake(f"the replicas differ in {what} and can't be compared ({listed})")


def _edges(
    base: int, segment_size: int, block_size: int, claimed: tuple[int, int], cuts: list[int]
) -> tuple[int, ...]:
    low, high = max(base, claimed[0]), min(base + segment_size, claimed[1])
    first = base + (low - base) // block_size * block_size + block_size
    edges = {low, high, *range(first, high, block_size)}
    edges.update(cut for cut in cuts if low < cut < high)
    return tuple(sorted(edges))


def _claimed(plan: Plan, survey: Survey) -> Iterable[DigestPart]:
    """The runs of blocks that the replica claims, one a segment."""
    for segment in plan.segments:
        edges = segment.edges
        kept = [
            block
            for block in range(len(edges) - 1)
            if holds(survey, edges[block], edges[block + 1])
        ]
        if kept:
            yield DigestPart(segment.base, kept[0], edges[kept[0] : kept[-1] + 2])


def _split(parts: Iterable[DigestPart], task_bytes: int) -> Iterable[DigestPart]:
    """The same blocks in parts of `task_bytes` at most."""
    for part in parts:
        first = 0
        for block in range(1, len(part.edges)):
            is_last = block == len(part.edges) - 1
            if is_last or part.edges[block + 1] - part.edges[first] > task_bytes:
                yield DigestPart(part.base, part.first_block + first, part.edges[first : block + 1])
                first = block
