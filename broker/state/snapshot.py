"""The state as a sequence of chunks: what each owner writes, in one envelope.

This owns the envelope and the few ways in which owners pack values; what the values mean is the
owners'. A chunk has at most `MAX_CHUNK_BYTES`, so that whoever sends, stores or applies one never
holds more, and making one takes a few milliseconds: a caller on the event loop takes a chunk,
lets others run, takes the next. The same state gives the same bytes on every node.

Each chunk carries a CRC32C, its number and the index of the last entry that the state has applied
(`broker.state.layout`). The last one's section is "end"; its payload is the count of the chunks
before it. Without it, chunks that were cut off at the end would pass for a smaller state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.state.errors import SnapshotDamaged, SnapshotIncomplete, SnapshotUnknown
from dledger.core.errors import InvariantViolation
from dledger.records.state_layout import SNAPSHOT_CHUNK, SNAPSHOT_END, TOPICS_SECTION

MAX_CHUNK_BYTES: Final = 32 << 10
MAX_NAME_BYTES: Final = 32  # of a section
MAX_TEXT_BYTES: Final = 4_096  # of a topic's or group's name; what callers may choose is far below
END: Final = "end"
END_VERSION: Final = 1
_HEAD: Final = SNAPSHOT_CHUNK.struct()
_CRC: Final = SNAPSHOT_CHUNK.run("crc")
_MAGIC: Final = SNAPSHOT_CHUNK.constant("magic")
_VERSION: Final = SNAPSHOT_CHUNK.constant("version")
_COUNT: Final = SNAPSHOT_END.struct()
_TEXT_LENGTH: Final = TOPICS_SECTION.run("name_length")  # of any text
MAX_PAYLOAD_BYTES: Final = MAX_CHUNK_BYTES - _HEAD.size - MAX_NAME_BYTES - _CRC.size


class Section(NamedTuple):
    """What one owner writes. `payloads` are made while they are taken, from the state as it was
    when the section was made."""

    name: str
    version: int
    payloads: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that was checked."""

    applied_index: int
    section: str
    version: int
    payload: bytes


# --- writing ----------------------------------------------------------------------------------


def seal(applied_index: int, sections: Sequence[Section]) -> Iterator[bytes]:
    """The chunks of a snapshot, its end included, made one by one as they are taken."""
    number = 0
    for section in sections:
        for payload in section.payloads:
            yield _seal_one(applied_index, number, section, payload)
            number += 1
    end = Section(END, END_VERSION, iter(()))
    yield _seal_one(applied_index, number, end, _COUNT.pack(number))


def _seal_one(applied_index: int, number: int, section: Section, payload: bytes) -> bytes:
    name = section.name.encode("ascii")
    if len(payload) > MAX_PAYLOAD_BYTES or len(name) > MAX_NAME_BYTES:
        raise InvariantViolation(
            f"chunk {number} of {section.name} has a payload of {len(payload)} bytes, "
            f"the limit is {MAX_PAYLOAD_BYTES}"
        )
    head = _HEAD.pack(
        _MAGIC,
        _VERSION,
        len(name),
        section.version,
        applied_index,
        number,
        len(payload),
    )
    content = b"".join((head, name, payload))
    return content + _CRC.pack(crc32c(content))


def pack(records: Iterable[bytes]) -> Iterator[bytes]:
    """Payloads of whole records, as many in each as fit; one empty payload if there are none."""
    gathered: list[bytes] = []
    size = 0
    for record in records:
        if size + len(record) > MAX_PAYLOAD_BYTES and gathered:
            yield b"".join(gathered)
            gathered, size = [], 0
        gathered.append(record)
        size += len(record)
    yield b"".join(gathered)


def pack_text(text: str, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """A length of 2 bytes, and the text in UTF-8."""
    encoded = text.encode("utf-8")
    if len(encoded) > max_bytes:
        raise InvariantViolation(f"a text of {len(encoded)} bytes is in the state")
    return _TEXT_LENGTH.pack(len(encoded)) + encoded


# --- reading ----------------------------------------------------------------------------------


def unseal(chunks: Iterable[bytes]) -> Iterator[Chunk]:
    """The chunks of one whole snapshot, each checked; the end is checked and left out.

    Raises:
        SnapshotDamaged, SnapshotUnknown: at the chunk that can't be read.
        SnapshotIncomplete: after the last one, if it isn't the end.
    """
    number = 0
    applied_index = None
    is_ended = False
    for content in chunks:
        if is_ended:
            raise SnapshotDamaged(f"chunk {number}", "nothing behind the end", "a chunk")
        chunk = _unseal_one(content, number)
        if applied_index not in (None, chunk.applied_index):
            raise SnapshotDamaged(
                f"chunk {number}", f"state at entry {applied_index}", chunk.applied_index
            )
        applied_index = chunk.applied_index
        if chunk.section == END:
            _check_end(chunk, number)
            is_ended = True
        else:
            yield chunk
        number += 1
    if not is_ended:
        raise SnapshotIncomplete(number)


def _unseal_one(content: bytes, number: int) -> Chunk:
    where = f"chunk {number}"
    if not _HEAD.size + _CRC.size <= len(content) <= MAX_CHUNK_BYTES:
        raise SnapshotDamaged(where, f"at most {MAX_CHUNK_BYTES} bytes", len(content))
    magic, envelope, name_size, version, applied_index, found, size = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise SnapshotDamaged(where, _MAGIC, magic)
    (crc,) = _CRC.unpack_from(content, len(content) - _CRC.size)
    if crc != crc32c(memoryview(content)[: -_CRC.size]):
        raise SnapshotDamaged(where, "its CRC32C", crc)
    if envelope != _VERSION:
        raise SnapshotUnknown("envelope", envelope)
    if found != number:
        raise SnapshotDamaged(where, f"number {number}", found)
    payload_at = _HEAD.size + name_size
    if payload_at + size + _CRC.size != len(content):
        raise SnapshotDamaged(where, f"{payload_at + size + _CRC.size} bytes", len(content))
    section = content[_HEAD.size : payload_at].decode("ascii", errors="replace")
    return Chunk(applied_index, section, version, content[payload_at : -_CRC.size])


def _check_end(chunk: Chunk, number: int) -> None:
    if chunk.version != END_VERSION:
        raise SnapshotUnknown(END, chunk.version)
    if chunk.payload != _COUNT.pack(number):
        raise SnapshotDamaged("end", f"{number} chunks", chunk.payload.hex())


class PayloadReader:
    """Reads the values of one payload in turn."""

    def __init__(self, section: str, payload: bytes) -> None:
        self._section = section
        self._payload = payload
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._payload)

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next values, laid out so.

        Raises:
            SnapshotDamaged: the payload ends before.
        """
        at = self._step(layout.size)
        return layout.unpack_from(self._payload, at)

    def take_many(self, layout: struct.Struct, count: int) -> Iterator[tuple[int, ...]]:
        """The next `count` groups of values, each laid out so; see `take`."""
        return layout.iter_unpack(self.take_bytes(layout.size * count))

    def take_bytes(self, size: int) -> bytes:
        """The next `size` bytes; see `take`."""
        at = self._step(size)
        return self._payload[at : at + size]

    def take_text(self) -> str:
        """What `pack_text` wrote; see `take`."""
        (size,) = self.take(_TEXT_LENGTH)
        try:
            return self.take_bytes(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SnapshotDamaged(self._section, "UTF-8", str(error)) from error

    def _step(self, size: int) -> int:
        at, end = self._at, self._at + size
        if end > len(self._payload):
            raise SnapshotDamaged(self._section, f"{end} bytes", len(self._payload))
        self._at = end
        return at


def single_record(
    section: str, payloads: Iterable[bytes], layout: struct.Struct
) -> tuple[int, ...]:
    """The values of a section that is one record and nothing else.

    Raises:
        SnapshotDamaged: it is less, or more.
    """
    reader = PayloadReader(section, b"".join(payloads))
    values = reader.take(layout)
    if not reader.is_at_end:
        raise SnapshotDamaged(section, "one record", "more")
    return values
