"""An audit's report as one self-contained HTML page: no script, no file or host beside it.

The page is for a person who was woken by an alarm: first the verdict in words, then who has what,
each finding with its first divergent entry, and the map of replica by segment by block.
Whatever comes from a replica's bytes or names is escaped. Colours carry nothing alone: damaged
cells have a letter, and every cell says in words what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from audit.proof.findings import EntryView, Finding, Verdict
from audit.proof.report import Audit, Report
from audit.showing.block_map import State, Strip, draw_map
from dledger.terminal.figures import human_bytes

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
    Verdict.IDENTICAL: "Every byte that was compared is the same on all replicas that have it.",
    Verdict.INCOMPLETE: "What the replicas have is the same, but bytes are missing on some.",
    Verdict.MISPLACED: "Intact entries lie in the wrong place: files were swapped or renamed.",
    Verdict.BIT_ROT: "Bytes have changed on a replica since they were written; its checksums "
    "say so. Rebuild it from a peer.",
    Verdict.DIVERGENCE: "Replicas hold different bytes with good checksums. Raft rules this out: "
    "stop writing, keep every data directory, find out why.",
}

_STYLE: Final = """
:root{--fg:#1d2329;--soft:#5d6873;--bg:#f6f7f8;--card:#fff;--line:#d9dee3;--same:#6fb58f;
--alone:#a9c6d8;--none:#e7eaed;--lack:#e2a93b;--differ:#8b8f94;--place:#d9722e;--rot:#c8323c;
--split:#7a3fb0;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ec;--soft:#9aa5b0;--bg:#14181c;--card:#1d2329;
--line:#343c45;--same:#3f8a63;--alone:#4b7186;--none:#2a3138}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.05rem;color:var(--soft);font-weight:600;margin:0}
h2{font-size:1.05rem;margin:32px 0 10px}
.verdict{font-size:2rem;font-weight:700;margin:4px 0;text-transform:capitalize}
.verdict::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;
margin-right:.4em;background:currentColor}
.verdict.same{color:var(--same)}.verdict.lack{color:var(--lack)}.verdict.place{color:var(--place)}
.verdict.rot{color:var(--rot)}.verdict.split{color:var(--split)}
.soft{color:var(--soft)}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:7px 12px;white-space:nowrap;border-top:1px solid var(--line)}
tr:first-child th{border-top:0}th{color:var(--soft);font-weight:600;font-size:.85rem}
.legend{display:flex;flex-wrap:wrap;gap:6px 16px;margin:0 0 12px;padding:0;list-style:none;
font-size:.88rem}
.legend svg{width:14px;height:14px;vertical-align:-2px;margin-right:5px}
.map{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:10px}
.strip{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 10px}
.strip.bad{border-color:var(--rot);border-width:2px;padding:7px 9px}
.strip h3{margin:0 0 4px;font-size:.8rem;font-weight:600;color:var(--soft);
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.strip svg{width:100%;height:auto;display:block}
.strip text{font:11px system-ui,sans-serif;fill:var(--soft)}
.strip text.letter{fill:#fff;font-weight:700;font-size:9px;text-anchor:middle}
rect.same{fill:var(--same)}rect.alone{fill:var(--alone)}rect.none{fill:var(--none)}
rect.lack{fill:var(--lack)}rect.differ{fill:var(--differ)}rect.place{fill:var(--place)}
rect.rot{fill:var(--rot)}rect.split{fill:var(--split)}
.finding{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--rot);
border-radius:8px;padding:12px 14px;margin:0 0 12px}
.finding.lack{border-left-color:var(--lack)}.finding.place{border-left-color:var(--place)}
.finding.split{border-left-color:var(--split)}
.finding h3{margin:0 0 4px;font-size:1rem}.finding p{margin:2px 0;overflow-wrap:anywhere}
.finding .scroll{margin-top:8px;border-radius:6px}
code{font:.9em ui-monospace,monospace}
.bad{color:var(--rot);font-weight:700}
"""


def render_page(audited: Audit, title: str = "Replica audit") -> str:
    """The whole page."""
    report = audited.report
    strips = draw_map(audited.plan, audited.comparison, report.findings)
    body = "".join(
        (
            _head(report, title),
            _coverage(report),
            _findings(report),
            _map(strips),
            _notes(report),
        )
    )
    return whole_page(f"{title}: {report.verdict}", body)


def whole_page(title: str, body: str) -> str:
    """The page around a body of HTML; the title is text."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _head(report: Report, title: str) -> str:
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
    group = f", group {escape(report.group)}" if report.group else ""
    return (
        f"<h1>{escape(title)}{group}</h1>"
        f'<p class="verdict {_class_of(report.verdict)}">{escape(report.verdict)}</p>'
        f'<p>{_SENTENCE[report.verdict]}</p><p class="soft">{escape(facts)}</p>'
    )


def _coverage(report: Report) -> str:
    rows = [
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
    titles = ("Replica", "Verdict", "Claims bytes", "Segments", "Compared", "Path")
    return f"<h2>Replicas</h2>{html_table(titles, rows)}"


def _map(strips: Sequence[Strip]) -> str:
    if not strips:
        return "<h2>Map</h2><p>No replica claims a log.</p>"
    used = {cell.state for strip in strips for _, cells in strip.rows for cell in cells}
    legend = "".join(
        f'<li><svg viewBox="0 0 12 12" aria-hidden="true">'
        f'<rect class="{_CLASS[state]}" width="12" height="12" rx="2"/></svg>'
        f"{_WORDS[state]}{f' ({_LETTER[state]})' if state in _LETTER else ''}</li>"
        for state in State
        if state in used
    )
    drawn = "".join(map(_strip, strips))
    return (
        f'<h2>Map: segments, one row a replica</h2><ul class="legend">{legend}</ul>'
        f'<div class="map">{drawn}</div>'
    )


def _strip(strip: Strip) -> str:
    columns = max(len(cells) for _, cells in strip.rows)
    wide = max(columns, 24)
    cell = max(wide * _CELL // max(columns, 1), _CELL)
    label = _LABEL + 6 * max(0, max(len(name) for name, _ in strip.rows) - 4)
    width, height = label + columns * cell, _ROW * len(strip.rows)
    parts = []
    for line, (replica, cells) in enumerate(strip.rows):
        y = line * _ROW
        parts.append(f'<text x="0" y="{y + 12}">{escape(replica[:16])}</text>')
        for column, each in enumerate(cells):
            x = label + column * cell
            said = f"{replica}, bytes {each.start:,} to {each.end:,}: {_WORDS[each.state]}"
            parts.append(
                f'<rect class="{_CLASS[each.state]}" x="{x}" y="{y + 1}" width="{cell - 1}" '
                f'height="{_ROW - 3}" rx="2"><title>{escape(said)}</title></rect>'
            )
            if each.state in _LETTER:
                parts.append(
                    f'<text class="letter" x="{x + (cell - 1) / 2:g}" y="{y + 12}">'
                    f"{_LETTER[each.state]}</text>"
                )
    bad = " bad" if strip.worst > State.ALONE else ""
    said = f"bytes {strip.start:,} to {strip.end:,}"
    return (
        f'<div class="strip{bad}"><h3>{said}</h3><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{said}: {_WORDS[strip.worst]} at worst">{"".join(parts)}</svg></div>'
    )


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    shown = "".join(map(_finding, report.findings[:MAX_FINDINGS]))
    rest = len(report.findings) - MAX_FINDINGS
    more = f"<p>{rest} more are in the JSON report.</p>" if rest > 0 else ""
    if report.not_located:
        more += f"<p>{report.not_located} differing blocks were not looked into.</p>"
    return f"<h2>Findings</h2>{shown}{more}"


def _finding(finding: Finding) -> str:
    who = " and ".join(finding.replicas)
    lines = [f"<h3>{escape(finding.verdict.capitalize())} on {escape(who)}: {finding.cause}</h3>"]
    if finding.segment is not None:
        lines.append(
            f"<p>File <code>{escape(finding.file)}</code>, bytes "
            f"{finding.start - finding.segment:,} to {finding.end - finding.segment:,} of it</p>"
        )
    if finding.detail:
        lines.append(f'<p class="soft">{escape(finding.detail)}</p>')
    if finding.entry_offset is not None and finding.views:
        lines.append(f"<p>First divergent entry, at physical offset {finding.entry_offset:,}:</p>")
        titles = ("Replica", "Is", "CRC", "Index", "Term", "Queue", "Queue offset")
        lines.append(html_table(titles, [_view_cells(view) for view in finding.views]))
    return f'<div class="finding {_class_of(finding.verdict)}">{"".join(lines)}</div>'


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


def _notes(report: Report) -> str:
    if not report.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f"<h2>Notes</h2><ul>{items}</ul>"


def html_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are text; "bad" stands out."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=bad' if cell == 'bad' else ''}>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _class_of(verdict: Verdict) -> str:
    return {
        Verdict.IDENTICAL: "same",
        Verdict.INCOMPLETE: "lack",
        Verdict.MISPLACED: "place",
        Verdict.BIT_ROT: "rot",
        Verdict.DIVERGENCE: "split",
    }[verdict]
