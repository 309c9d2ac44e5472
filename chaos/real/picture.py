"""The timeline of a run as an SVG picture: faults, nodes, throughput and latency over one axis.

From top to bottom: one lane for each kind of fault that happened, one row for each node with its
role and term, then acknowledged messages a second and the latency of their sends. Where a fault
was on, its shade runs through the charts below, so that one sees what it did. Colours are classes
that the page defines, so that the picture follows light and dark. It places shapes, which
`templates/timeline.svg` draws and escapes; it computes no figure that isn't in the facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from dledger.terminal.pages import Markup, rendered

LANE: Final = 20  # heights, in px
ROW: Final = 22
CHART: Final = 110
GAP: Final = 30
BAR: Final = 14
CHARACTER: Final = 6.4  # the width of one at the picture's font size
TICKS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200)
ROLE_CLASSES: Final = {
    "leader": "leader",
    "follower": "follower",
    "candidate": "candidate",
    "pre-candidate": "candidate",
    "silent": "silent",
}
FAMILIES: Final = {
    "kill": "process",
    "terminate": "process",
    "restart-loop": "process",
    "pause": "process",
    "kill-member": "member",
    "dismiss-member": "member",
    "pause-member": "member",
    "transfer": "process",
    "power-cut": "disk",
    "slow-disk": "disk",
    "full-disk": "disk",
    "failing-disk": "disk",
    "rot": "disk",
    "clock-step": "clock",
}


def family_of(nemesis: str) -> str:
    """The colour class of a nemesis; what isn't known is the network's."""
    return FAMILIES.get(nemesis, "network")


@dataclass(frozen=True, slots=True)
class Frame:
    """The horizontal axis: `left` px for names, then the run's time."""

    width: int
    left: int
    end_ms: float

    def x(self, at_ms: float) -> float:
        """Where a moment is."""
        return self.left + (self.width - self.left - 8) * min(at_ms, self.end_ms) / self.end_ms

    def span(self, start_ms: float, end_ms: float) -> tuple[float, float]:
        """Left edge and width, wide enough to be seen."""
        x = self.x(start_ms)
        return x, max(1.5, self.x(end_ms) - x)


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle, in px; `title` is what it says when it is pointed at."""

    shape: ClassVar[str] = "bar"
    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """A text; `anchor`: which of its ends, or its middle, is at `x`."""

    shape: ClassVar[str] = "words"
    x: float
    y: float
    words: str
    kind: str = ""
    anchor: str = "start"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A path; `d` is as SVG writes it."""

    shape: ClassVar[str] = "curve"
    kind: str
    d: str


Shape = Bar | Words | Curve


def timeline(facts: Mapping[str, Any], width: int) -> Markup:
    """The picture, `width` px wide."""
    narrow = width < 600
    frame = Frame(width, 92 if narrow else 128, max(1.0, facts["duration_s"] * 1000))
    lanes = list(dict.fromkeys(band["nemesis"] for band in facts["bands"]))
    y = 8.0
    parts: list[Shape] = []
    for name in lanes:
        parts += _lane(facts, frame, name, y, narrow=narrow)
        y += LANE
    y += 6 if lanes else 0
    for node_id, spans in facts["spans"].items():
        parts += _node(frame, node_id, spans, y)
        y += ROW
    charts_from = y
    y += GAP
    series = facts["series"]
    per_second = [1000 / series["slice_ms"] * count for count in series["acknowledged"]]
    scale = _linear(per_second)
    title = "acknowledged a second"
    if max(per_second) > scale.high:
        title += f", peak {max(per_second):,.0f}"
    parts += _chart(frame, y, title, scale, [(per_second, "area")])
    y += CHART + GAP
    p50, p99 = series["p50_ms"], series["p99_ms"]
    scale = _logarithmic([each for each in (*p50, *p99) if each is not None])
    title = "latency of sends, ms: median and p99"
    parts += _chart(frame, y, title, scale, [(p50, "p50"), (p99, "p99")])
    y += CHART
    parts = [*_shades(facts, frame, charts_from, y), *parts, *_axis(frame, charts_from, y)]
    height = y + 28
    label = f"Timeline of {facts['scenario']}: faults, roles of the nodes, throughput, latency"
    return rendered(
        "chaos.real",
        "timeline.svg",
        label=label,
        width=width,
        height=f"{height:.0f}",
        shapes=parts,
    )


def _name(frame: Frame, y: float, text: str) -> Words:
    """A row's name, cut to the space left of the axis."""
    room = int((frame.left - 8) / CHARACTER)
    shown = text if len(text) <= room else text[: room - 1] + "…"
    return Words(frame.left - 8, y, shown, "name", "end", text)


def _lane(
    facts: Mapping[str, Any], frame: Frame, name: str, y: float, *, narrow: bool
) -> Iterator[Shape]:
    yield _name(frame, y + 12, name)
    for band in facts["bands"]:
        if band["nemesis"] != name:
            continue
        x, width = frame.span(band["start_ms"], band["end_ms"])
        victims = ", ".join(band["victims"])
        title = f"{name} {victims} at {band['start_ms'] / 1000:.1f} s. {band['detail']}"
        yield Bar(x, y + 1, width, BAR, f"fault {family_of(name)}", title)
        if victims and not narrow and len(victims) * CHARACTER + 4 < width:
            yield Words(x + 4, y + 12, victims, "on")


def _node(
    frame: Frame, node_id: str, spans: Sequence[Mapping[str, Any]], y: float
) -> Iterator[Shape]:
    yield _name(frame, y + 13, node_id)
    for span in spans:
        x, width = frame.span(span["start_ms"], span["end_ms"])
        kind = ROLE_CLASSES.get(span["role"], "silent")
        title = f"{node_id}: {span['role']}, term {span['term']}"
        yield Bar(x, y + 1, width, ROW - 4, f"role {kind}", title)
        label = f"term {span['term']}"
        if kind == "leader":
            fitting = (each for each in (label, str(span["term"])) if _fits(each, width))
            if text := next(fitting, ""):
                yield Words(x + 4, y + 14, text, "on")


def _fits(text: str, width: float) -> bool:
    return len(text) * CHARACTER + 6 < width


def _shades(facts: Mapping[str, Any], frame: Frame, top: float, bottom: float) -> Iterator[Shape]:
    for band in facts["bands"]:
        x, width = frame.span(band["start_ms"], band["end_ms"])
        yield Bar(x, top, width, bottom - top, f"shade {family_of(band['nemesis'])}")


# --- charts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scale:
    """The vertical axis: labelled values, and where a value lies between bottom (0) and top (1)."""

    marks: tuple[float, ...]
    low: float
    high: float
    is_logarithmic: bool

    def height(self, value: float) -> float:
        """0 to 1."""
        if self.is_logarithmic:
            low, high = math.log10(self.low), math.log10(self.high)
            return min(1.0, max(0.0, (math.log10(max(value, self.low)) - low) / (high - low)))
        return min(1.0, (value - self.low) / (self.high - self.low))


def _linear(values: Sequence[float]) -> Scale:
    """Up to the highest value, unless that stands far above the rest: after an outage everything
    that waited is acknowledged at once, and would press the rest flat."""
    usual = sorted(values)[int(len(values) * 0.9)] if values else 0.0
    highest = max(1.0, min(max([*values, 1.0]), 2.5 * usual or math.inf))
    step = 10 ** math.floor(math.log10(highest))
    step = next(each for each in (step / 2, step, step * 2, step * 5) if highest / each <= 4)
    top = math.ceil(highest / step) * step
    return Scale(
        tuple(step * i for i in range(round(top / step) + 1)), 0.0, top, is_logarithmic=False
    )


def _logarithmic(values: Sequence[float]) -> Scale:
    low = 10 ** math.floor(math.log10(max(0.1, min(values, default=1.0))))
    high = max(10 ** math.ceil(math.log10(max([*values, 1.0]))), low * 10)
    decades = round(math.log10(high / low))
    return Scale(tuple(low * 10**i for i in range(decades + 1)), low, high, is_logarithmic=True)


def _chart(
    frame: Frame,
    top: float,
    title: str,
    scale: Scale,
    lines: Sequence[tuple[Sequence[float | None], str]],
) -> Iterator[Shape]:
    bottom = top + CHART
    right = frame.x(frame.end_ms)
    yield Words(frame.left, top - 8, title, "title")
    for mark in scale.marks:
        y = bottom - CHART * scale.height(mark)
        yield Curve("grid", f"M{frame.left} {y:.1f}H{right:.1f}")
        yield Words(frame.left - 8, y + 4, f"{mark:,g}", "name", "end")
    for values, kind in lines:
        for run in _runs(values):
            points = [
                (_middle(frame, i, len(values)), bottom - CHART * scale.height(value))
                for i, value in run
            ]
            yield _curve(points, bottom, kind)


def _middle(frame: Frame, i: int, count: int) -> float:
    return frame.x(frame.end_ms * (i + 0.5) / count)


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The stretches without a hole: where nothing was acknowledged there is no latency."""
    run: list[tuple[int, float]] = []
    for i, value in enumerate(values):
        if value is not None:
            run.append((i, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _curve(points: Sequence[tuple[float, float]], bottom: float, kind: str) -> Curve:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if kind == "area":
        return Curve("area", f"M{points[0][0]:.1f} {bottom:.1f}L{path}V{bottom:.1f}Z")
    if len(points) == 1:  # a line of one point shows nothing
        path += "h1.5"
    return Curve(f"line {kind}", f"M{path}")


def _axis(frame: Frame, top: float, bottom: float) -> Iterator[Shape]:
    seconds = frame.end_ms / 1000
    room = (frame.width - frame.left) / 70
    step = next((each for each in TICKS_S if seconds / each <= room), TICKS_S[-1])
    unit, size = ("s", 1) if seconds < 300 else ("min", 60)
    for i in range(int(seconds // step) + 1):
        x = frame.x(i * step * 1000)
        yield Curve("tick", f"M{x:.1f} {top + 4:.1f}V{bottom + 4:.1f}")
        label = f"{i * step / size:g}" + (f" {unit}" if i == 0 or i == int(seconds // step) else "")
        yield Words(x, bottom + 18, label, "name", "middle")
