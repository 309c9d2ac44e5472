"""Every byte that is written to disk, described once: fields, offsets, sizes, codes, meanings.

This owns the tables and nothing else. Whoever packs, reads, stamps, decodes or damages such bytes
derives a `struct.Struct`, an offset, a size or a numpy dtype from here (`dledger.reading.dtypes`)
when it is imported, so that one place decides where a field lies and the hot paths still run on
constants. `docs/formats.md` shows the same tables, and a test compares the two. There must never
be a second description: no offset as a number and no format string anywhere else.

All integers are big-endian, and no field is padded to an alignment.

Source: RocketMQ `CommitLog`, `ConsumeQueue`, `StoreCheckpoint`, `MessageDecoder`; DLedger
`DLedgerEntry`. Where we depart from them, `docs/formats.md` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from struct import Struct, calcsize
from typing import Final, NamedTuple

__all__ = [
    "ATOMIC_FILE",
    "BATCH",
    "BATCH_1",
    "BOOT",
    "CHECKPOINT",
    "COMPOUND",
    "COMPOUND_BATCH",
    "COMPOUND_COMMAND",
    "COMPOUND_UNIT",
    "DELETED_FOLDER",
    "ENTRY",
    "FILE_GLOB",
    "FILE_NAME",
    "FILLER",
    "FIRST_RECORD_AT",
    "FIRST_RECORD_AT_1",
    "HARD_STATE",
    "HOST",
    "LAYOUTS",
    "MESSAGE_ID",
    "RECORD",
    "REPAIR_JOURNAL",
    "SEAL",
    "SEAL_CONFIGURATION",
    "SEAL_MARK",
    "SEAL_TERM",
    "SECOND_COPY",
    "SNAPSHOT_FILE",
    "SNAPSHOT_PIECE",
    "TRUNCATION_INTENT",
    "UNFINISHED_NAME",
    "UNIT",
    "UNITS_PER_FILE",
    "VOID_UNIT",
    "Field",
    "Layout",
    "file_name",
    "topic_folder",
]


class Field(NamedTuple):
    """One field of a layout.

    Args:
        offset: its first byte; with `behind`, what has to be added to those lengths.
        code: as `struct` writes it, one field a code: "I", "q", "16s"; "" for bytes of which
            another field says how many they are.
        name: how code calls it, its unit last.
        meaning: how `docs/formats.md` calls it.
        value: what it always holds: a magic, a version.
        length: the letter that stands for how many bytes a field without a code has.
        behind: the letters of the lengths that lie before it: "b + t".
    """

    offset: int
    code: str
    name: str
    meaning: str
    value: int | None = None
    length: str = ""
    behind: str = ""

    @property
    def size(self) -> int:
        """Bytes; 0 when a length says how many."""
        return calcsize(">" + self.code)

    @property
    def row(self) -> tuple[str, str, str]:
        """Byte, size and meaning, as a table shows them."""
        place = " + ".join(filter(None, (str(self.offset or ""), self.behind))) or "0"
        meaning = self.meaning
        if self.value is not None:
            is_magic = self.value > 0xFFFF
            meaning += f" `0x{self.value:08X}`" if is_magic else f": {self.value}"
        return place, self.length or f"{self.size:,}", meaning


class Layout:
    """Fields in the order of their bytes, without gaps; the fixed ones first.

    Args:
        title: the heading over its table in `docs/formats.md`.
        size: bytes of the fixed fields; stated, so that a slip in a code is noticed.

    Raises:
        AssertionError: the fields overlap, leave a gap, or don't have that size.
    """

    __slots__ = ("_fields", "_fixed", "size", "title")

    def __init__(self, title: str, size: int, fields: Iterable[Field]) -> None:
        self.title = title
        self.size = size
        self._fields = {field.name: field for field in fields}
        self._fixed = [each for each in self if each.code and not each.behind]
        end = 0
        for field in self:
            if field.offset != end:
                raise AssertionError(f"{title}: {field.name} is at {field.offset}, not at {end}")
            end += field.size
        if sum(field.size for field in self._fixed) != size:
            raise AssertionError(f"{title}: the fixed fields don't fill {size} bytes")

    def __iter__(self) -> Iterator[Field]:
        return iter(self._fields.values())

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    @property
    def fixed(self) -> list[Field]:
        """The fields that lie at constant places, from byte 0 on."""
        return list(self._fixed)

    def at(self, name: str) -> int:
        """The field's first byte, as `Field.offset`."""
        return self._fields[name].offset

    def end(self, name: str) -> int:
        """The byte behind the field."""
        return self._fields[name].offset + self._fields[name].size

    def constant(self, name: str) -> int:
        """What the field always holds."""
        value = self._fields[name].value
        if value is None:
            raise KeyError(f"{self.title}: {name} isn't always the same")
        return value

    def struct(self, *names: str) -> Struct:
        """Packs the whole of the fixed fields, of which only the named ones are values and the
        others zero; all of them without names."""
        return self._struct(names or [each.name for each in self._fixed], 0, self.size)

    def run(self, *names: str) -> Struct:
        """Packs the bytes from the first of the named fields to the last, what lies between
        them as zeros."""
        return self._struct(names, self.at(names[0]), self.end(names[-1]))

    def _struct(self, names: Iterable[str], start: int, end: int) -> Struct:
        codes, at = ">", start
        for field in map(self._fields.__getitem__, names):
            if field.offset < at or not field.code:
                raise AssertionError(f"{self.title}: {field.name} is out of order")
            codes += f"{field.offset - at}x{field.code}" if field.offset > at else field.code
            at = field.offset + field.size
        return Struct(codes + (f"{end - at}x" if end > at else ""))


# The frame of every entry of the log: this header, then the body.
ENTRY: Final = Layout(
    "Entry frame",
    56,
    (
        Field(0, "I", "total_size", "total size: header and body"),
        Field(4, "I", "magic", "magic", value=0xDAA320D1),
        Field(8, "B", "kind", "kind: 1 no-op, 2 data, 3 command, 4 configuration"),
        Field(9, "B", "version", "version (1 by older releases, 3 of compound data)", value=2),
        Field(10, "H", "record_count", "record count; 0 but for data"),
        Field(12, "I", "crc", "CRC32C over bytes [0,12) and [16,total)"),
        Field(16, "Q", "index", "index, from 1"),
        Field(24, "Q", "term", "term"),
        Field(32, "Q", "physical_offset", "physical offset: P"),
        Field(40, "Q", "append_time_ms", "append time, ms since the epoch"),
        Field(48, "Q", "digest", "digest"),
        Field(56, "", "body", "body", length="n"),
    ),
)

# What fills the rest of a segment that the next entry doesn't fit into: RocketMQ's BLANK.
FILLER: Final = Layout(
    "Filler",
    8,
    (
        Field(0, "I", "size", "bytes left in the segment, these eight included"),
        Field(4, "I", "magic", "magic", value=0xCBD43194),
        Field(8, "", "zeros", "zeros", length="…"),
    ),
)

# Opens the body of a data entry.
BATCH: Final = Layout(
    "Body of a data entry",
    32,
    (
        Field(0, "16s", "producer_id", "producer id; zeros: none"),
        Field(
            16,
            "Q",
            "base_sequence",
            "base sequence: the first record's; the others follow one by one",
        ),
        Field(24, "Q", "incarnation", "incarnation: index of the entry that created the topic"),
        Field(
            32, "", "records", "records back to back, all of one topic and one queue", length="…"
        ),
    ),
)
FIRST_RECORD_AT: Final = ENTRY.size + BATCH.size  # in the frame of a data entry

# The same in entries of version 1, which are read and never written. They don't say which of the
# topics of a name they are for.
BATCH_1: Final = Layout(
    "Body of a data entry of version 1",
    24,
    (
        Field(0, "16s", "producer_id", "producer id; zeros: none"),
        Field(16, "Q", "base_sequence", "base sequence"),
        Field(24, "", "records", "records back to back", length="…"),
    ),
)
FIRST_RECORD_AT_1: Final = ENTRY.size + BATCH_1.size

# The body of a compound entry: a data entry of version 3, which holds units (ADR 54).
COMPOUND: Final = Layout(
    "Body of a compound entry",
    2,
    (
        Field(0, "H", "unit_count", "count of the units, 1 to 1,024"),
        Field(2, "", "units", "units", length="…"),
    ),
)

COMPOUND_UNIT: Final = Layout(
    "Unit of a compound entry",
    8,
    (
        Field(0, "I", "size", "size of the unit, these bytes included"),
        Field(4, "H", "batch_count", "count of its batches, at most 64"),
        Field(6, "H", "command_count", "count of its commands, at most 64; one or the other is"),
        Field(8, "", "parts", "batches, then commands", length="…"),
    ),
)

COMPOUND_BATCH: Final = Layout(
    "Batch of a unit",
    6,
    (
        Field(0, "I", "size", "size of the batch, these bytes included"),
        Field(4, "H", "record_count", "count of its records, at least 1"),
        Field(6, "", "batch", "body as that of a data entry of version 2", length="…"),
    ),
)

COMPOUND_COMMAND: Final = Layout(
    "Command of a unit",
    4,
    (
        Field(0, "I", "size", "size of the command, these bytes included"),
        Field(4, "", "command", "command, as the body of a command entry", length="…"),
    ),
)

# RocketMQ's record, v1 with 8-byte hosts.
RECORD: Final = Layout(
    "Record",
    88,
    (
        Field(0, "I", "total_size", "TOTALSIZE"),
        Field(4, "I", "magic", "MAGICCODE", value=0xDAA320A7),
        Field(8, "I", "body_crc", "BODYCRC: CRC-32 & `0x7fffffff`"),
        Field(12, "i", "queue_id", "QUEUEID"),
        Field(16, "i", "flag", "FLAG, the application's"),
        Field(20, "Q", "queue_offset", "QUEUEOFFSET"),
        Field(28, "Q", "physical_offset", "PHYSICALOFFSET: of byte 0 of this record"),
        Field(
            36,
            "I",
            "sysflag",
            "SYSFLAG: bit 0 the body is compressed, bits 8 to 10 by what; "
            "bits 4 and 5 (IPv6 hosts) are refused",
        ),
        Field(40, "q", "born_time_ms", "BORNTIMESTAMP, ms"),
        Field(48, "8s", "born_host", "BORNHOST: a host"),
        Field(56, "q", "store_time_ms", "STORETIMESTAMP, ms"),
        Field(64, "8s", "store_host", "STOREHOSTADDRESS: a host"),
        Field(72, "i", "reconsume_times", "RECONSUMETIMES"),
        Field(76, "q", "prepared_transaction_offset", "PREPAREDTRANSACTIONOFFSET"),
        Field(84, "I", "body_length", "BODYLENGTH b"),
        Field(88, "", "body", "BODY", length="b"),
        Field(88, "B", "topic_length", "TOPICLENGTH t, 1–127", behind="b"),
        Field(89, "", "topic", "TOPIC: `[A-Za-z0-9_%-]`", length="t", behind="b"),
        Field(89, "H", "properties_length", "PROPERTIESLENGTH p, at most 32,767", behind="b + t"),
        Field(
            91,
            "",
            "properties",
            "PROPERTIES: `name \\x01 value \\x02` …, UTF-8",
            length="p",
            behind="b + t",
        ),
    ),
)

HOST: Final = Layout(
    "Host",
    8,
    (Field(0, "4s", "address", "IPv4 address"), Field(4, "I", "port", "port")),
)

MESSAGE_ID: Final = Layout(
    "Message id",
    16,
    (
        Field(0, "4s", "address", "store host's IPv4 address"),
        Field(4, "I", "port", "store host's port"),
        Field(8, "Q", "physical_offset", "PHYSICALOFFSET"),
    ),
)

UNIT: Final = Layout(
    "ConsumeQueue",
    20,
    (
        Field(0, "Q", "physical_offset", "physical offset of the record"),
        Field(8, "I", "size", "TOTALSIZE of the record"),
        Field(
            12,
            "q",
            "tags_code",
            "tags code: Java's `String.hashCode` of the TAGS property, sign-extended; "
            "0 without one",
        ),
    ),
)

# The unit of a record that was refused with its unit of a compound entry: no reader returns it.
VOID_UNIT: Final = Layout(
    "Void unit",
    20,
    (
        Field(0, "Q", "physical_offset", "physical offset of the record"),
        Field(8, "I", "size", "no size", value=0),
        Field(12, "Q", "mark", "XXH3-64 over the queue offset (8 bytes) and bytes [0,8)"),
    ),
)

UNITS_PER_FILE: Final = 300_000

# Segments and ConsumeQueue files are named by the position of their first byte.
FILE_NAME: Final = re.compile(r"[0-9]{20}")
DELETED_FOLDER: Final = re.compile(r"\.deleted-[0-9]+")  # of a topic that is gone
FILE_GLOB: Final = "[0-9]" * 20
UNFINISHED_NAME: Final = re.compile(FILE_NAME.pattern + r"\.tmp")  # Preallocation, cut short.


def file_name(base: int) -> str:
    """The name of the file whose first byte lies at `base` of the log, or of the queue."""
    return f"{base:020d}"


def topic_folder(topic: str, incarnation: int) -> str:
    """The folder of a topic's ConsumeQueues. Older releases called it by the topic alone."""
    return f"{topic}@{incarnation}"  # No topic's name holds an @.


CHECKPOINT: Final = Layout(
    "Checkpoint",
    4096,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320C1),
        Field(4, "I", "version", "version", value=1),
        Field(8, "I", "crc", "CRC32C of the 4,096 bytes, this field taken as zero"),
        Field(12, "4s", "reserved", "zero"),
        Field(16, "Q", "watermark", "watermark: the log was durable up to this physical offset"),
        Field(24, "Q", "first_offset", "first physical offset of the log"),
        Field(
            32,
            "Q",
            "commit_log_timestamp_ms",
            "commit log timestamp: append time of the last durable entry, ms",
        ),
        Field(
            40,
            "Q",
            "consume_queue_timestamp_ms",
            "consume queue timestamp: append time of the last applied entry, ms",
        ),
        Field(48, "Q", "index_timestamp_ms", "index file timestamp, ms"),
        Field(
            56,
            "Q",
            "consume_queue_index",
            "consume queue index: the units of all entries up to it are durable",
        ),
        Field(64, "4032s", "rest", "zeros"),
    ),
)

# What every small file that is replaced as a whole looks like (`store.atomic_file.AtomicFile`).
ATOMIC_FILE: Final = Layout(
    "Atomic file",
    0,
    (
        Field(0, "", "content", "content", length="n"),
        Field(0, "I", "crc", "CRC32C of the content", behind="n"),
    ),
)

TRUNCATION_INTENT: Final = Layout(
    "Truncation intent",
    16,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320C3),
        Field(4, "I", "version", "version", value=1),
        Field(8, "Q", "cut", "physical offset of the cut"),
    ),
)

REPAIR_JOURNAL: Final = Layout(
    "Repair journal",
    20,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320C7),
        Field(4, "I", "version", "version", value=1),
        Field(8, "Q", "place", "physical offset of the bytes"),
        Field(16, "I", "size", "length n of the bytes"),
        Field(20, "", "frames", "entry frames, back to back", length="n"),
        Field(20, "I", "crc", "CRC32C of all bytes before", behind="n"),
    ),
)

HARD_STATE: Final = Layout(
    "Hard state",
    16,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320E1),
        Field(4, "H", "version", "version", value=1),
        Field(6, "H", "vote_length", "length n of the vote; 0: no vote"),
        Field(8, "Q", "term", "term"),
        Field(16, "", "vote", "vote: node id, UTF-8", length="n"),
        Field(16, "I", "crc", "CRC32C of all bytes before", behind="n"),
    ),
)

# A small file once more (`store.second_copy`), and the start of a node that wrote it.
SECOND_COPY: Final = Layout(
    "Second copy",
    20,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320DB),
        Field(4, "I", "version", "version", value=1),
        Field(8, "Q", "boot_number", "number of the start in which it was written"),
        Field(16, "I", "size", "length n of the content"),
        Field(20, "", "content", "content of the file", length="n"),
        Field(20, "I", "crc", "CRC32C of all bytes before", behind="n"),
    ),
)

BOOT: Final = Layout(
    "Boot number",
    16,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320B7),
        Field(4, "I", "version", "version", value=1),
        Field(8, "Q", "number", "number of the last start, from 1"),
    ),
)

# A snapshot of state (`store.snapshot_files`): this head, each chunk as a piece, an empty one, and
# the sum over all of it.
SNAPSHOT_FILE: Final = Layout(
    "Snapshot file",
    60,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320F5),
        Field(4, "I", "version", "version", value=1),
        Field(8, "16s", "disk_id", "identity of the disk that it was made on"),
        Field(24, "Q", "applied_index", "index of the last entry applied, S"),
        Field(32, "Q", "term", "term of entry S"),
        Field(40, "Q", "digest", "running digest at entry S"),
        Field(48, "Q", "end_offset", "physical offset behind entry S"),
        Field(56, "I", "head_crc", "CRC32C of the bytes before"),
        Field(60, "", "pieces", "pieces, then an empty one", length="p"),
        Field(60, "I", "crc", "CRC32C of all bytes before", behind="p"),
    ),
)

SNAPSHOT_PIECE: Final = Layout(
    "Piece of a snapshot file",
    4,
    (
        Field(0, "I", "size", "size c of the chunk, at most 32,768; 0: there are no more"),
        Field(4, "", "chunk", "chunk of a snapshot", length="c"),
    ),
)

# What a log that doesn't begin with entry 1 knows of what was before (`store.log_start`), and the
# intent to begin anew so.
LOG_START: Final = Layout(
    "Log start",
    72,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320D5),
        Field(4, "I", "version", "version", value=1),
        Field(8, "Q", "index", "index of the last entry before the first, B"),
        Field(16, "Q", "term", "term of entry B"),
        Field(24, "Q", "digest", "running digest at entry B"),
        Field(32, "Q", "end_offset", "physical offset behind entry B"),
        Field(40, "Q", "append_time_ms", "append time of entry B, ms since the epoch"),
        Field(48, "Q", "configuration_index", "index of the configuration in force at B; 0: none"),
        Field(56, "Q", "configuration_term", "term of that entry"),
        Field(64, "Q", "configuration_size", "length n of its body"),
        Field(72, "", "configuration", "body of that entry", length="n"),
    ),
)

# What is known of the entries that a segment begins with (`store.seals`): a start that finds it
# needn't read them.
SEAL: Final = Layout(
    "Seal",
    132,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320D9),
        Field(4, "I", "version", "version", value=1),
        Field(8, "56s", "first", "header of the segment's first entry"),
        Field(64, "56s", "last", "header of the last entry that it speaks of"),
        Field(120, "I", "terms_size", "length t of the terms"),
        Field(124, "I", "configurations_size", "length c of the configurations"),
        Field(128, "I", "marks_size", "length m of the marks"),
        Field(132, "", "terms", "terms that begin behind the first entry", length="t"),
        Field(
            132,
            "",
            "configurations",
            "configurations behind the first entry",
            length="c",
            behind="t",
        ),
        Field(132, "", "marks", "marks, from the first entry on", length="m", behind="t + c"),
        Field(132, "I", "crc", "CRC32C of all bytes before", behind="t + c + m"),
    ),
)

SEAL_TERM: Final = Layout(
    "Term in a seal",
    16,
    (
        Field(0, "Q", "index", "index of the term's first entry"),
        Field(8, "Q", "term", "term"),
    ),
)

SEAL_CONFIGURATION: Final = Layout(
    "Configuration in a seal",
    12,
    (
        Field(0, "Q", "index", "index of the entry"),
        Field(8, "I", "size", "length n of its body"),
        Field(12, "", "body", "body of that entry", length="n"),
    ),
)

SEAL_MARK: Final = Layout(
    "Mark in a seal",
    8,
    (
        Field(0, "I", "slot", "number of an entry in its segment, from 0"),
        Field(4, "I", "start", "where it begins in the file"),
    ),
)

LAYOUTS: Final = (
    ENTRY,
    FILLER,
    BATCH,
    BATCH_1,
    COMPOUND,
    COMPOUND_UNIT,
    COMPOUND_BATCH,
    COMPOUND_COMMAND,
    RECORD,
    HOST,
    MESSAGE_ID,
    UNIT,
    VOID_UNIT,
    CHECKPOINT,
    ATOMIC_FILE,
    TRUNCATION_INTENT,
    REPAIR_JOURNAL,
    HARD_STATE,
    SECOND_COPY,
    BOOT,
    SNAPSHOT_FILE,
    SNAPSHOT_PIECE,
    LOG_START,
    SEAL,
    SEAL_TERM,
    SEAL_CONFIGURATION,
    SEAL_MARK,
)
