"""What is in the log as one self-contained HTML page: bars over time and of delays, by queue.

Pure: sums in, text out. Queues of one topic share their scales, so that they can be compared by
eye; every bar says in words what it stands for. Names come from the log and are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Final

from audit.contents.stats import LogSum, QueueSum, bucket_edges, counted_percentile
from audit.contents.timeline import Timeline
from audit.showing.page import html_table, whole_page
from dledger.terminal.figures import human_bytes

MAX_QUEUES: Final = 64  # Drawn a topic; the table and the JSON have all.
_EPOCH: Final = datetime(1970, 1, 1)  # UTC, as everything here.
_WIDTH: Final = 320
_HEIGHT: Final = 64
_FOOT: Final = 16


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar: its column of the chart, its value, and what it says."""

    column: int
    value: int
    said: str


def render_stats(sums: LogSum, source: str) -> str:
    """The whole page.

    Args:
        source: where the log was read.
    """
    sections = "".join(_topic(sums, topic, total) for topic, total in sums.topics().items())
    messages = sum(queue.messages for queue in sums.queues.values())
    head = (
        "<h1>What is in the log</h1>"
        f'<p class="soft">{messages:,} messages, {len(sums.topics())} topics, '
        f"{len(sums.queues)} queues, read from <code>{escape(source)}</code>. Times are the "
        "leader's, in UTC; a delay is from the producer's clock to the leader's, right to 20 %.</p>"
    )
    return whole_page("What is in the log", head + sections)


def _topic(sums: LogSum, topic: str, total: QueueSum) -> str:
    own = sorted((number, queue) for (name, number), queue in sums.queues.items() if name == topic)
    titles = ("Queue", "Messages", "Bytes", "Messages/s", "Size p50", "Delay p50", "Delay p99")
    rows = [_row(label, queue) for label, queue in [("all", total), *_labelled(own)]]
    shown = own[:MAX_QUEUES]
    width = total.timeline.width_ms
    cards = "".join(
        _card(f"{topic}, queue {number}", queue, shown, total) for number, queue in shown
    )
    whole = _card(f"{topic}, all queues", total, [(0, total)], total)
    rest = f"<p>{len(own) - MAX_QUEUES} more queues are in the table.</p>" * (len(own) > MAX_QUEUES)
    hot = [(key, str(n)) for (name, key), n in sums.keys.most_common() if name == topic][:10]
    keys = f"<h3>Hot keys</h3>{html_table(('Key', 'Messages'), hot)}" if hot else ""
    return (
        f"<h2>Topic {escape(topic)}</h2>{html_table(titles, rows)}"
        f'<p class="soft">Over time: spans of {width / 1000:g} s.</p>'
        f'<div class="map">{whole}{cards}</div>{rest}{keys}'
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
) -> str:
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
            _Bar(span - first, value, f"{_moment(span * line.width_ms)}: {_said(what, value)}")
            for span, value in sorted(values.items())
        ]
        caption = f"{name}, {what} over time; highest {_said(what, top)}"
        charts.append(_chart(caption, kind, bars, (columns, top), ends))
    charts.append(_delays(name, queue, scaled))
    return f'<div class="strip">{"".join(charts)}</div>'


def _delays(name: str, queue: QueueSum, scaled: Sequence[tuple[int, QueueSum]]) -> str:
    """The distribution of delays."""
    top = max(int(q.delay_counts.max()) for _, q in scaled)
    used = [at for _, q in scaled for at in q.delay_counts.nonzero()[0].tolist()]
    first, last = min(used, default=0), max(used, default=0)
    bars = [
        _Bar(at - first, int(queue.delay_counts[at]), f"{_span_of(at)}: {queue.delay_counts[at]}")
        for at in queue.delay_counts.nonzero()[0].tolist()
    ]
    ends = (f"{bucket_edges(first)[0]} ms", f"{bucket_edges(last)[1]} ms")
    caption = f"{name}, messages by delay; highest {top:,}"
    return _chart(caption, "lack", bars, (last - first + 1, top), ends)


def _chart(
    caption: str,
    kind: str,
    bars: Sequence[_Bar],
    scale: tuple[int, int],
    ends: tuple[str, str],
) -> str:
    """Bars over `scale` = (columns, highest value); `ends` stand below the first and last."""
    columns, top = scale
    step = _WIDTH / max(columns, 1)
    drawn = []
    for bar in bars:
        height = max(_HEIGHT * bar.value / max(top, 1), 1)
        drawn.append(
            f'<rect class="{kind}" x="{bar.column * step:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{max(step - 1, 1):.1f}" height="{height:.1f}">'
            f"<title>{escape(bar.said)}</title></rect>"
        )
    said = escape(caption)
    return (
        f'<h3>{said}</h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img" '
        f'aria-label="{said}">{"".join(drawn)}'
        f'<text x="0" y="{_HEIGHT + 13}">{escape(ends[0])}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 13}" text-anchor="end">{escape(ends[1])}</text></svg>'
    )


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
