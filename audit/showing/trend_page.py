"""The history of a watch as one self-contained HTML page: verdicts, lag, rates, findings over time.

Pure: rounds in, text out. Time is cut into spans of one width, at most `MAX_SPANS`, and of each
span the worst is drawn, so that no bad round is lost between good ones. Where no round ended
nothing is drawn, and where the value is zero a flat mark is: not to know and to know that there is
none are two things. Every bar says in words what it stands for. The layout is
`templates/trend.html`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from audit.keeping.history import FAILED, Round, growth, worst_exit
from audit.proof.findings import Verdict, gravity
from audit.showing.words import CLASS_OF
from dledger.outcome import ExitCode
from dledger.terminal.figures import human_bytes
from dledger.terminal.pages import rendered

MAX_SPANS: Final = 120
SHOWN_ROUNDS: Final = 20
SHOWN_BAD: Final = 10
_WIDTH: Final = 480
_HEIGHT: Final = 64
_FOOT: Final = 16
_FLAT: Final = 1.5

Value = Callable[[Round], float | None]
Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar, in px, its class, and what it says."""

    x: float
    width: float
    height: float
    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class _Chart:
    """Bars over the whole time."""

    caption: str
    bars: tuple[_Bar, ...]


@dataclass(frozen=True, slots=True)
class _Spans:
    """The time of all rounds, cut into `count` spans of `width` seconds."""

    start: float
    width: float
    count: int

    def of(self, each: Round) -> int:
        """The span in which the round ended."""
        return min(max(int((each.finished - self.start) / self.width), 0), self.count - 1)

    def bar(self, span: int, height: float, kind: str, said: str) -> _Bar:
        step = _WIDTH / self.count
        moment = _moment(self.start + span * self.width)
        return _Bar(span * step, max(step - 1, 1), height, kind, f"{moment}: {said}")


def render_trend(rounds: Sequence[Round], source: str) -> str:
    """The whole page.

    Args:
        rounds: oldest first.
        source: the folder that they were read from.
    """
    last = rounds[-1] if rounds else None
    bad = sorted((each for each in rounds if each.exit_code), key=_grave)  # of equals the last last
    spans = _spans(rounds)
    return rendered(
        "audit.showing",
        "trend.html",
        source=source,
        verdict=last.outcome if last else "no round yet",
        verdict_class=_class(last.outcome) if last else "none",
        when=_moment(last.finished) if last else "",
        rounds=len(rounds),
        bad=len(bad),
        worst=int(worst_exit(each.exit_code for each in rounds)),
        charts=_charts(rounds, spans) if rounds else [],
        first=_moment(spans.start),
        end=_moment(spans.start + spans.count * spans.width),
        rows=[_row(each) for each in reversed(rounds[-SHOWN_ROUNDS:])],
        troubles=[_trouble(each) for each in reversed(bad[-SHOWN_BAD:])],
        width=_WIDTH,
        height=_HEIGHT,
        foot=_FOOT,
    )


def _spans(rounds: Sequence[Round]) -> _Spans:
    """Clocks may have been set back between rounds: the earliest and the latest count."""
    start = min((each.finished for each in rounds), default=0.0)
    end = max((each.finished for each in rounds), default=0.0)
    count = max(min(MAX_SPANS, len(rounds)), 1)
    return _Spans(start, max((end - start) / count, 1.0), count)


def _charts(rounds: Sequence[Round], spans: _Spans) -> list[_Chart]:
    rates = dict(zip(map(id, rounds), growth(rounds), strict=True))
    charts = [
        _verdicts(rounds, spans),
        _chart("Findings", "rot", rounds, spans, (_of_audits(lambda r: r.finding_count), _count)),
    ]
    names = sorted({replica.replica for each in rounds for replica in each.replicas})
    top = max((_lag(name, each) or 0 for each in rounds for name in names), default=0)
    charts += [
        _chart(f"Lag of {name}", "lack", rounds, spans, (partial(_lag, name), human_bytes), top)
        for name in names
    ]
    charts += [
        _chart(
            "Log read in a round", "alone", rounds, spans,
            (_of_audits(lambda r: r.read), human_bytes),
        ),
        _chart(
            "Log believed in a round", "differ", rounds, spans,
            (_of_audits(lambda r: r.believed), human_bytes),
        ),
        _chart(
            "Rate of reading", "alone", rounds, spans,
            (_of_audits(lambda r: r.read / max(r.seconds, 0.001)), _rate),
        ),
        _chart("Growth of the log", "same", rounds, spans, (lambda r: rates[id(r)], _rate)),
        _chart(
            "Age of the oldest proof", "place", rounds, spans,
            (_of_audits(lambda r: 0.0 if r.since is None else r.finished - r.since), _age),
        ),
    ]  # fmt: skip
    return charts


def _verdicts(rounds: Sequence[Round], spans: _Spans) -> _Chart:
    """The worst verdict of each span, as a full bar of its colour."""
    worst: dict[int, Round] = {}
    for each in rounds:
        before = worst.get(spans.of(each))
        if before is None or _grave(each) >= _grave(before):
            worst[spans.of(each)] = each
    bars = [
        spans.bar(span, _HEIGHT, _class(each.outcome), each.outcome)
        for span, each in sorted(worst.items())
    ]
    return _Chart("Verdict, the worst of each span", tuple(bars))


def _chart(
    title: str,
    kind: str,
    rounds: Sequence[Round],
    spans: _Spans,
    value: tuple[Value, Words],
    top: float | None = None,
) -> _Chart:
    """The largest value of each span; `top` is that of the scale, if others share it."""
    of, said = value
    highest: dict[int, float] = {}
    for each in rounds:
        known = of(each)
        if known is not None:
            at = spans.of(each)
            highest[at] = max(highest.get(at, 0.0), known)
    top = max(highest.values(), default=0.0) if top is None else top
    bars = [
        spans.bar(
            span,
            max(_HEIGHT * number / top, _FLAT) if number > 0 and top > 0 else _FLAT,
            kind if number > 0 else "differ",
            said(number),
        )
        for span, number in sorted(highest.items())
    ]
    return _Chart(f"{title}; highest {said(max(highest.values(), default=0.0))}", tuple(bars))


def _of_audits(value: Callable[[Round], float]) -> Value:
    """Of rounds in which an audit was made; the others tell nothing."""
    return lambda each: None if each.outcome == FAILED else value(each)


def _lag(name: str, each: Round) -> float | None:
    return next((r.lag for r in each.replicas if r.replica == name), None)


def _grave(each: Round) -> tuple[int, int]:
    """By exit code and verdict: a round that failed is as grave as an incomplete one."""
    known = {verdict.value: gravity(verdict) for verdict in Verdict}
    is_wrong = int(each.exit_code == ExitCode.INCONSISTENT)
    return is_wrong, known.get(each.outcome, known[Verdict.INCOMPLETE.value])


def _class(outcome: str) -> str:
    names = {verdict.value: name for verdict, name in CLASS_OF.items()}
    return names.get(outcome, "differ")


def _row(each: Round) -> tuple[str, ...]:
    return (
        _moment(each.finished),
        each.outcome,
        str(each.finding_count),
        human_bytes(each.read),
        human_bytes(each.believed),
        "" if each.since is None else _moment(each.since),
        f"{each.seconds:,.1f} s",
        ", ".join(f"{r.replica} {human_bytes(r.lag)}" for r in each.replicas if r.lag),
    )


def _trouble(each: Round) -> tuple[str, str, str, list[str], int]:
    """Class, when, heading, what was found, how much more there was."""
    found = [each.why] if each.why else list(each.findings)
    return (
        _class(each.outcome),
        _moment(each.finished),
        each.outcome,
        found,
        max(each.finding_count - len(each.findings), 0),
    )


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{human_bytes(int(value))}/s"


def _age(value: float) -> str:
    for name, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * seconds:
            return f"{value / seconds:,.1f} {name}"
    return f"{value:,.0f} s"


def _moment(time_s: float) -> str:
    """A clock's stamp; one that no calendar has is shown as it is."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{time_s} s"
