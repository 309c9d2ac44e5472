"""Logs that no leader wrote, with every checksum and every digest right, on all replicas alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from audit.engines.engine import LocalEngine
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.reading.replica import Replica
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind, digest_of, parse_header
from dledger.records.errors import InvalidFrame
from dledger.records.layout import BATCH, ENTRY, RECORD, UNITS_PER_FILE, Layout
from tests.audit.replicas import copy_sparse
from tests.starting.members import lived

# Changes one entry of the log, given its header and whole frame, and perhaps all behind it.
Forgery = Callable[[EntryHeader, bytearray], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A member that lived: topics deleted and made anew, several records an entry, four terms."""
    return lived(tmp_path_factory.mktemp("lived"), UNITS_PER_FILE).clean


@pytest.fixture
def replicas(original: Path, tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("n1", "n2")]
    for path in paths:
        shutil.copytree(original, path, copy_function=copy_sparse)
    return paths


def audited(paths: list[Path]) -> Report:
    named = [Replica(path.name, str(path)) for path in paths]
    return audit_replicas(named, LocalEngine(1), Options(derived=True)).report


def entries(path: Path) -> Iterator[tuple[Path, int, EntryHeader]]:
    """Segment, byte and header of each entry."""
    for segment in sorted((path / "commitlog").iterdir()):
        content, at = segment.read_bytes(), 0
        while at + HEADER_SIZE <= len(content):
            try:
                header = parse_header(content, at)
            except InvalidFrame:
                break
            yield segment, at, header
            at += header.total_size


def forge(path: Path, chosen: Callable[[EntryHeader], bool], forgery: Forgery) -> None:
    """Each chosen entry is changed, and CRCs and digests of all entries repaired."""
    digest, contents = 0, dict[Path, bytearray]()
    for segment, at, header in list(entries(path)):
        if segment not in contents:
            contents[segment] = bytearray(segment.read_bytes())
        content = contents[segment]
        frame = content[at : at + header.total_size]
        if chosen(header):
            forgery(header, frame)
        put(frame, ENTRY, "digest", digest_of(bytes(frame), 0, len(frame), digest))
        crc_at, behind = ENTRY.at("crc"), ENTRY.end("crc")
        put(frame, ENTRY, "crc", crc32c(bytes(frame[behind:]), crc32c(bytes(frame[:crc_at]))))
        digest = parse_header(frame, 0).digest
        content[at : at + len(frame)] = frame
    for segment, content in contents.items():
        segment.write_bytes(content)


def put(content: bytearray, layout: Layout, field: str, value: int, start: int = 0) -> None:
    place = layout[field]
    at = start + place.offset
    content[at : at + place.size] = value.to_bytes(place.size, "big", signed=value < 0)


def header_field(field: str, value: Callable[[EntryHeader], int]) -> Forgery:
    return lambda header, frame: put(frame, ENTRY, field, value(header))


def record_field(field: str, by: int) -> Forgery:
    """Of the entry's first record."""

    def change(header: EntryHeader, frame: bytearray) -> None:
        at, place = header.first_record_at, RECORD[field]
        old = int.from_bytes(frame[at + place.offset : at + place.offset + place.size], "big")
        put(frame, RECORD, field, old + by, at)

    return change


def preamble_field(field: str, value: int) -> Forgery:
    return lambda header, frame: put(frame, BATCH, field, value, HEADER_SIZE)


def first_byte_of_body(header: EntryHeader, frame: bytearray) -> None:
    """A tag of a wire type that there isn't."""
    frame[HEADER_SIZE] = 0xFF


def called_data(header: EntryHeader, frame: bytearray) -> None:
    put(frame, ENTRY, "kind", EntryKind.DATA)
    put(frame, ENTRY, "record_count", 1)


def topic_of_a_blank(header: EntryHeader, frame: bytearray) -> None:
    """The record's own CRC is right: that covers the body only."""
    at, place = header.first_record_at, RECORD["body_length"]
    size = int.from_bytes(frame[at + place.offset : at + place.offset + place.size], "big")
    frame[at + RECORD.size + size + 2] = ord(" ")


def is_data(at_least: int, records: int = 1) -> Callable[[EntryHeader], bool]:
    """One data entry of so many records, by its index."""
    found: list[int] = []

    def chosen(header: EntryHeader) -> bool:
        if header.index == 1:
            found.clear()
        fits = header.kind == EntryKind.DATA and header.record_count == records
        if fits and header.index >= at_least and not found:
            found.append(header.index)
        return found[:1] == [header.index]

    return chosen


def of_kind(kind: EntryKind, nth: int = 0) -> Callable[[EntryHeader], bool]:
    seen: list[int] = []

    def chosen(header: EntryHeader) -> bool:
        if header.index == 1:
            seen.clear()
        if header.kind == kind:
            seen.append(header.index)
        return header.kind == kind and len(seen) == nth + 1

    return chosen


def behind(index: int) -> Callable[[EntryHeader], bool]:
    return lambda header: header.index >= index


FORGERIES: dict[str, tuple[Callable[[EntryHeader], bool], Forgery, Cause, str]] = {
    "an index that is skipped": (
        behind(100), header_field("index", lambda h: h.index + 1), Cause.NO_LEADERS,
        "index 101 follows 99",
    ),
    "a term that goes back": (
        is_data(150), header_field("term", lambda h: h.term - 1), Cause.NO_LEADERS, "term",
    ),
    "a time that goes back": (
        is_data(150), header_field("append_time_ms", lambda h: h.append_time_ms - 90_000),
        Cause.NO_LEADERS, "time",
    ),
    "a no-op called data": (
        of_kind(EntryKind.NOOP), header_field("kind", lambda h: EntryKind.DATA),
        Cause.RECORDS_LIE, "",
    ),
    "a command called data of one record": (
        of_kind(EntryKind.COMMAND), called_data,
        Cause.RECORDS_LIE, "",
    ),
    "a command called a no-op": (
        of_kind(EntryKind.COMMAND), header_field("kind", lambda h: EntryKind.NOOP),
        Cause.NO_LEADERS, "a no-op with a body",
    ),
    "data called a command": (
        is_data(50), header_field("kind", lambda h: EntryKind.COMMAND), Cause.NO_LEADERS, "",
    ),
    "data called a configuration": (
        is_data(50), header_field("kind", lambda h: EntryKind.CONFIGURATION), Cause.NO_LEADERS, "",
    ),
    "data of no release": (
        is_data(50), header_field("kind", lambda h: 9), Cause.NO_LEADERS, "no release known here",
    ),
    "data without records": (
        is_data(50), header_field("record_count", lambda h: 0), Cause.RECORDS_LIE, "",
    ),
    "records in a no-op": (
        of_kind(EntryKind.NOOP, 1), header_field("record_count", lambda h: 3), Cause.NO_LEADERS,
        "3 records in an entry of kind 1",
    ),
    "a command that is none": (
        of_kind(EntryKind.COMMAND), first_byte_of_body, Cause.NO_LEADERS, "none of kind 3",
    ),
    "a body's CRC": (is_data(60), record_field("body_crc", 1), Cause.NO_LEADERS, "BODYCRC"),
    "hosts of another size": (
        is_data(60), record_field("sysflag", 16), Cause.NO_LEADERS, "SYSFLAG",
    ),
    "a negative queue": (
        is_data(60), lambda h, f: put(f, RECORD, "queue_id", -1, h.first_record_at),
        Cause.NO_LEADERS, "queue",
    ),
    "a topic that can't be": (
        is_data(60), topic_of_a_blank, Cause.NO_LEADERS, "topic",
    ),
    "a queue offset that is skipped": (
        is_data(60), record_field("queue_offset", 1), Cause.NO_LEADERS, "the next is",
    ),
    "a queue offset that repeats": (
        is_data(60), record_field("queue_offset", -1), Cause.NO_LEADERS, "the next is",
    ),
    "a record's own time": (
        is_data(60, 2), record_field("store_time_ms", 1), Cause.NO_LEADERS, "isn't stored at",
    ),
    "a topic of no creation": (
        is_data(60), preamble_field("incarnation", 0), Cause.NO_LEADERS, "entry 0 created",
    ),
    "a topic of the future": (
        is_data(60), preamble_field("incarnation", 1 << 40), Cause.NO_LEADERS, "created",
    ),
}  # fmt: skip


def test_log_of_a_member_that_lived_breaks_no_rule(replicas: list[Path]) -> None:
    """Deletions, terms, producers and all."""
    report = audited(replicas)
    assert {each.cause for each in report.findings} == {Cause.SAME_DISK}, report.findings


@pytest.mark.parametrize(
    ("chosen", "forgery", "cause", "said"), FORGERIES.values(), ids=FORGERIES.keys()
)
def test_forgery_on_all_replicas_is_found(
    replicas: list[Path],
    chosen: Callable[[EntryHeader], bool],
    forgery: Forgery,
    cause: Cause,
    said: str,
) -> None:
    """Though nothing differs and every checksum is right."""
    for path in replicas:
        forge(path, chosen, forgery)
    report = audited(replicas)
    assert report.verdict is Verdict.DIVERGENCE
    assert {each.cause for each in report.findings} & {Cause.BAD_CRC, Cause.DIGEST_BROKEN} == set()
    found = [each for each in report.findings if each.cause is cause and said in each.detail]
    assert sorted({name for each in found for name in each.replicas}) == ["n1", "n2"], [
        (each.cause, each.detail) for each in report.findings
    ]


def test_index_that_is_skipped_between_segments_is_found(replicas: list[Path]) -> None:
    """Each segment by itself is right then."""
    index = next(header.index for segment, _, header in entries(replicas[0]) if int(segment.name))
    for path in replicas:
        forge(path, behind(index), header_field("index", lambda h: h.index + 1))
    said = [each.detail for each in audited(replicas).findings]
    assert any(f"index {index + 1} follows {index - 1}" in each for each in said), said


def test_producer_that_skips_a_number_is_found(replicas: list[Path]) -> None:
    """One whose id the log has given; across segments, too."""
    numbered = [
        (segment, header)
        for segment, at, header in entries(replicas[0])
        if header.kind == EntryKind.DATA
        and int.from_bytes(segment.read_bytes()[at + HEADER_SIZE :][:8], "big")
    ]
    chosen = next(header.index for segment, header in numbered if segment != numbered[0][0])
    for path in replicas:
        forge(path, lambda h: h.index == chosen, preamble_field("base_sequence", 1 << 30))
    said = [each.detail for each in audited(replicas).findings]
    assert any("producer" in each and "the next is" in each for each in said), said


def test_damage_makes_no_rule_look_broken(replicas: list[Path]) -> None:
    """Behind bytes that rotted entries are missing: what follows them needn't be the next."""
    for path in replicas:
        segment, at, header = next(e for e in entries(path) if e[2].index == 80)
        content = bytearray(segment.read_bytes())
        content[at : at + 3 * header.total_size] = bytes(3 * header.total_size)
        segment.write_bytes(content)
    causes = {each.cause for each in audited(replicas).findings}
    assert Cause.NO_LEADERS not in causes
    assert causes & {Cause.BAD_CRC, Cause.OLD_COPY}
