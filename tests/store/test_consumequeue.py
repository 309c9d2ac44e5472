"""ConsumeQueues: derived from the log, and rebuilt from it to the same bytes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dledger.reading.entry import EntryKind, build_frame, parse_header, walk_frames
from dledger.records.errors import InvalidRecord
from dledger.records.layout import file_name
from dledger.records.record import (
    BATCH_PREAMBLE,
    RecordTemplate,
    encode_properties,
    tags_code,
    validate_records,
)
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT, UNIT_SIZE, units_by_loop, units_by_vector, units_for_entry
from store.errors import DivergenceFound, OutOfRange, StorageFull
from store.queue_flush import STEP_FILES, FlushWork
from store.stamping import stamp_records
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LogUnderTest

ROOT = DATA / "consumequeue"
PER_FILE = 5
K = TypeVar("K")
V = TypeVar("V")


def data_body(
    topic: str, queue_id: int, bodies: list[bytes], base: int, position: int, tag: str = ""
) -> bytearray:
    """The body of a data entry at `position`, its records stamped from queue offset `base`."""
    properties = encode_properties({"TAGS": tag}) if tag else b""
    template = RecordTemplate(topic, ("10.0.0.1", 1))
    body = bytearray(BATCH_PREAMBLE.pack(bytes(16), 0, 1))
    for each in bodies:
        body += template.encode(queue_id, each, properties, 1)
    starts = validate_records(
        memoryview(body)[32:], topic=topic, queue_id=queue_id, max_record_size=1 << 20
    )
    stamp_records(
        body,
        starts,
        at=32,
        base_queue_offset=base,
        base_physical_offset=position + 88,
        store_time_ms=1000 + 10 * base,
        store_host=(bytes(4), 1),
    )
    return body


class Broker:
    """A log with data entries of several queues, and what is next in each."""

    def __init__(self) -> None:
        self.made = LogUnderTest(SimulatedDisk())
        self.next: dict[tuple[str, int], int] = {}

    def send(self, topic: str, queue_id: int, bodies: list[bytes], tag: str = "") -> None:
        log = self.made.log
        base = self.next.get((topic, queue_id), 0)
        size = 56 + len(data_body(topic, queue_id, bodies, 0, 0, tag))
        if not log.has_room(size):
            self.made.preallocate()
        body = data_body(topic, queue_id, bodies, base, log.next_position(size), tag)
        log.append(EntryKind.DATA, log.last_index + 1, 1, 7, len(bodies), body)
        self.next[(topic, queue_id)] = base + len(bodies)
        self.made.flush()

    def dispatch(self, queues: ConsumeQueues, first: int = 1, last: int | None = None) -> None:
        log = self.made.log
        for index in range(first, (last or log.last_index) + 1):
            frame = log.read(index, index)
            header = parse_header(frame, 0)
            if header.kind == EntryKind.DATA:
                queues.dispatch(*units_for_entry(header, frame))

    def ends(self, through: int) -> dict[tuple[str, int], int]:
        """Where each queue ends if the log ended with entry `through`."""
        log, found = self.made.log, dict.fromkeys(self.next, 0)
        for index in range(1, through + 1):
            frame = log.read(index, index)
            topic, queue_id, base, units = units_for_entry(parse_header(frame, 0), frame)
            found[(topic, queue_id)] = base + len(units) // UNIT_SIZE
        return found

    def started(self, through: int) -> ConsumeQueues:
        """The queues of a start that takes them for derived up to entry `through`."""
        queues = self.queues()
        queues.look()
        for key, end in self.ends(through).items():
            queues.expect(*key, end)
            assert queues.settle(*key)
        return queues

    def queues(self) -> ConsumeQueues:
        return ConsumeQueues(DATA, self.made.disk, units_per_file=PER_FILE)

    def files(self) -> dict[Path, bytes]:
        disk = self.made.disk
        return {path: bytes(disk.bytes_of(path)) for path in disk.paths() if ROOT in path.parents}


def make_broker(seed: int = 1, entries: int = 30) -> Broker:
    broker, chance = Broker(), Random(seed)
    for _ in range(entries):
        bodies = [chance.randbytes(chance.randrange(30)) for _ in range(chance.randrange(1, 4))]
        topic = chance.choice(("orders", "%RETRY%group"))
        broker.send(topic, chance.randrange(2), bodies, chance.choice(("", "blue")))
    return broker


def test_units_have_rocketmqs_bytes() -> None:
    """Golden: physical offset, size, tags code; the file named by its first byte's place."""
    broker = Broker()
    broker.send("orders", 3, [b"hello", b""], "TagA")
    queues = broker.queues()
    broker.dispatch(queues)
    content = broker.files()[ROOT / "orders" / "3" / ("0" * 20)]
    assert content[:40].hex() == (
        "0000000000000058" "00000070" "000000000027a807"
        "00000000000000c8" "0000006b" "000000000027a807"
    )  # fmt: skip
    assert len(content) == PER_FILE * UNIT_SIZE
    assert not any(content[40:])


def test_negative_tags_codes_are_sign_extended() -> None:
    broker = Broker()
    broker.send("orders", 0, [b""], "polygenelubricants")
    queues = broker.queues()
    broker.dispatch(queues)
    assert queues.units("orders", 0, 0, 1)[12:].hex() == "ffffffff80000000"


def test_every_message_is_found_through_its_unit() -> None:
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    assert queues.queues() == sorted(broker.next)
    for (topic, queue_id), end in broker.next.items():
        assert (queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)) == (0, end)
        units = queues.units(topic, queue_id, 0, end + 99)
        assert len(units) == end * UNIT_SIZE
        for offset, (physical, size, code) in enumerate(UNIT.iter_unpack(units)):
            record = broker.made.log.read_at(physical, size)
            assert int.from_bytes(record[20:28], "big") == offset
            assert code == (tags_code("blue") if b"TAGS" in record else 0)


def test_deleted_queues_are_rebuilt_to_the_same_bytes() -> None:
    """ADR 7: ConsumeQueues are a pure function of the log."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    before = broker.files()
    assert len(before) > 8
    queues.close()
    for path in before:
        broker.made.disk.unlink(path)
    again = broker.started(0)
    broker.dispatch(again)
    assert broker.files() == before


def test_replaying_what_is_there_changes_nothing() -> None:
    """After a restart entries are dispatched again from some earlier index."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    before = broker.files()
    for first in (1, 7, 30):
        broker.dispatch(queues, first)
    assert broker.files() == before


def test_gap_and_difference_are_divergence() -> None:
    """ADR 5: the stamped queue offset must be the next one."""
    queues = Broker().queues()
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0) * 3)
    with pytest.raises(DivergenceFound, match="queue t/0 diverges from the log: expected queue"):
        queues.dispatch("t", 0, 4, UNIT.pack(80, 100, 0))
    with pytest.raises(DivergenceFound):
        queues.dispatch("t", 0, 2, UNIT.pack(81, 100, 0))
    with pytest.raises(DivergenceFound):
        queues.dispatch("new", 0, 1, UNIT.pack(80, 100, 0))
    assert queues.max_offset("t", 0) == 3


@pytest.mark.parametrize("at", [88 + 27, 88 + 35, 88 + 99 + 27])
def test_records_that_lie_about_their_place_are_divergence(at: int) -> None:
    """A wrong queue offset or physical offset, in the first record or a later one."""
    body = data_body("t", 0, [b"12345678", b"x"], 5, 0)
    frame = bytearray(56) + body
    header = parse_header(_framed(body), 0)
    units_for_entry(header, bytes(frame))
    frame[at] ^= 1
    with pytest.raises(DivergenceFound):
        units_for_entry(header, bytes(frame))


def _framed(body: bytearray, count: int = 2) -> bytes:
    made = LogUnderTest(SimulatedDisk())
    made.log.append(EntryKind.DATA, 1, 1, 0, count, body)
    return made.log.read(1, 1)


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=70),
    equal=st.booleans(),
    tag=st.sampled_from(["", "blue"]),
    base=st.integers(0, 1 << 40),
)
def test_both_ways_of_building_units_agree(
    sizes: list[int], equal: bool, tag: str, base: int
) -> None:
    bodies = [bytes(sizes[0] if equal else size) for size in sizes]
    body = bytes(data_body("t", 1, bodies, base, 1 << 33, tag))
    head, _ = build_frame(EntryKind.DATA, 1, 1, 1 << 33, 0, len(bodies), body, 0)
    frame = head + body
    header = parse_header(frame, 0)
    assert units_by_vector(header, frame, base) == units_by_loop(header, frame, base)
    spoiled = bytearray(frame)
    spoiled[88 + 27] ^= 1
    for build in (units_by_vector, units_by_loop):
        with pytest.raises(DivergenceFound):
            build(header, bytes(spoiled), base)


@pytest.mark.parametrize("count", [1, 3])
def test_entry_whose_records_do_not_fill_it_is_refused(count: int) -> None:
    frame = _framed(data_body("t", 0, [b"a", b"b"], 0, 0), count)
    with pytest.raises(InvalidRecord):
        units_for_entry(parse_header(frame, 0), frame)


def test_units_out_of_range_are_refused() -> None:
    queues = Broker().queues()
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0) * 7)
    assert queues.units("t", 0, 7, 10) == b""
    assert queues.units("t", 0, 3, 3) == UNIT.pack(80, 100, 0) * 3
    assert queues.units("unknown", 0, 0, 10) == b""
    for topic, offset in (("t", 8), ("t", -1), ("unknown", 1)):
        with pytest.raises(OutOfRange):
            queues.units(topic, 0, offset, 1)


def test_sum_of_a_queue_goes_as_far_as_its_files() -> None:
    """However long somebody says that it is; it may be asked for at a start."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    for (topic, queue_id), end in broker.next.items():
        units = queues.units(topic, queue_id, 0, end)
        assert queues.bears_out(topic, queue_id, end, crc32c(units))
        assert not queues.bears_out(topic, queue_id, end, crc32c(units) ^ 1)
        assert not queues.bears_out(topic, queue_id, end + 1, crc32c(units))
    disk = broker.made.disk
    before = disk.operations
    assert not queues.bears_out("orders", 0, 1 << 50, 0)
    assert not queues.bears_out("unknown", 0, 1 << 50, 0)
    assert disk.operations - before < 100_000


def test_truncation_drops_units_of_all_queues_from_a_position() -> None:
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    before = broker.files()
    for index in (25, 11, 1):
        queues.truncate_to_physical(broker.made.log.position_of(index))
        fresh = Broker()
        shorter = ConsumeQueues(DATA, fresh.made.disk, units_per_file=PER_FILE)
        for header_index in range(1, index):
            frame = broker.made.log.read(header_index, header_index)
            shorter.dispatch(*units_for_entry(walk_frames(frame)[0], frame))
        assert broker.files() == fresh.files()
    broker.dispatch(queues)
    assert broker.files() == before


def test_deleted_topic_leaves_nothing_and_can_come_back() -> None:
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    queues.delete_topic("orders")
    queues.delete_topic("never was")
    assert not [path for path in broker.files() if "orders" in path.parts]
    assert queues.max_offset("orders", 0) == 0
    queues.flush()
    broker.made.disk.power_cut()
    assert not [path for path in broker.files() if "orders" in path.parts]
    again = broker.queues()
    again.dispatch("orders", 0, 0, UNIT.pack(80, 100, 0))
    assert again.max_offset("orders", 0) == 1


def test_deleting_costs_one_rename_however_many_queues() -> None:
    """The event loop deletes; the files go when the flush is performed, on its thread."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    for queue in range(40):
        queues.dispatch("t", queue, 0, UNIT.pack(80, 100, 0))
    disk.calls.clear()
    queues.delete_topic("t")
    assert disk.calls == [("rename", ".deleted-1")]
    assert queues.queues() == []
    assert disk.open_handles() == []
    queues.flush()
    assert disk.listdir(ROOT) == []


class Untold(dict[K, V]):
    """Nobody goes through all of it."""

    def __iter__(self) -> Iterator[K]:
        raise AssertionError("a look at every queue that there is")


@pytest.mark.parametrize("learnt", ["dispatched", "expected", "borne out", "begun"])
def test_deleting_looks_at_no_other_topics_queues(learnt: str) -> None:
    """An entry may delete 256 topics, in one turn of the event loop, among 100,000 queues. Whatever
    was known of a queue, in whichever order, is forgotten."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    unit = UNIT.pack(80, 100, 0)
    for topic in ("t", "t2"):
        for queue_id in (3, 0, 2):
            queues.dispatch(topic, queue_id, 0, unit)
    if learnt != "dispatched":
        queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
        queues.look()
    for topic in ("t", "t2"):
        for queue_id in (3, 0, 2):
            if learnt == "expected":
                queues.expect(topic, queue_id, 1)
            elif learnt == "borne out":
                assert queues.bears_out(topic, queue_id, 1, crc32c(unit))
            elif learnt == "begun":
                assert queues.settle(topic, queue_id)
    for name in ("_queues", "_begun", "_marks"):
        setattr(queues, name, Untold(getattr(queues, name)))
    before = sum(len(getattr(queues, name)) for name in ("_queues", "_begun", "_marks"))
    queues.delete_topic("t")
    left = [getattr(queues, name) for name in ("_queues", "_begun", "_marks")]
    assert sum(map(len, left)) == before // 2 > 0
    assert not any(("t", queue_id) in known for queue_id in (0, 2, 3) for known in left)


def test_a_start_looks_into_no_queues_folder() -> None:
    """Each file is opened once, and that is all: a start with 40,000 queues listed the folder of
    each, too, for files before its first one, of which there can be none."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    for queue in range(40):
        queues.dispatch("t", queue, 0, UNIT.pack(80, 100, 0))
    queues.close()
    again = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    again.look()
    disk.calls.clear()
    for queue in range(40):
        again.expect("t", queue, 1)
        again.drop_unneeded("t", queue)
        assert again.holds("t", queue, 0, UNIT.pack(80, 100, 0))
        assert again.settle("t", queue)
    assert (disk.count("open"), disk.count("listdir")) == (40, 0)


def test_first_messages_of_a_topics_queues_make_its_directory_once() -> None:
    """One directory a queue, and one for all of them."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    disk.calls.clear()
    for queue in range(3):
        queues.dispatch("t", queue, 0, UNIT.pack(80, 100, 0))
    made = [name for operation, name in disk.calls if operation == "mkdir"]
    assert made == ["t", "0", "1", "2"]


def test_what_a_deleted_topic_left_is_removed_at_the_next_start() -> None:
    """The process died between the rename and the removal, in the middle of it even."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    queues.flush()
    queues.delete_topic("orders")
    broker.made.disk.fail_next("unlink", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queues.flush()
    queues.close()
    again = broker.queues()
    again.look()
    assert broker.made.disk.listdir(ROOT) == ["%RETRY%group"]
    assert again.folders() == ["%RETRY%group"]


@pytest.mark.parametrize("seed", range(20))
def test_topic_made_anew_after_its_deletion_survives_power_cuts(seed: int) -> None:
    """With a flush the new one's units are there; without, the old or the new or none, but never
    a mixture."""
    chance = Random(seed)
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    old, new = UNIT.pack(80, 100, 0) * 7, UNIT.pack(5080, 200, 1)
    queues.dispatch("t", 0, 0, old)
    queues.flush()
    queues.delete_topic("t")
    queues.dispatch("t", 0, 0, new)
    is_flushed = chance.random() < 0.5
    if is_flushed:
        queues.flush()
    disk.power_cut(chance)
    files = {path: bytes(disk.bytes_of(path)) for path in disk.paths() if path.parent.name == "0"}
    held = [content for path, content in files.items() if ".deleted-" not in str(path)]
    if is_flushed:
        assert held == [new + bytes((PER_FILE - 1) * UNIT_SIZE)]
    else:
        whole = old + bytes(3 * UNIT_SIZE)
        assert b"".join(held) == whole or old[:UNIT_SIZE] not in b"".join(held)


FULL_AT = [(0, "mkdir"), *((held, each) for held in (0, 3, 5) for each in ("create", "truncate"))]


@pytest.mark.parametrize(("held", "operation"), [*FULL_AT, *((h, "pwritev") for h in (0, 3, 5))])
def test_units_that_find_no_space_can_be_dispatched_again(held: int, operation: str) -> None:
    """StorageFull changes nothing that a second try could trip over, whatever was full."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    units = [UNIT.pack(80 + 100 * number, 100, 0) for number in range(2 * PER_FILE)]
    if held:
        queues.dispatch("t", 0, 0, b"".join(units[:held]))
    disk.fail_next(operation, errno.ENOSPC)
    with pytest.raises(StorageFull):
        queues.dispatch("t", 0, held, b"".join(units[held:]))
    queues.dispatch("t", 0, held, b"".join(units[held:]))
    assert queues.units("t", 0, 0, 2 * PER_FILE) == b"".join(units)
    queues.close()
    assert disk.open_handles() == []


def test_topic_whose_directory_cannot_be_renamed_is_still_there() -> None:
    """A file system that copies on write needs space for a rename as well."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0))
    disk.fail_next("rename", errno.ENOSPC)
    with pytest.raises(StorageFull):
        queues.delete_topic("t")
    assert queues.max_offset("t", 0) == 1
    queues.delete_topic("t")
    assert queues.queues() == []


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "no space"), (errno.ENOMEM, "memory")])
def test_what_is_refused_for_now_says_what_there_is_none_of(code: int, words: str) -> None:
    """Who has run out of memory, or of descriptors, would look for space on a disk that has it."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0))
    disk.fail_next("rename", code)
    with pytest.raises(StorageFull, match=words) as told:
        queues.delete_topic("t")
    assert bool(told.value.scarce) == (code != errno.ENOSPC)
    assert ("no space" in str(told.value)) == (code == errno.ENOSPC)


def test_flush_makes_units_and_names_durable() -> None:
    """Files, queue directories and topic directories; dispatching may go on meanwhile."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    work = queues.take()
    queues.dispatch("later", 0, 0, UNIT.pack(80, 100, 0))
    work.perform()
    flushed = {
        path: content for path, content in broker.files().items() if "later" not in path.parts
    }
    broker.made.disk.power_cut()
    assert broker.files() == flushed


def test_flush_after_a_crash_covers_names_that_only_the_page_cache_knew() -> None:
    """The process that made a topic's directories died before its flush. What the next one
    dispatches to that queue and flushes counts as durable, and must be."""
    broker = make_broker()
    broker.dispatch(broker.queues())
    broker.made.disk.kill()
    broker.made = LogUnderTest(broker.made.disk)
    queues = broker.started(0)
    broker.dispatch(queues)
    queues.flush()
    flushed = broker.files()
    broker.made.disk.power_cut()
    assert broker.files() == flushed


def test_flush_of_a_deleted_topic_is_harmless() -> None:
    queues = Broker().queues()
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0))
    work = queues.take()
    queues.delete_topic("t")
    work.perform()
    assert queues.queues() == []
    queues.dispatch("t", 0, 0, UNIT.pack(280, 100, 0))
    queues.flush()
    assert queues.max_offset("t", 0) == 1


def test_flush_overtaken_by_a_deletion_does_not_leave_the_old_files_half_durable() -> None:
    """By the time the work is performed its paths lead to a new topic's files. The old ones must
    not come back after a power cut, without units that were taken for durable."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE)
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0))
    queues.flush()
    queues.dispatch("t", 0, 1, UNIT.pack(180, 100, 0))
    work = queues.take()
    queues.delete_topic("t")
    queues.dispatch("t", 0, 0, UNIT.pack(5080, 200, 1))
    work.perform()
    disk.power_cut()
    assert not [path for path in disk.paths() if ROOT / "t" in path.parents]


def test_failed_flush_is_told() -> None:
    """ADR 8 holds for derived files as well: the node stops."""
    broker = Broker()
    queues = broker.queues()
    queues.dispatch("t", 0, 0, UNIT.pack(80, 100, 0))
    broker.made.disk.fail_next("fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queues.flush()


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_then_replay_gives_the_same_bytes(seed: int) -> None:
    """Whatever pages survive: units above the durable index are dropped and dispatched again."""
    chance = Random(seed)
    whole = make_broker(seed)
    whole.dispatch(whole.queues())
    expected = whole.files()
    broker = make_broker(seed)
    queues = broker.queues()
    durable = chance.randrange(0, 30)
    for index in range(1, 31):
        frame = broker.made.log.read(index, index)
        queues.dispatch(*units_for_entry(parse_header(frame, 0), frame))
        if index == durable:
            queues.flush()
    broker.made.disk.power_cut(chance)
    broker.made = LogUnderTest(broker.made.disk)
    again = broker.started(durable)
    broker.dispatch(again, chance.randrange(1, durable + 2))
    assert broker.files() == expected


def test_unit_that_half_a_page_made_up_is_no_witness() -> None:
    """It ascends and has a size, but no record says that it belongs there: a start that knows of
    four units doesn't find them, and one that knows of three cuts it off."""
    broker = Broker()
    for _ in range(4):
        broker.send("t", 0, [b"x"])
    queues = broker.queues()
    broker.dispatch(queues)
    units = queues.units("t", 0, 0, 4)
    content = broker.made.disk.bytes_of(ROOT / "t" / "0" / ("0" * 20))
    content[3 * UNIT_SIZE : 4 * UNIT_SIZE] = UNIT.pack(broker.made.log.end_offset - 90, 100, 0)
    queues.close()
    again = broker.started(3)
    assert not again.holds("t", 0, 0, units)
    assert again.holds("t", 0, 0, units[: 3 * UNIT_SIZE])
    assert again.max_offset("t", 0) == 3
    assert not any(broker.made.disk.bytes_of(ROOT / "t" / "0" / ("0" * 20))[60:])


@pytest.mark.parametrize("end", [PER_FILE - 1, PER_FILE, PER_FILE + 3])
def test_queue_whose_last_file_is_lost_or_short_is_not_whole(end: int) -> None:
    """Whoever starts has it mended; nothing is changed until then."""
    broker = Broker()
    broker.send("t", 0, [b""] * end)
    queues = broker.queues()
    broker.dispatch(queues)
    units = queues.units("t", 0, 0, end)
    queues.close()
    last = ROOT / "t" / "0" / file_name((end - 1) // PER_FILE * PER_FILE * UNIT_SIZE)
    disk = broker.made.disk
    handle = disk.open(last)
    disk.truncate(handle, PER_FILE * UNIT_SIZE - 1)
    disk.close(handle)
    for _ in range(2):
        before = broker.files()
        again = broker.queues()
        again.look()
        again.expect("t", 0, end)
        assert not (again.settle("t", 0) and again.holds("t", 0, 0, units))
        assert broker.files() == before
        if disk.exists(last):
            disk.unlink(last)


def test_a_files_worth_of_units_behind_the_end_goes_with_its_file() -> None:
    """The end is a file's last unit, or the next file has begun while the rest was lost."""
    for end in (PER_FILE, PER_FILE - 2):
        broker = Broker()
        broker.send("t", 0, [b""] * end)
        broker.send("t", 0, [b""] * (PER_FILE + 1 - end))
        queues = broker.queues()
        broker.dispatch(queues)
        queues.close()
        whole = broker.files()
        content = broker.made.disk.bytes_of(ROOT / "t" / "0" / file_name(0))
        content[end * UNIT_SIZE :] = bytes((PER_FILE - end) * UNIT_SIZE)
        again = broker.started(1)
        assert [path.name for path in broker.files()] == [file_name(0)]
        broker.dispatch(again, 2)
        assert broker.files() == whole


def test_what_an_earlier_life_began_is_emptied_and_used_again() -> None:
    """Ten thousand queues whose first messages weren't noted yet are not made anew: of each the
    file is there, and holds nothing that it wasn't given again."""
    broker = Broker()
    broker.send("t", 0, [b""] * 2)
    broker.send("t", 0, [b""] * (PER_FILE + 1))
    queues = broker.queues()
    broker.dispatch(queues)
    queues.flush()
    queues.close()
    whole, disk = broker.files(), broker.made.disk
    first = ROOT / "t" / "0" / file_name(0)
    again = broker.started(0)
    assert broker.files() == {first: bytes(PER_FILE * UNIT_SIZE)}
    disk.calls.clear()
    broker.dispatch(again, last=1)
    assert not [call for call in disk.calls if call[0] in ("create", "unlink")]
    units = whole[first][: 2 * UNIT_SIZE]
    assert broker.files() == {first: units.ljust(PER_FILE * UNIT_SIZE, b"\0")}
    again.flush()
    disk.power_cut()
    broker.made = LogUnderTest(disk)
    assert broker.files() == {first: units.ljust(PER_FILE * UNIT_SIZE, b"\0")}
    broker.dispatch(broker.started(1), 2)
    assert broker.files() == whole


def test_name_of_a_file_that_is_used_again_is_durable_with_its_units() -> None:
    """The process that made it died before its flush, and the one after that looked around and
    synced what it had; only then the file is begun again."""
    broker = make_broker()
    broker.dispatch(broker.queues())
    broker.made.disk.kill()
    broker.made = LogUnderTest(broker.made.disk)
    queues = broker.started(0)
    queues.flush()
    broker.dispatch(queues)
    queues.flush()
    flushed = broker.files()
    broker.made.disk.power_cut()
    assert broker.files() == flushed


def test_name_of_a_file_that_is_kept_for_a_unit_in_its_midst_is_durable_with_it() -> None:
    """Seed 440041: the first units of a queue are of entries that are gone, so its next one doesn't
    begin a file; the process that made that file died before its flush."""
    broker = Broker()
    for _ in range(2):
        broker.send("t", 0, [b""] * 2)
    broker.dispatch(broker.queues())
    broker.made.disk.kill()
    broker.made = LogUnderTest(broker.made.disk)
    queues = broker.queues()
    queues.look()
    queues.expect("t", 0, 2, first=2)
    assert queues.settle("t", 0)
    broker.dispatch(queues, 2)
    queues.flush()
    units = queues.units("t", 0, 2, 2)
    queues.close()
    broker.made.disk.power_cut()
    left = broker.queues()
    left.look()
    assert left.holds("t", 0, 2, units)


@pytest.mark.parametrize("is_cut_sync_failed", [True, False])
def test_what_a_failed_sync_left_in_the_page_cache_is_never_taken_for_durable(
    *, is_cut_sync_failed: bool
) -> None:
    """A sync fails, after which what was written reads as it should, is called clean, and isn't on
    the platter (ADR 8). The process dies, and the next one derives the same units in the same
    file. Then the sync fails that has emptied it, too, or doesn't."""
    broker = Broker()
    for _ in range(2):
        broker.send("t", 0, [b""] * 2)
    disk = broker.made.disk
    queues = broker.queues()
    broker.dispatch(queues)
    for _ in range(1 + is_cut_sync_failed):
        disk.fail_next("fsync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            FlushWork(disk, [ROOT / "t" / "0" / file_name(0)], [], []).perform()
        disk.kill()
        broker.made = LogUnderTest(disk)
        queues = broker.started(0)
    broker.dispatch(queues)
    queues.flush()
    whole = broker.files()
    disk.power_cut()
    assert broker.files() == whole
    broker.made = LogUnderTest(disk)
    broker.started(2)


def test_a_kept_file_that_already_reads_as_zeros_is_written_all_the_same() -> None:
    """They may be what a sync that failed has left of a start before: then the units behind the
    first new one came back with the next power cut, and so did a size that isn't the file's."""
    broker = Broker()
    broker.send("t", 0, [b""])
    broker.send("t", 0, [b""] * 3)
    first, disk = ROOT / "t" / "0" / file_name(0), broker.made.disk
    queues = broker.queues()
    broker.dispatch(queues)
    queues.flush()
    queues.close()
    broker.started(0).close()  # emptied …
    disk.fail_next("fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        FlushWork(disk, [first], [], []).perform()  # … and not on the platter, but clean
    disk.kill()
    broker.made = LogUnderTest(disk)
    queues = broker.started(0)
    broker.dispatch(queues, last=1)
    queues.flush()
    disk.power_cut()
    unit = broker.files()[first][:UNIT_SIZE]
    assert any(unit)
    assert broker.files()[first] == unit.ljust(PER_FILE * UNIT_SIZE, b"\0")


@pytest.mark.parametrize("size", [0, UNIT_SIZE, PER_FILE * UNIT_SIZE, 2 * PER_FILE * UNIT_SIZE])
def test_a_file_of_any_size_is_emptied_and_used_again(tmp_path: Path, size: int) -> None:
    """What a start keeps holds nothing of what it held, and is of its size."""
    first = tmp_path / "consumequeue" / "t" / "0" / file_name(0)
    first.parent.mkdir(parents=True)
    first.write_bytes(b"x" * size)
    before = first.stat().st_ino
    queues = ConsumeQueues(tmp_path, units_per_file=PER_FILE)
    queues.look()
    assert queues.settle("t", 0)
    assert first.read_bytes() == bytes(PER_FILE * UNIT_SIZE)
    unit = UNIT.pack(80, 100, 0)
    queues.dispatch("t", 0, 0, unit)
    assert first.read_bytes() == unit.ljust(PER_FILE * UNIT_SIZE, b"\0")
    assert first.stat().st_ino == before
    queues.close()


def test_what_lies_behind_the_first_page_of_a_kept_file_goes_too(tmp_path: Path) -> None:
    """Only that page is overwritten; the others are cut off."""
    first = tmp_path / "consumequeue" / "t" / "0" / file_name(0)
    first.parent.mkdir(parents=True)
    first.write_bytes(b"x" * 1000 * UNIT_SIZE)
    queues = ConsumeQueues(tmp_path, units_per_file=1000)
    queues.look()
    assert queues.settle("t", 0)
    assert first.read_bytes() == bytes(1000 * UNIT_SIZE)
    queues.close()


def test_a_link_with_the_name_of_a_queues_file_is_replaced(tmp_path: Path) -> None:
    """What it leads to is somebody else's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of somebody else")
    first = tmp_path / "data" / "consumequeue" / "t" / "0" / file_name(0)
    first.parent.mkdir(parents=True)
    first.symlink_to(elsewhere)
    queues = ConsumeQueues(tmp_path / "data", units_per_file=PER_FILE)
    queues.look()
    assert queues.settle("t", 0)
    assert not first.exists()
    unit = UNIT.pack(80, 100, 0)
    queues.dispatch("t", 0, 0, unit)
    assert first.read_bytes() == unit.ljust(PER_FILE * UNIT_SIZE, b"\0")
    assert elsewhere.read_bytes() == b"of somebody else"
    queues.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_file_that_cannot_be_emptied_is_made_anew(code: int) -> None:
    """A sector of it is lost, or the disk is full: unlinking needs neither."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    queues.flush()
    queues.close()
    whole = broker.files()
    broker.made.disk.fail_next("pwritev", code, "consumequeue")
    again = broker.started(0)
    assert len(broker.files()) < len({path.parent for path in whole})
    broker.dispatch(again)
    assert broker.files() == whole


def test_a_kept_file_that_is_gone_is_made_with_its_first_unit() -> None:
    """Somebody has removed it behind the back of a running node."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    queues.close()
    whole = broker.files()
    again = broker.started(0)
    again.close()
    for path in broker.files():
        broker.made.disk.unlink(path)
    broker.dispatch(again)
    assert broker.files() == whole


def test_a_queue_that_is_laid_out_anew_trusts_no_file_that_was_kept_for_it() -> None:
    """It is as somebody has been at its files."""
    broker = Broker()
    for _ in range(2):
        broker.send("t", 0, [b""] * PER_FILE)
    broker.dispatch(broker.queues())
    queues = broker.queues()
    queues.look()
    queues.expect("t", 0, PER_FILE, first=PER_FILE)
    assert queues.settle("t", 0)
    second = ROOT / "t" / "0" / file_name(PER_FILE * UNIT_SIZE)
    broker.made.disk.spoil(second, UNIT_SIZE, b"x" * UNIT_SIZE)
    queues.lay_out("t", 0)
    unit = UNIT.pack(80, 100, 0)
    queues.dispatch("t", 0, PER_FILE, unit)
    assert broker.files() == {second: unit.ljust(PER_FILE * UNIT_SIZE, b"\0")}


def test_a_topic_that_is_deleted_takes_the_files_along_that_were_kept_for_it() -> None:
    """One of its name, made anew, doesn't look for them."""
    broker = make_broker()
    broker.dispatch(broker.queues())
    whole = broker.files()
    again = broker.started(0)
    again.delete_topic("orders")
    broker.dispatch(again)
    assert {
        path: content for path, content in broker.files().items() if ROOT / "orders" in path.parents
    } == {path: content for path, content in whole.items() if ROOT / "orders" in path.parents}


def test_few_files_are_kept_open_for_many_queues() -> None:
    """A thousand queues must not cost a thousand descriptors."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk, units_per_file=PER_FILE, open_files=4)
    for base in range(12):
        for queue in range(9):
            queues.dispatch("t", queue, base, UNIT.pack(80 + base, 100, 0))
    assert all(queues.max_offset("t", queue) == 12 for queue in range(9))
    assert len(disk.open_handles()) == 4
    queues.close()
    assert disk.open_handles() == []


def test_a_start_leaves_queues_alone_that_end_where_they_should() -> None:
    """Ten thousand of them need not be synced again; where a queue has a unit too many it is cut,
    and synced."""
    broker = make_broker()
    queues = broker.queues()
    broker.dispatch(queues)
    queues.flush()
    queues.close()
    log, disk = broker.made.log, broker.made.disk
    disk.calls.clear()
    broker.started(log.last_index)
    assert not [call for call in disk.calls if call[0] in ("truncate", "unlink", "pwritev")]
    before = broker.files()
    again = broker.started(log.last_index - 1)
    assert broker.files() != before
    broker.dispatch(again, log.last_index)
    assert broker.files() == before


def test_flush_in_steps_of_few_files_covers_all_of_them() -> None:
    """More queues than a step has files; in any order of the steps."""
    broker = Broker()
    for queue_id in range(2 * STEP_FILES + 1):
        broker.send("orders", queue_id, [b"x"])
    queues = broker.queues()
    broker.dispatch(queues)
    before = broker.files()
    for stage in queues.take().stages():
        for step in reversed(stage):
            step()
    queues.close()
    broker.made.disk.power_cut()
    assert broker.files() == before
