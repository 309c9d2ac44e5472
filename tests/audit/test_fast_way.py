"""Entries taken together: what that finds right, and only that, is right entry by entry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from audit.proof import reading
from audit.proof.chain import Chain, ChainTask, ReadTask
from audit.proof.findings import Cause
from audit.proof.reading import read_chains
from audit.proof.tags import tags_codes
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind, digest_of
from dledger.records.layout import ENTRY, FIRST_RECORD_AT, RECORD, file_name
from dledger.records.record import RecordTemplate, record_starts
from dledger.wire.commands_pb2 import Command
from store.dispatch import UNIT_SIZE
from store.tagging import code_of_record
from tests.audit.both_ways import read_singly, runs_of
from tests.audit.replicas import BORN_HOST, COMMAND, SEGMENT, Entry, LogBuilder, build, flip_bit
from tests.scale import examples

PRODUCER = (1).to_bytes(8, "big") + b"producer"
LOG = [
    Entry(1, EntryKind.NOOP),
    Entry(1, count=3, size=20, producer=PRODUCER),
    Entry(1, EntryKind.COMMAND, body=COMMAND),
    Entry(1, topic="events", queue_id=2, count=2, size=33),
    Entry(2, count=1, size=5, producer=PRODUCER),
    Entry(2, topic="events", queue_id=1, count=2, size=9),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[EntryHeader]]:
    """A replica of one segment, and the headers of its entries."""
    path = tmp_path_factory.mktemp("original") / "n1"
    return path, build(path, LOG).headers


@pytest.fixture
def paths(original: tuple[Path, list[EntryHeader]], tmp_path: Path) -> list[Path]:
    return [
        Path(shutil.copytree(original[0], tmp_path / name, symlinks=True)) for name in ("n1", "n2")
    ]


def task_of(path: Path, headers: list[EntryHeader], said: tuple[int, int] = (0, 0)) -> ChainTask:
    end = headers[-1].physical_offset + headers[-1].total_size
    last = headers[-1].index
    size = (path / "commitlog" / file_name(0)).stat().st_size
    return ChainTask(path.name, str(path / "commitlog"), 0, size, end, last, said, 0)


def resealed(content: bytes, headers: list[EntryHeader], seal: str = "chain") -> bytes:
    """The log with sums that say that all of it is right: CRCs, and digests if the chain is."""
    changed, digest = bytearray(content), 0
    if seal == "none":
        return content
    for header in headers:
        start, end = header.physical_offset, header.physical_offset + header.total_size
        digest = digest_of(bytes(changed[start:end]), 0, end - start, digest)
        at, size = start + ENTRY.at("digest"), ENTRY["digest"].size
        if seal == "chain":
            changed[at : at + size] = digest.to_bytes(size, "big")
        crc_at, behind = start + ENTRY.at("crc"), start + ENTRY.end("crc")
        crc = crc32c(bytes(changed[behind:end]), crc32c(bytes(changed[start:crc_at])))
        changed[crc_at:behind] = crc.to_bytes(behind - crc_at, "big")
    return bytes(changed)


@pytest.mark.parametrize(
    ("number", "seal"),
    [(1, "chain"), (2, "chain"), (3, "chain"), (1, "crc"), (2, "none")],
    ids=["data", "command", "other-topic", "digests-broken", "nothing-repaired"],
)
def test_any_byte_is_seen_both_ways(
    original: tuple[Path, list[EntryHeader]], paths: list[Path], number: int, seal: str
) -> None:
    """Each byte of an entry is changed, its sums repaired or not: what entry by entry is found,
    and nothing else, is found where they are taken together."""
    headers, path = original[1], paths[0]
    segment = path / "commitlog" / file_name(0)
    content = segment.read_bytes()
    task = ReadTask((task_of(path, headers),))
    header, seen = headers[number], 0
    step = 1 if seal == "chain" else 7
    for at in range(header.physical_offset, header.physical_offset + header.total_size, step):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        segment.write_bytes(resealed(bytes(changed), headers, seal))
        found = read_chains(task)
        assert found == read_singly(task), at - header.physical_offset
        seen += bool(found[0].faults)
    assert seen > ENTRY.at("index") // step
    segment.write_bytes(resealed(content, headers))
    assert not read_chains(task)[0].faults


def record(
    field: str, change: Callable[[int], int], number: int = 0
) -> Callable[[bytearray], None]:
    """Changes a field of one of the entry's records."""

    def forge(frame: bytearray) -> None:
        place, start = RECORD[field], record_starts(frame, FIRST_RECORD_AT, number + 1)[number]
        at, end = start + place.offset, start + place.offset + place.size
        value = change(int.from_bytes(frame[at:end], "big"))
        frame[at:end] = value.to_bytes(place.size, "big")

    return forge


def properties_that_are_too_long(frame: bytearray) -> None:
    """The body ends early, and all that was behind counts as properties."""
    start, topic = FIRST_RECORD_AT, b"\x06orders"
    behind = b"".join((topic, (0x8001).to_bytes(2, "big")))
    end = len(frame)
    body_at = start + RECORD.size
    body_size = end - 0x8001 - len(behind) - body_at
    frame[body_at + body_size : body_at + body_size + len(behind)] = behind
    record("body_length", lambda _: body_size)(frame)
    body = bytes(frame[body_at : body_at + body_size])
    record("body_crc", lambda _: crc32(body) & 0x7FFFFFFF)(frame)


FORGERIES: dict[str, Callable[[bytearray], None]] = {
    "ipv6-born": record("sysflag", lambda flags: flags | 0x10),
    "ipv6-store": record("sysflag", lambda flags: flags | 0x20, 1),
    "magic": record("magic", lambda magic: magic + 1),
    "queue-of-one": record("queue_id", lambda queue: queue + 1, 1),
    "queue-offset": record("queue_offset", lambda offset: offset + 1, 1),
    "queue-offset-far": record("queue_offset", lambda _: (1 << 64) - 1),
    "physical-offset": record("physical_offset", lambda offset: offset + 1, 1),
    "store-time": record("store_time_ms", lambda ms: ms + 1, 1),
    "body-crc": record("body_crc", lambda crc: crc ^ 1, 1),
    "body-longer": record("body_length", lambda size: size + 1),
    "body-far-longer": record("body_length", lambda _: (1 << 32) - 1),
    "record-longer": record("total_size", lambda size: size + 1),
    "record-of-nothing": record("total_size", lambda _: 0, 1),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_field_of_a_record_is_seen_both_ways(
    original: tuple[Path, list[EntryHeader]], paths: list[Path], name: str
) -> None:
    """One field of a record, with all sums repaired."""
    found = forged(original, paths[0], 1, FORGERIES[name])
    assert found.faults
    assert {fault.cause for fault in found.faults} <= {Cause.NO_LEADERS, Cause.RECORDS_LIE}


@pytest.mark.parametrize("name", [b"\x06or ers", b"\x05order", b"\x07orders\x00"])
def test_name_of_a_topic_is_seen_both_ways(
    original: tuple[Path, list[EntryHeader]], paths: list[Path], name: bytes
) -> None:
    """One that is none, in every record of the entry, and one that is shorter or longer."""

    def forge(frame: bytearray) -> None:
        for at in [n for n in range(len(frame)) if frame.startswith(b"\x06orders", n)]:
            frame[at : at + len(name)] = name

    assert forged(original, paths[0], 1, forge).faults


def test_long_properties_are_seen_both_ways(tmp_path: Path) -> None:
    """Their length is a signed number of 16 bits, and the record's other lengths agree."""
    entries = [Entry(1, EntryKind.NOOP), Entry(1, count=1, size=0x8200)]
    path = tmp_path / "n1"
    builder = LogBuilder(path, "n1", 1 << 20)
    for entry in entries:
        builder.add(entry)
        builder.flush()
    builder.dispatch()
    builder.close()
    found = forged((path, builder.headers), path, 1, properties_that_are_too_long)
    assert Cause.NO_LEADERS in {fault.cause for fault in found.faults}


def test_number_of_records_is_seen_both_ways(
    original: tuple[Path, list[EntryHeader]], paths: list[Path]
) -> None:
    """More or fewer than the entry holds, or none."""
    place = ENTRY["record_count"]
    for count in (0, 1, 2, 4, 65_535):

        def forge(frame: bytearray, count: int = count) -> None:
            frame[place.offset : place.offset + place.size] = count.to_bytes(place.size, "big")

        assert forged(original, paths[0], 1, forge).faults


@pytest.mark.parametrize("number", [0, 1, 2], ids=["no-op", "data", "command"])
def test_label_of_an_entry_is_seen_both_ways(
    original: tuple[Path, list[EntryHeader]], paths: list[Path], number: int
) -> None:
    """Kinds and versions that there aren't, or aren't yet, or aren't any more, or that others are
    of."""
    for field, values in (("kind", (0, 1, 2, 3, 4, 9)), ("version", (0, 1, 3, 255))):
        at = ENTRY.at(field)
        for value in values:

            def forge(frame: bytearray, at: int = at, value: int = value) -> None:
                frame[at] = value

            forged(original, paths[0], number, forge)


def forged(
    original: tuple[Path, list[EntryHeader]],
    path: Path,
    number: int,
    forge: Callable[[bytearray], None],
) -> Chain:
    """What is found, both ways, when one entry is changed and all sums repaired: with its queues,
    and where those needn't have its units yet."""
    headers = original[1]
    segment = path / "commitlog" / file_name(0)
    kept = segment.read_bytes()
    content, header = bytearray(kept), headers[number]
    start, end = header.physical_offset, header.physical_offset + header.total_size
    frame = content[start:end]
    forge(frame)
    content[start:end] = frame
    segment.write_bytes(resealed(bytes(content), headers))
    alone = task_of(path, headers)
    underived = ReadTask((replace(alone, derived_index=0),))
    assert read_chains(underived) == read_singly(underived)
    task = ReadTask((alone,))
    (found,) = read_chains(task)
    assert [found] == read_singly(task)
    segment.write_bytes(kept)
    return found


def test_healthy_entries_are_taken_together(
    original: tuple[Path, list[EntryHeader]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is looked at alone, and what is told of them is the same."""
    path, headers = original
    task = ReadTask((task_of(path, headers),))
    alone = read_singly(task)
    monkeypatch.setattr(reading, "verify_frame", lambda *_: pytest.fail("an entry was read alone"))
    assert read_chains(task) == alone
    assert alone[0].entries == len(LOG)
    assert alone[0].records == sum(entry.count for entry in LOG)


@pytest.mark.parametrize("size", [1, 100, 300, 700, 1500])
def test_runs_may_end_anywhere(original: tuple[Path, list[EntryHeader]], size: int) -> None:
    """Entries larger than a run are taken alone."""
    task = ReadTask((task_of(*original),))
    with runs_of(size):
        assert read_chains(task) == read_singly(task)


def test_queue_of_any_member_is_compared(
    original: tuple[Path, list[EntryHeader]], paths: list[Path]
) -> None:
    """Of members with the same log one log is read; a unit that is wrong is its own member's."""
    headers = original[1]
    task = ReadTask(tuple(task_of(path, headers) for path in paths))
    assert [chain.faults for chain in read_chains(task)] == [(), ()]
    flip_bit(paths[1] / "consumequeue" / "events@1" / "1" / file_name(0), UNIT_SIZE + 3)
    one, other = read_chains(task)
    assert not one.faults
    assert [(each.cause, each.queue) for each in other.faults] == [
        (Cause.QUEUE_WRONG, ("events@1", 1))
    ]
    assert [one, other] == read_singly(task)


def test_what_any_member_said_is_compared(
    original: tuple[Path, list[EntryHeader]], paths: list[Path]
) -> None:
    """Each node's word on its committed log is held against the log."""
    headers = original[1]
    right, wrong = (headers[3].index, headers[3].digest), (headers[3].index, 1)
    for said in ((right, wrong), (wrong, right)):
        members = [task_of(path, headers, each) for path, each in zip(paths, said, strict=True)]
        task = ReadTask(tuple(members))
        found = read_chains(task)
        assert found == read_singly(task)
        causes = [[fault.cause for fault in chain.faults] for chain in found]
        assert causes == [[Cause.POSITION_DIGEST] if each is wrong else [] for each in said]


def test_member_may_have_derived_less(
    original: tuple[Path, list[EntryHeader]], paths: list[Path]
) -> None:
    """Units of entries behind what it claims to have derived aren't asked of it."""
    headers = original[1]
    shutil.rmtree(paths[1] / "consumequeue" / "events@1" / "1")
    members = [task_of(path, headers) for path in paths]
    task = ReadTask((members[0], replace(members[1], derived_index=headers[-2].index)))
    assert [chain.faults for chain in read_chains(task)] == [(), ()]
    assert read_chains(task) == read_singly(task)


def test_entries_of_many_topics_queues_and_runs(tmp_path: Path) -> None:
    """What entries say to each other holds across runs, and commands between them."""

    def entries() -> Iterator[Entry]:
        yield Entry(1, EntryKind.NOOP)
        for number in range(40):
            topic = ("orders", "events")[number % 2]
            yield Entry(1, topic=topic, queue_id=number % 3, count=1 + number % 4, size=number)
            if number % 7 == 0:
                yield Entry(1, EntryKind.COMMAND, body=COMMAND)

    path = tmp_path / "n1"
    headers = build(path, list(entries())).headers
    ends_at = [header.physical_offset + header.total_size for header in headers]
    headers = headers[: sum(end <= SEGMENT for end in ends_at)]
    task = ReadTask((task_of(path, headers),))
    for size in (600, 4096, 1 << 20):
        with runs_of(size):
            found = read_chains(task)
        assert found == read_singly(task)
        assert not found[0].faults


def test_deleted_topic_is_forgotten_both_ways(tmp_path: Path) -> None:
    """Its queues are none that the log ends, whether it was deleted by name or incarnation."""
    gone = Command(delete_topic={"name": "events", "incarnation": 1}).SerializeToString()
    named = Command(delete_topic={"name": "orders"}).SerializeToString()
    path = tmp_path / "n1"
    headers = build(
        path,
        [
            *LOG,
            Entry(2, EntryKind.COMMAND, body=gone),
            Entry(2, count=2, size=7),
            Entry(2, EntryKind.COMMAND, body=named),
            Entry(2, EntryKind.NOOP),
        ],
    ).headers
    task = ReadTask((task_of(path, headers),))
    (found,) = read_chains(task)
    assert [found] == read_singly(task)
    assert [folder for folder, _ in found.deleted] == ["events@1", "orders"]
    assert not found.queue_ends


properties = st.one_of(
    st.just(b""),
    st.lists(
        st.tuples(
            st.sampled_from([b"KEYS", b"TAGS", b"xTAGS", b""]),
            st.one_of(st.binary(max_size=6), st.binary(min_size=20, max_size=40)),
        ),
        max_size=4,
    ).map(lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)),
    st.binary(max_size=30),
    st.just(b"KEYS\x01k\x02TAGS\x01red\x02"),
    st.just(b"KEYS\x01k\x02TAGS\x01blue"),
)


@settings(max_examples=examples(150), derandomize=True, deadline=None, database=None)
@example([b"KEYS\x01abcdef\x02TAGS\x01red\x02", b"TAGS\x01bluish\x02TAGS\x01red\x02"] * 9, b"")
@example([b"TAGS\x01" + b"x" * size + b"\x02" for size in range(40)], b"")
@example([b"TAGS\x01" + b"y" * size for size in range(40)], b"")
@example([b"KEYS\x01k\x02TAGS\x01red\x02", b"KEYS\x01k\x02TAG_\x01red\x02" + bytes(30)] * 2, b"")
@example([b"TAGS\x01" + b"z" * size + b"\xc3\xa4\x02" + bytes(30) for size in range(20)], b"")
@given(st.lists(properties, min_size=1, max_size=12), st.binary(max_size=40))
def test_tags_codes_are_those_of_each_record_alone(held: list[bytes], body: bytes) -> None:
    """Whatever properties hold, in whatever order."""
    template = RecordTemplate("orders", BORN_HOST)
    content, starts, begins, ends = bytes(HEADER_SIZE), [], [], []
    for each in held:
        record = template.encode(0, body, each, 0)
        starts.append(len(content))
        content += record
        begins.append(len(content) - len(each))
        ends.append(len(content))
        content += b"TAGS\x01gap\x02"  # between entries there are other bytes
    found = tags_codes(
        content, *(np.array(each, dtype=np.int64) for each in (starts, begins, ends))
    )
    expected = [code_of_record(content, *each) for each in zip(starts, ends, strict=True)]
    assert found.tolist() == expected
