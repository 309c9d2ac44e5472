"""What is said of one log, and what lies in it, for a person at a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from audit.proof.dump import Dumped
from audit.proof.log import SCHEMA, LogSum, OpenedLog, Place, SegmentVerified
from audit.proof.ranges import Missing
from audit.repairing.refilling import Outcome
from dledger.reading.files import printable
from dledger.terminal.figures import human_bytes

WIDTH: Final = 80
SHOWN: Final = 20  # places of a segment that is told line by line
# A lock that is held in another container isn't listed in this one.
UNCLEAN: Final = (
    "abort is there: its node died, or runs in another container; then what is read may be changing"
)
DUMP_TITLE: Final = f"{'INDEX':>12} {'TERM':>6} {'OFFSET':>14} {'SIZE':>9} WHAT"


def segment_facts(segment: SegmentVerified) -> dict[str, Any]:
    """The segment's line of JSON."""
    facts = asdict(segment)
    facts["places"] = [_place_facts(place) for place in segment.places]
    return {"what": "segment", **facts}


def sum_facts(log: OpenedLog, total: LogSum) -> dict[str, Any]:
    """The last line of JSON; see docs/audit.md for each field."""
    survey = log.survey
    return {
        "what": "log",
        "schema": SCHEMA,
        "verdict": total.verdict,
        "exit_code": int(total.verdict.exit_code),
        "path": survey.commitlog,
        "held_by": log.holder,
        "stopped_cleanly": not survey.is_running,
        "broker_group": survey.broker_group,
        "segment_size_bytes": log.segment_size,
        "checkpoint_readable": survey.checkpoint_readable,
        "must_be_right_to": log.end,
        "first_index": total.first_index,
        "last_index": total.last_index,
        "segments": total.segments,
        "entries": total.entries,
        "records": total.records,
        "verified_bytes": total.verified_bytes,
        "places": total.places,
        "first": None if total.first is None else _place_facts(total.first),
        "tail": None if total.tail is None else _place_facts(total.tail),
        "missing": [list(each) for each in total.missing],
    }


def segment_lines(segment: SegmentVerified) -> Iterator[str]:
    """What is wrong with the segment; nothing for one that is right."""
    places = [place for place in segment.places if not place.is_tail]
    for place in places[:SHOWN]:
        yield from _place_lines(place)
    left = max(len(places) - SHOWN, 0) + segment.left_out
    if left:
        yield from _wrapped(f"... and {left} more places in {segment.file} (--json names more)")


def outcome_lines(outcome: Outcome, *, is_dry: bool) -> Iterator[str]:
    """What became of a place that was wrong."""
    entries = "a filler" if outcome.source and not outcome.first_index else ""
    if outcome.first_index:
        entries = f"entries {outcome.first_index} to {outcome.last_index}"
    where = f"{outcome.file}, byte {outcome.offset}, {human_bytes(outcome.size)}"
    if outcome.source:
        done = "would be put right" if is_dry else "put right"
        yield from _wrapped(f"{where}: {entries} {done}, from {printable(outcome.source)}")
    else:
        yield from _wrapped(f"{where}: left as it is")
        for reason in outcome.reasons:
            yield from _wrapped(f"  {printable(reason)}")


def sum_lines(log: OpenedLog, total: LogSum) -> Iterator[str]:
    """What all of it comes to."""
    if log.holder is not None:
        yield from _wrapped(
            f"held by {log.holder}: read up to byte {log.end}, which it had settled"
        )
    elif log.survey.is_running:
        yield from _wrapped(UNCLEAN)
    if not log.survey.checkpoint_readable:
        yield from _wrapped("no readable checkpoint: nothing says how far the log was durable")
    if total.tail is not None:
        yield from _wrapped(
            f"tail: {total.tail.file}, byte {total.tail.offset}: {total.tail.cause}; it was never "
            "durable, and the next start cuts it"
        )
    for each in total.missing:
        yield from _wrapped(f"missing: {_indexes(each)}; {_why_missing(log, total)}")
    if total.first is not None:
        yield from _wrapped(f"first at byte {total.first.offset} of {total.first.file}")
    said = f"{total.verdict.upper()}: "
    if total.places:
        said += f"wrong in {total.places} {'place' if total.places == 1 else 'places'}; "
    span = "no entries"
    if total.first_index is not None:
        span = f"entries {total.first_index} to {total.last_index}"
    yield from _wrapped(
        f"{said}{span} in {total.segments} segments, {total.entries} of them intact with "
        f"{total.records} records, {human_bytes(total.verified_bytes)}"
    )


def dump_line(dumped: Dumped) -> str:
    """One place of the log, cut to the terminal's width."""
    facts = dumped.facts
    if dumped.is_missing:
        line = f"missing: {_indexes((facts['first_index'], facts['last_index']))}"
    elif facts["what"] != "entry":
        line = (
            f"{'-':>12} {'-':>6} {facts['offset']:>14} {facts['size']:>9} "
            f"{facts['what'].upper()}: {facts['problem']}"
        )
    else:
        line = (
            f"{facts['index']:>12} {facts['term']:>6} {facts['physical_offset']:>14} "
            f"{facts['size']:>9} {_carried(facts)}"
        )
    return printable(line)[:WIDTH].rstrip()


def _indexes(missing: Missing) -> str:
    first, last = missing
    if last is None:
        return f"entry {first} and all behind it"
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _why_missing(log: OpenedLog, total: LogSum) -> str:
    """What is known of where the entries are that were wanted and not found."""
    start = log.survey.start
    if start is not None and total.missing[0][0] <= start.index:
        return f"the log begins with entry {start.first_index}, what was before was let go"
    if total.first_index is None or total.last_index is None:
        return "no intact entry was found"
    if total.missing[0][0] < total.first_index and not log.survey.checkpoint_readable:
        return f"nothing says that the log rightly begins with entry {total.first_index}"
    return f"intact entries were found from {total.first_index} to {total.last_index}"


def _carried(facts: dict[str, Any]) -> str:
    """What the entry is, in a word or two."""
    if "problem" in facts:
        return f"{facts['kind']}: {facts['problem']}"
    if "topic" in facts:
        place = f"{facts['topic']}/{facts['queue_id']}"
        return f"{place} {facts['queue_offset']} +{facts['records']}"
    if "command" in facts:
        return f"command {facts['command']}"
    return f"kind {facts['kind']}" if isinstance(facts["kind"], int) else str(facts["kind"])


def _place_facts(place: Place) -> dict[str, Any]:
    return {**asdict(place), "cause": str(place.cause), "verdict": place.verdict}


def _place_lines(place: Place) -> Iterator[str]:
    again = f" and {place.count - 1} entries behind it" if place.count > 1 else ""
    yield from _wrapped(f"{place.verdict.upper()}: {place.cause}{again}")
    yield from _wrapped(f"  {place.file}, byte {place.offset}", indent=2)
    if place.index:
        yield from _wrapped(f"  it calls itself entry {place.index} of term {place.term}", indent=2)
    yield from _wrapped(f"  {place.detail}", indent=2)


def _wrapped(text: str, indent: int = 0) -> Iterator[str]:
    """The text in lines of the terminal's width; a word that is longer is cut."""
    yield from textwrap.wrap(printable(text), WIDTH, subsequent_indent=" " * indent)
