"""What is in the log as one self-contained HTML page: bars over time and of delays, by queue.

Pure: sums in, text out. Queues of one topic share their scales, so that they can be compared by
eye; every bar says in words what it stands for. The layout is `templates/stats.html`, which escapes
the names that come from the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from audit.contents.stats import LogSum, QueueSum, bucket_edges, counted_percentile
from audit.contents.timeline import Timeline
from dledger.terminal.figures import human_bytes
from dledger.terminal.pages import rendered

MAX_QUEUES: Final = 64  # Drawn a topic; the table and the JSON have all.
_EPOCH: Final = datetime(1970, 1, 1)  # UTC, as everything here.
_WIDTH: Final = 320
_HEIGHT: Final = 64
_FOOT: Final = 16


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar, in px, and what it says."""

    x: float
    width: float
    height: float
    said: str


@dataclass(frozen=True, slots=True)
class _Chart:
    """Bars of one colour; `first` and `last` stand below the ends of the axis."""

    caption: str
    kind: str
    bars: tuple[_Bar, ...]
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic's table, charts and hot keys; `more` queues are in the table only."""

    name: str
    rows: tuple[tuple[str, ...], ...]
    span_s: float
    cards: tuple[tuple[_Chart, ...], ...]
    more: int
    hot: tuple[tuple[str, str], ...]


def render_stats(sums: LogSum, source: str) -> str:
    """The whole page.

    Args:
        source: where the log was read.
    """
    return rendered(
        "audit.showing",
        "stats.html",
        messages=sum(queue.messages for queue in sums.queues.values()),
        queues=len(sums.queues),
        topics=[_topic(sums, name, total) for name, total in sums.topics().items()],
        source=source,
        width=_WIDTH,
        height=_HEIGHT,
        foot=_FOOT,
    )


def _topic(sums: LogSum, topic: str, total: QueueSum) -> _Topic:
    own = sorted((number, queue) for (name, number), queue in sums.queues.items() if name == topic)
    shown = own[:MAX_QUEUES]
    cards = [_card(f"{topic}, queue {number}", queue, shown, total) for number, queue in shown]
    least = "at least " if topic in sums.keys_forgotten else ""
    hot = [(key, f"{least}{n}") for (name, key), n in sums.keys.most_common() if name == topic]
    return _Topic(
        topic,
        tuple(_row(label, queue) for label, queue in [("all", total), *_labelled(own)]),
        total.timeline.width_ms / 1000,
        (_card(f"{topic}, all queues", total, [(0, total)], total), *cards),
        len(own) - MAX_QUEUES,
        tuple(hot[:10]),
    )


def _labelled(queues: Sequence[tuple[int, QueueSum]]) -> list[tuple[str, QueueSum]]:
    return [(str(number), queue) for number, queue in queues]


def _row(label: str, queue: QueueSum) -> tuple[str, ...]:
    seconds = max(queue.last_ms - queue.first_ms, 1) / 1000
    return (
        label,
        f"{queue.messages:,}",
        human_bytes(queue.body_bytes),
        f"{queue.messages / seconds:,.0f}",
        human_bytes(counted_percentile(queue.size_counts, 0.5)),
        f"{counted_percentile(queue.delay_counts, 0.5)} ms",
        f"{counted_percentile(queue.delay_counts, 0.99)} ms",
    )


def _card(
    name: str, queue: QueueSum, scaled: Sequence[tuple[int, QueueSum]], total: QueueSum
) -> tuple[_Chart, ...]:
    """Three charts of one queue, as high as the highest bar of the `scaled` queues."""
    line = total.timeline
    first, last = min(line.messages, default=0), max(line.messages, default=0)
    ends = (_moment(first * line.width_ms), _moment((last + 1) * line.width_ms))
    columns = last - first + 1
    charts = []
    for what, kind in (("messages", "same"), ("bytes", "alone")):
        values = _values(queue.timeline, line.width_ms, what)
        tops = [_values(q.timeline, line.width_ms, what).values() for _, q in scaled]
        top = max(max(each, default=0) for each in tops)
        bars = [
            _bar(
                (span - first, columns),
                (value, top),
                f"{_moment(span * line.width_ms)}: {_said(what, value)}",
            )
            for span, value in sorted(values.items())
        ]
        caption = f"{name}, {what} over time; highest {_said(what, top)}"
        charts.append(_Chart(caption, kind, tuple(bars), *ends))
    return (*charts, _delays(name, queue, scaled))


def _delays(name: str, queue: QueueSum, scaled: Sequence[tuple[int, QueueSum]]) -> _Chart:
    """The distribution of delays."""
    top = max(int(q.delay_counts.max()) for _, q in scaled)
    used = [at for _, q in scaled for at in q.delay_counts.nonzero()[0].tolist()]
    first, last = min(used, default=0), max(used, default=0)
    bars = [
        _bar(
            (at - first, last - first + 1),
            (int(queue.delay_counts[at]), top),
            f"{_span_of(at)}: {queue.delay_counts[at]}",
        )
        for at in queue.delay_counts.nonzero()[0].tolist()
    ]
    return _Chart(
        f"{name}, messages by delay; highest {top:,}",
        "lack",
        tuple(bars),
        f"{bucket_edges(first)[0]} ms",
        f"{bucket_edges(last)[1]} ms",
    )


def _bar(place: tuple[int, int], value: tuple[int, int], said: str) -> _Bar:
    """A bar in a column of so many, and as high as its value is of the highest."""
    step = _WIDTH / max(place[1], 1)
    height = max(_HEIGHT * value[0] / max(value[1], 1), 1)
    return _Bar(place[0] * step, max(step - 1, 1), height, said)


def _values(line: Timeline, width_ms: int, what: str) -> Mapping[int, int]:
    """By span of `width_ms`, which is the topic's and so no narrower than the queue's."""
    wide = Timeline(width_ms)
    wide.add(line)
    return wide.messages if what == "messages" else wide.body_bytes


def _said(what: str, value: int) -> str:
    return f"{value:,} messages" if what == "messages" else human_bytes(value)


def _span_of(bucket: int) -> str:
    low, high = bucket_edges(bucket)
    return f"{low} to {high} ms"


def _moment(time_ms: int) -> str:
    """A stamp of any leader's clock; one that no calendar has is shown as it is."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(" ", "milliseconds")
    except OverflowError:
        return f"{time_ms} ms"
