"""`dledger audit stats`: what is in the log, by topic and queue.

Each segment gives a small sum, sums are added: memory doesn't grow with the log. Distributions
are counted in buckets of a fifth of a power of ten's logarithm, so percentiles are right to 20 %.
Keys are counted exactly while there are few; of more than `MAX_KEYS` in a task each topic keeps its
share, whatever the others have, the rarest forgotten first: a hot key stays. One that comes back
begins at 0, so that its topic's figures are then lower bounds, which is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from audit.contents.timeline import Timeline
from audit.engines.engine import Engine, Progress, no_progress
from audit.engines.placed import placed_here
from audit.reading.replica import Replica
from audit.reading.survey import check_topics, committed_log
from dledger.reading.columns import Bodies, Cuts, Words
from dledger.reading.decode import (
    NOTHING_LEFT_OUT,
    LeftOut,
    LogRange,
    Records,
    Wanted,
    read_records,
)
from dledger.reading.lifetimes import followed
from dledger.reading.ranges import log_ranges

MAX_KEYS: Final = 10_000
HOT_KEYS: Final = 10
BUCKETS: Final = 200
_GROWTH: Final = 1.2
_LONG_AGO_MS: Final = 1 << 62
_WANTED: Final = (
    "topic", "queue_id", "queue_offset", "born_time", "store_time", "keys", "body",
)  # fmt: skip

Histogram = npt.NDArray[np.int64]


@dataclass(slots=True)
class QueueSum:
    """Sums over messages of one queue. Times are ms since the epoch; `size_counts` and
    `delay_counts` are histograms by `bucket_of`."""

    messages: int = 0
    body_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    size_counts: Histogram = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    delay_counts: Histogram = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    timeline: Timeline = field(default_factory=Timeline)

    def add(self, other: QueueSum) -> None:
        """`other`'s messages are counted too."""
        if other.messages:
            first = self.first_ms or other.first_ms
            self.first_ms = min(first, other.first_ms)
            self.last_ms = max(self.last_ms, other.last_ms)
        self.messages += other.messages
        self.body_bytes += other.body_bytes
        self.size_counts = self.size_counts + other.size_counts
        self.delay_counts = self.delay_counts + other.delay_counts
        self.timeline.add(other.timeline)


@dataclass(slots=True)
class LogSum:
    """Sums of each queue and counts of each topic's keys. `keys_forgotten`: topics of which some
    were; what is counted of those is what there is at the least."""

    queues: dict[tuple[str, int], QueueSum] = field(default_factory=dict)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)
    keys_forgotten: set[str] = field(default_factory=set)

    def add(self, other: LogSum) -> None:
        for queue, sums in other.queues.items():
            self.queues.setdefault(queue, QueueSum()).add(sums)
        self.keys.update(other.keys)
        self.keys_forgotten |= other.keys_forgotten
        self.forget_rare_keys()

    def forget_rare_keys(self) -> None:
        """Each topic has no more than its share, if all together have too many."""
        if len(self.keys) <= 2 * MAX_KEYS:
            return
        of_topic = Counter(topic for topic, _ in self.keys)
        share = max(MAX_KEYS // len(of_topic), 1)
        crowded = {topic for topic, count in of_topic.items() if count > 2 * share}
        if not crowded:
            return
        left: Counter[str] = Counter()
        kept: Counter[tuple[str, str]] = Counter()
        for (topic, key), count in self.keys.most_common():
            left[topic] += 1
            if topic not in crowded or left[topic] <= share:
                kept[topic, key] = count
        self.keys = kept
        self.keys_forgotten |= crowded

    def topics(self) -> dict[str, QueueSum]:
        """The sums by topic."""
        sums: dict[str, QueueSum] = {}
        for (topic, _), queue in sorted(self.queues.items()):
            sums.setdefault(topic, QueueSum()).add(queue)
        return sums


@dataclass(frozen=True, slots=True)
class StatsTask:
    """Sum up one range."""

    part: LogRange
    topics: frozenset[str] | None
    host: str | None = None
    left_out: LeftOut = NOTHING_LEFT_OUT

    @property
    def weight(self) -> int:
        return self.part.end - self.part.start


def sum_log(
    replica: Replica,
    engine: Engine,
    topics: frozenset[str] | None = None,
    progress: Progress = no_progress,
    *,
    includes_deleted: bool = False,
) -> LogSum:
    """The sums of everything committed.

    Args:
        includes_deleted: messages of topics that have been deleted by now, too, under their names.

    Raises:
        UsageMistake: the replica holds no log, or no message of one of `topics`, or lies on another
            machine than this one, and the engine's are several.
        NotBesideFiles: nobody reads its files on its machine.
        LogDamaged: its log is damaged.
    """
    engine = placed_here(engine, replica.id, replica.host)
    lifetimes = followed(whole := committed_log(replica))
    check_topics(whole, topics, lifetimes)
    log, left_out = lifetimes.readable(whole, includes_deleted=includes_deleted)
    tasks = [
        StatsTask(part, topics, replica.host, left_out)
        for part in log_ranges(log, log.retained_from, log.settled)
        if part.start < part.end
    ]
    total = LogSum()
    for each in engine.run(sum_range, tasks, progress):
        total.add(each)
    return total


def sum_range(task: StatsTask) -> LogSum:
    """The sums of one range."""
    sums = LogSum()
    for records in read_records(task.part, Wanted(_WANTED, task.topics, left_out=task.left_out)):
        _count(sums, records)
        sums.forget_rare_keys()
    return sums


def delays_ms(stored: npt.NDArray[np.int64], born: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """From being born to being stored. What a producer says is any number of 64 bits: one of long
    ago, or of long after, is as good as another."""
    return stored - np.clip(born, -_LONG_AGO_MS, _LONG_AGO_MS)


def bucket_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each value: 0 for 0 and below, then growing by a fifth."""
    logs = np.log(np.maximum(values, 1)) / np.log(_GROWTH)
    return np.where(values <= 0, 0, np.minimum(logs.astype(np.int64) + 1, BUCKETS - 1))


def bucket_edges(bucket: int) -> tuple[int, int]:
    """`[low, high)` of the values in a bucket, rounded; 0 and below are in bucket 0."""
    return (0, 0) if bucket == 0 else (round(_GROWTH ** (bucket - 1)), round(_GROWTH**bucket))


def counted_percentile(counts: Histogram, share: float) -> int:
    """The value below or at which `share` of the counted ones lie, to 20 %; 0 for none."""
    total = int(counts.sum())
    if not total:
        return 0
    bucket = int(np.searchsorted(np.cumsum(counts), share * total))
    return 0 if bucket == 0 else round(_GROWTH**bucket)


def stats_as_json(sums: LogSum) -> dict[str, object]:
    """Facts per topic and queue; rates over the time from the first message to the last."""
    hot: dict[str, list[tuple[str, int]]] = {}
    for (topic, key), count in sums.keys.most_common():
        if len(hot.setdefault(topic, [])) < HOT_KEYS:
            hot[topic].append((key, count))
    return {
        "schema": "dledger-stats/1",
        "topics": [
            {
                "topic": topic,
                **_facts(total),
                "hot_keys": [{"key": key, "messages": n} for key, n in hot.get(topic, [])],
                "keys_forgotten": topic in sums.keys_forgotten,
                "queues": [
                    {"queue_id": queue_id, **_facts(queue)}
                    for (name, queue_id), queue in sorted(sums.queues.items())
                    if name == topic
                ],
            }
            for topic, total in sums.topics().items()
        ],
    }


def _facts(sums: QueueSum) -> dict[str, object]:
    seconds = max(sums.last_ms - sums.first_ms, 1) / 1000
    return {
        "messages": sums.messages,
        "body_bytes": sums.body_bytes,
        "first_ms": sums.first_ms,
        "last_ms": sums.last_ms,
        "msgs_per_s": round(sums.messages / seconds, 1),
        "bytes_per_s": round(sums.body_bytes / seconds, 1),
        "size_bytes": _percentiles(sums.size_counts),
        "delay_ms": _percentiles(sums.delay_counts),
    }


def _percentiles(counts: Histogram) -> dict[str, int]:
    return {
        f"p{round(share * 100)}": counted_percentile(counts, share) for share in (0.5, 0.99, 1.0)
    }


def _count(sums: LogSum, records: Records) -> None:
    columns = records.columns
    topics, bodies = columns["topic"], columns["body"]
    if not isinstance(topics, Words) or not isinstance(bodies, Cuts | Bodies):
        raise TypeError("topics are words and bodies cuts, whoever decoded them")
    queues = np.asarray(columns["queue_id"], dtype=np.int64)
    stored = np.asarray(columns["store_time"], dtype=np.int64)
    delays = delays_ms(stored, np.asarray(columns["born_time"], dtype=np.int64))
    sizes = bodies.sizes
    keys, group = np.unique(np.stack([topics.codes, queues]), axis=1, return_inverse=True)
    for at, (code, queue_id) in enumerate(keys.T.tolist()):
        chosen = group == at
        times = stored[chosen]
        timeline = Timeline()
        timeline.count(times, sizes[chosen])
        sums.queues.setdefault((topics.words[code], queue_id), QueueSum()).add(
            QueueSum(
                int(chosen.sum()),
                int(sizes[chosen].sum()),
                int(times.min()),
                int(times.max()),
                np.bincount(bucket_of(sizes[chosen]), minlength=BUCKETS),
                np.bincount(bucket_of(delays[chosen]), minlength=BUCKETS),
                timeline,
            )
        )
    sums.keys.update(_keys(topics, columns["keys"]))  # type: ignore[arg-type]


def _keys(topics: Iterable[str], keys: Iterable[str | None]) -> Iterable[tuple[str, str]]:
    """Each message's keys; KEYS holds them separated by blanks."""
    for topic, of_message in zip(topics, keys, strict=True):
        if of_message:
            for key in of_message.split():
                yield topic, key
