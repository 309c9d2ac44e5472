"""A run's report as one HTML file that needs nothing else: no script, no font, no network.

It is written for somebody who wasn't there: first what was promised and whether it held, then the
picture, then each fault with what it cost, then what was found, and how to run it again. All text
that comes from elsewhere is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from chaos.real.picture import family_of, timeline

WIDE: Final = 1160  # px of the picture on a screen, and on a phone
NARROW: Final = 358
SHOWN_FAULTS: Final = 12  # beyond these the table is folded

SHOWN_ANOMALIES: Final = 3  # of each kind
MEANINGS: Final = {
    "lost-write": "acknowledged, passed over by every reader, and never read",
    "unseen": "acknowledged, and not there when everything was read to the end",
    "duplicate": "one message at two places",
    "inconsistent-offsets": "one place that held two messages: what had been read there is gone",
    "nonmonotonic-poll": "a consumer went back",
    "poll-skip": "a consumer jumped over messages",
    "nonmonotonic-send": "a producer's later message lies before an earlier one",
    "phantom": "read, though it was never sent or was refused for good",
    "stale-read": "the end of a queue was read as lower than was known before",
    "not-linearizable": "no order of the operations explains what everybody was told",
}

STYLE: Final = """
:root{color-scheme:light dark;--paper:#fcfcfa;--card:#fff;--ink:#1c2430;--soft:#5d6675;
--line:#dfe2e6;--good:#1a7f4b;--bad:#c02b2b;--leader:#2456a6;--follower:#c3d3ea;
--candidate:#e0a100;--silent:#e4e4e1;--process:#c8453b;--network:#7d4cb5;--disk:#c27a12;
--clock:#16848c;--p50:#2f3a47;--p99:#c2308f;--area:#93c7a4}
@media(prefers-color-scheme:dark){:root{--paper:#14171c;--card:#1b1f26;--ink:#e6e9ee;
--soft:#9aa4b2;--line:#333a45;--good:#4cc38a;--bad:#ff7b72;--leader:#5b8fdd;--follower:#2f4260;
--candidate:#d6a21f;--silent:#2a2e35;--process:#e0695f;--network:#a67fd6;--disk:#d9973a;
--clock:#3fb0b8;--p50:#cfd6df;--p99:#f07cc4;--area:#2f6b48}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1208px;margin:0 auto;padding:24px 24px 64px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.15rem;margin:36px 0 10px}
p{margin:0 0 10px;max-width:75ch}
.soft{color:var(--soft)}
.verdict{display:inline-block;padding:3px 12px;border-radius:99px;font-weight:600;color:#fff}
.verdict.good{background:var(--good)}.verdict.bad{background:var(--bad)}
@media(prefers-color-scheme:dark){.verdict{color:#10131a}}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:10px;
margin:20px 0 0;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums;line-height:1.3}
.tiles li{overflow-wrap:anywhere;line-height:1.35}.tiles .bad b{color:var(--bad)}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:12px;overflow-x:auto}
figure svg{display:block;max-width:100%;height:auto}
svg text{font:11px/1 system-ui,sans-serif;fill:var(--ink)}
svg .name{fill:var(--soft)}svg .title{font-weight:600;font-size:12px}
svg .on{fill:#fff}
.narrow{display:none}
.grid,.tick{stroke:var(--line);stroke-width:1;fill:none}
.tick{stroke-dasharray:2 4}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.p50{stroke:var(--p50)}.p99{stroke:var(--p99)}.area{fill:var(--area)}
rect.leader,i.leader{fill:var(--leader);background:var(--leader)}
rect.follower,i.follower{fill:var(--follower);background:var(--follower)}
rect.candidate,i.candidate{fill:var(--candidate);background:var(--candidate)}
rect.silent,i.silent{fill:var(--silent);background:var(--silent)}
.process{fill:var(--process);background:var(--process)}
.network{fill:var(--network);background:var(--network)}
.disk{fill:var(--disk);background:var(--disk)}
.clock{fill:var(--clock);background:var(--clock)}
.shade{opacity:.13}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 0;padding:0;list-style:none;
font-size:.85rem;color:var(--soft)}
.key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;
vertical-align:-1px}
i.p50,i.p99{height:3px;vertical-align:4px}i.p50{background:var(--p50)}i.p99{background:var(--p99)}
i.area{background:var(--area)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{color:var(--soft);font-weight:500;white-space:nowrap}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td:nth-child(2){white-space:nowrap}td:last-child{min-width:11rem}
td i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
summary{cursor:pointer;padding:8px 0}
.found{border-left:3px solid var(--bad);padding-left:12px;overflow-wrap:anywhere}
pre,code{font:13px/1.5 ui-monospace,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
white-space:pre-wrap;margin:0 0 10px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0;font-size:.92rem}
dt{color:var(--soft)}dd{margin:0}
@media(max-width:700px){main{padding:16px 16px 48px}.wide{display:none}.narrow{display:block}
figure{padding:8px 0}h1{font-size:1.4rem}.tiles{grid-template-columns:1fr 1fr}
dl{grid-template-columns:1fr}dd{margin-bottom:6px}td,th{padding-right:10px}}
"""


def page(facts: Mapping[str, Any]) -> str:
    """The whole file."""
    title = f"{facts['scenario']}: {'holds' if facts['holds'] else 'does not hold'}"
    body = "".join(
        (
            *_head(facts),
            *_found(facts),
            *_picture(facts),
            *_faults(facts),
            *_circumstances(facts),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(facts: Mapping[str, Any]) -> Iterator[str]:
    kind, word = ("good", "holds") if facts["holds"] else ("bad", "does not hold")
    yield f'<h1>{escape(facts["scenario"])} <span class="verdict {kind}">{word}</span></h1>'
    if facts["summary"]:
        yield f"<p>{escape(facts['summary'])}.</p>"
    load, sends = facts["load"], facts["sends"]
    yield (
        f'<p class="soft">{facts["nodes"]} real nodes, {_number(load["rate"])} messages a second '
        f"of {_number(load['size_bytes'])} bytes from {load['producers']} producers, "
        f"{load['consumers']} consumers, {facts['duration_s']:.0f} seconds, "
        f"{_number(facts['counts']['faults'])} faults. A message that is acknowledged must be "
        "read once, in order, whatever happened; one whose outcome is unknown may be there or "
        "not.</p>"
    )
    counts = facts["counts"]
    yield '<ul class="tiles">'
    yield _tile(_number(sends["acknowledged"]), "acknowledged")
    for name in ("lost", "duplicated", "out_of_order"):
        yield _tile(_number(counts[name]), name.replace("_", " "), bad=counts[name] > 0)
    shown = ("lost-write", "unseen", "duplicate", "nonmonotonic-send")
    other = counts["anomalies"] - sum(facts["anomaly_counts"].get(name, 0) for name in shown)
    yield _tile(_number(other), "other anomalies", bad=other > 0)
    yield _tile(_number(sends["unknown"]), "unknown")
    yield _tile(_number(sends["failed"]), "failed, known not stored")
    yield from _spread_tiles(facts)
    yield "</ul>"


def _spread_tiles(facts: Mapping[str, Any]) -> Iterator[str]:
    if (failover := facts["failover_ms"]) is not None:
        yield _tile(
            f"{failover['median']:,.0f} ms",
            f"failover, median of {failover['count']}; min {failover['min']:,.0f}, "
            f"p99 {failover['p99']:,.0f}, max {failover['max']:,.0f}",
        )
    if (planned := facts["planned_silence_ms"]) is not None:
        yield _tile(f"{planned['max']:,.0f} ms", "longest silence around a planned change")
    if (latency := facts["latency_ms"]) is not None:
        yield _tile(f"{latency['median']:,.0f} ms", "latency of a send, median")


def _tile(value: str, name: str, *, bad: bool = False) -> str:
    return f"<li{' class=bad' if bad else ''}><b>{value}</b>{escape(name)}</li>"


def _number(value: int) -> str:
    return f"{value:,}"


def _found(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["problems"]:
        yield "<h2>What went wrong</h2>"
        yield from (f'<p class="found">{escape(each)}</p>' for each in facts["problems"])
    if facts["anomalies"]:
        yield "<h2>Anomalies in the history</h2>"
        for name, count in facts["anomaly_counts"].items():
            yield from _anomalies(facts, name, count)
    yield from (f'<p class="soft">Remark: {escape(each)}.</p>' for each in facts["remarks"])


def _anomalies(facts: Mapping[str, Any], name: str, count: int) -> Iterator[str]:
    """One kind: what it means, the first ones, the others folded."""
    meaning = MEANINGS.get(name.removeprefix("int-"), "")
    yield f"<p><b>{_number(count)} × {escape(name)}</b>: {meaning}</p>"
    listed = [each for each in facts["anomalies"] if each["name"] == name]
    lines = [f"{escape(each['where'])}: {escape(each['detail'])}" for each in listed]
    yield from (f'<p class="found">{line}</p>' for line in lines[:SHOWN_ANOMALIES])
    if len(lines) > SHOWN_ANOMALIES:
        yield "<details><summary>More of them</summary>"
        yield from (f'<p class="found">{line}</p>' for line in lines[SHOWN_ANOMALIES:])
        yield "</details>"


def _picture(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>What happened</h2><figure>"
    yield f'<div class="wide">{timeline(facts, WIDE)}</div>'
    yield f'<div class="narrow">{timeline(facts, NARROW)}</div></figure>'
    families = dict.fromkeys(family_of(band["nemesis"]) for band in facts["bands"])
    keys = [
        ("leader", "leader"),
        ("follower", "follower"),
        ("candidate", "candidate"),
        ("silent", "silent: down, paused or not answering"),
        *((family, f"fault of a {family}") for family in families),
        ("area", "acknowledged"),
        ("p50", "median latency"),
        ("p99", "p99 latency"),
    ]
    shown = (f'<li><i class="{kind}"></i>{escape(name)}</li>' for kind, name in keys)
    yield f'<ul class="key">{"".join(shown)}</ul>'


def _faults(facts: Mapping[str, Any]) -> Iterator[str]:
    bands = facts["bands"]
    if not bands:
        return
    yield "<h2>Faults, and what they cost</h2>"
    yield (
        '<p class="soft">Failover is the time from just before a strike at the leader to the '
        "first acknowledgement by another node; silence is the longest time without any "
        "acknowledgement while the fault was on.</p>"
    )
    if len(bands) > SHOWN_FAULTS:
        yield _kinds(bands)
        yield f"<details><summary>All {_number(len(bands))} faults</summary>"
    yield '<div class="scroll"><table><tr><th class="number">at</th><th>fault</th><th>nodes</th>'
    yield '<th class="number">lasted</th><th class="number">failover</th>'
    yield '<th class="number">silence</th><th>detail</th></tr>'
    for band in bands:
        yield _fault_row(band)
    yield "</table></div>"
    if len(bands) > SHOWN_FAULTS:
        yield "</details>"


def _fault_row(band: Mapping[str, Any]) -> str:
    victims = ", ".join(
        f"{each} (leader)" if each == band["deposed"] else each for each in band["victims"]
    )
    return (
        f'<tr><td class="number">{band["start_ms"] / 1000:.1f} s</td>'
        f"<td>{_named(band['nemesis'])}</td><td>{escape(victims)}</td>"
        f'<td class="number">{(band["end_ms"] - band["start_ms"]) / 1000:.1f} s</td>'
        f'<td class="number">{_ms(band["failover_ms"])}</td>'
        f'<td class="number">{_ms(band["silence_ms"])}</td>'
        f"<td>{escape(band['detail'])}</td></tr>"
    )


def _kinds(bands: Sequence[Mapping[str, Any]]) -> str:
    """A line for each kind of fault, where there are too many to read each."""
    rows: list[str] = []
    for name in dict.fromkeys(band["nemesis"] for band in bands):
        of_kind = [band for band in bands if band["nemesis"] == name]
        silence = [band["silence_ms"] for band in of_kind if band["silence_ms"] is not None]
        failover = [band["failover_ms"] for band in of_kind if band["failover_ms"] is not None]
        rows.append(
            f'<tr><td>{_named(name)}</td><td class="number">{len(of_kind)}</td>'
            f'<td class="number">{_ms(max(failover, default=None))}</td>'
            f'<td class="number">{_ms(max(silence, default=None))}</td></tr>'
        )
    head = (
        '<tr><th>fault</th><th class="number">times</th><th class="number">worst failover</th>'
        '<th class="number">longest silence</th></tr>'
    )
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _named(nemesis: str) -> str:
    return f'<i class="{family_of(nemesis)}"></i>{escape(nemesis)}'


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"


def _circumstances(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Run it again</h2>"
    yield (
        f"<pre>dledger chaos run {escape(facts['scenario'])} --seed {facts['seed']} "
        f"--seconds {facts['seconds']:g} --nodes {facts['nodes']} "
        f"--rate {facts['load']['rate']}</pre>"
        '<p class="soft">The seed repeats the schedule and what is drawn; when things happen on '
        "real processes it can't repeat.</p>"
    )
    machine, errors = facts["machine"], facts["errors"]
    told = ", ".join(f"{count:,} × {name}" for name, count in sorted(errors.items())) or "none"
    rows = (
        ("Operations in the history", _number(facts["counts"]["operations"])),
        ("Errors that clients were told", told),
        ("Machine", f"{machine['cpus']} CPUs, {machine['system']}, Python {machine['python']}"),
        ("Files beside this one", "report.json, history.jsonl, logs/"),
    )
    shown = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    yield f"<h2>Circumstances</h2><dl>{''.join(shown)}</dl>"
