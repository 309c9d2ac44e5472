"""An audit's report as one self-contained HTML page: no script, no file or host beside it.

The page is for a person who was woken by an alarm: first the verdict in words, then who has what,
each finding with its first divergent entry, and the map of replica by segment by block.
The layout is `templates/report.html`, which escapes what comes from a replica's bytes or names;
here are words, classes and coordinates. Colours carry nothing alone: damaged cells have a letter,
and every cell says in words what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from audit.proof.findings import EntryView, Finding, Verdict
from audit.proof.report import Audit, Report
from audit.showing.block_map import Cell, State, Strip, draw_map
from audit.showing.words import (
    CLASS_OF,
    belief_in_words,
    entry_in_words,
    right_in_words,
    scope_in_words,
    where_in_words,
)
from dledger.terminal.figures import human_bytes
from dledger.terminal.pages import rendered

_CELL: Final = 12
_ROW: Final = 18
_LABEL: Final = 34
MAX_FINDINGS: Final = 200

_CLASS: Final = {
    State.NOT_CLAIMED: "none",
    State.IDENTICAL: "same",
    State.ALONE: "alone",
    State.INCOMPLETE: "lack",
    State.DIFFERS: "differ",
    State.MISPLACED: "place",
    State.BIT_ROT: "rot",
    State.DIVERGENCE: "split",
}
_LETTER: Final = {
    State.INCOMPLETE: "i",
    State.DIFFERS: "?",
    State.MISPLACED: "m",
    State.BIT_ROT: "r",
    State.DIVERGENCE: "d",
}
_WORDS: Final = {
    State.NOT_CLAIMED: "not claimed",
    State.IDENTICAL: "identical",
    State.ALONE: "no other replica has it",
    State.INCOMPLETE: "incomplete",
    State.DIFFERS: "differs, not looked into",
    State.MISPLACED: "misplaced",
    State.BIT_ROT: "bit rot",
    State.DIVERGENCE: "divergence",
}
_SENTENCE: Final = {
    Verdict.IDENTICAL: "Every byte of this was compared and is the same on all replicas.",
    Verdict.INCOMPLETE: "What could be compared is the same. Bytes are missing on some replicas, "
    "or could not be compared.",
    Verdict.MISPLACED: "Intact entries lie in the wrong place: files were swapped or renamed.",
    Verdict.BIT_ROT: "Bytes have changed on a replica since they were written; its checksums "
    "say so. Rebuild it from a peer.",
    Verdict.DIVERGENCE: "Replicas hold different bytes with good checksums. Raft rules this out: "
    "stop writing, keep every data directory, find out why.",
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """A block of one replica, in px."""

    kind: str
    x: int
    y: int
    width: int
    height: int
    said: str
    letter: str


@dataclass(frozen=True, slots=True)
class _Strip:
    """A segment's picture; of each row the replica's name, its y, and the cells."""

    said: str
    worst: str
    is_bad: bool
    width: int
    height: int
    rows: tuple[tuple[str, int, tuple[_Cell, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A finding with its heading, what is said of it, and the entry that it shows as each replica
    has it."""

    finding: Finding
    kind: str
    heading: str
    where: str
    right: str
    entry: str
    rows: tuple[tuple[str, ...], ...]


def render_page(audited: Audit, title: str = "Replica audit") -> str:
    """The whole page."""
    report = audited.report
    strips = draw_map(audited.plan, audited.comparison, report.findings)
    used = {cell.state for strip in strips for _, cells in strip.rows for cell in cells}
    return rendered(
        "audit.showing",
        "report.html",
        title=title,
        report=report,
        verdict_class=CLASS_OF[report.verdict],
        sentence=_sentence(report),
        scope=scope_in_words(report.scope),
        facts=_facts(report),
        coverage=_coverage(report),
        findings=[_shown(each) for each in report.findings[:MAX_FINDINGS]],
        more=len(report.findings) - MAX_FINDINGS,
        legend=[(_CLASS[state], _legend(state)) for state in State if state in used],
        strips=[_strip(each) for each in strips],
    )


def _sentence(report: Report) -> str:
    """What the verdict means; of what it believes that must not be said."""
    believed = report.scope.believed
    if report.verdict is Verdict.IDENTICAL and believed is not None:
        return f"Nothing was found that differs: {belief_in_words(believed)}."
    return _SENTENCE[report.verdict]


def _facts(report: Report) -> str:
    timings = report.timings
    facts = (
        f"{report.blocks} blocks of {human_bytes(report.block_size)}; "
        f"{human_bytes(timings.digested_bytes)} hashed in {timings.digest_s:.2f} s by the engine "
        f"{report.engine}; {timings.total_s:.2f} s in all."
    )
    if report.derived is not None:
        facts += (
            f" Running digests and ConsumeQueues: {report.derived.entries} entries, "
            f"{report.derived.records} records, {report.derived.queues} queues."
        )
    return facts


def _coverage(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            each.replica,
            each.verdict.value,
            f"{each.start:,} – {each.end:,}",
            str(each.segments),
            human_bytes(each.compared_bytes),
            each.path + (f"@{each.host}" if each.host else ""),
        )
        for each in report.coverage
    ]


def _legend(state: State) -> str:
    return _WORDS[state] + (f" ({_LETTER[state]})" if state in _LETTER else "")


def _strip(strip: Strip) -> _Strip:
    columns = max(len(cells) for _, cells in strip.rows)
    wide = max(columns, 24)
    cell = max(wide * _CELL // max(columns, 1), _CELL)
    label = _LABEL + 6 * max(0, max(len(name) for name, _ in strip.rows) - 4)
    rows = []
    for line, (replica, cells) in enumerate(strip.rows):
        y = line * _ROW
        drawn = [
            _cell(each, replica, x=label + at * cell, y=y, width=cell)
            for at, each in enumerate(cells)
        ]
        rows.append((replica[:16], y + 12, tuple(drawn)))
    return _Strip(
        f"bytes {strip.start:,} to {strip.end:,}",
        _WORDS[strip.worst],
        strip.worst > State.ALONE,
        label + columns * cell,
        _ROW * len(strip.rows),
        tuple(rows),
    )


def _cell(cell: Cell, replica: str, *, x: int, y: int, width: int) -> _Cell:
    said = f"{replica}, bytes {cell.start:,} to {cell.end:,}: {_WORDS[cell.state]}"
    letter = _LETTER.get(cell.state, "")
    return _Cell(_CLASS[cell.state], x, y + 1, width - 1, _ROW - 3, said, letter)


def _shown(finding: Finding) -> _Shown:
    who = " and ".join(finding.replicas)
    views = finding.views if finding.entry_offset is not None else ()
    return _Shown(
        finding,
        CLASS_OF[finding.verdict],
        f"{finding.verdict.capitalize()} on {who}: {finding.cause}",
        where_in_words(finding),
        right_in_words(finding),
        entry_in_words(finding).capitalize() if views else "",
        tuple(_view_cells(view) for view in views),
    )


def _view_cells(view: EntryView) -> tuple[str, ...]:
    queue = "–" if view.queue_id is None else f"{view.topic}/{view.queue_id}"
    numbers = (view.index, view.term)
    return (
        view.replica,
        view.kind,
        "good" if view.crc_valid else "bad" if view.kind not in ("absent", "zeros") else "–",
        *("–" if number is None else f"{number:,}" for number in numbers),
        queue,
        "–" if view.queue_offset is None else f"{view.queue_offset:,}",
    )
