"""Where a log begins that doesn't begin with entry 1: the bytes of its start note.

Values and bytes only. Who writes the note, and when, is `store.log_start`; who reads a log that
belongs to somebody else needs to know from it where the log rightly begins, and what its first
entry has to continue (docs/adr/0043-a-log-that-begins-later.md). The note is durable before any
file that it gives up is gone, and the checkpoint's `first_offset` follows it: **whoever lists a
folder first and reads the note then finds nothing missing that a drop took.**
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from dledger.reading.errors import ObjectsUnreadable
from dledger.reading.files import opened, read_at
from dledger.records.errors import InvalidFrame
from dledger.records.layout import ATOMIC_FILE, LOG_START

NOTE: Final = "log_start"
MAX_NOTE_BYTES: Final = 1 << 20
_MAGIC: Final = LOG_START.constant("magic")
_VERSION: Final = LOG_START.constant("version")
_HEAD: Final = LOG_START.struct()
_CRC: Final = ATOMIC_FILE.run("crc")


@dataclass(frozen=True, slots=True)
class LogStart:
    """What a log knows of what was before its first entry. All zeros: nothing was, it begins with
    entry 1.

    Attributes:
        index, term, digest, append_time_ms: of the last entry before the first.
        end_offset: the byte behind that one.
        configuration_index, configuration_term: of the configuration in force there; 0: none.
        configuration: the body of that entry.
    """

    index: int = 0
    term: int = 0
    digest: int = 0
    end_offset: int = 0
    append_time_ms: int = 0
    configuration_index: int = 0
    configuration_term: int = 0
    configuration: bytes = b""

    @property
    def first_index(self) -> int:
        """The first entry of the log."""
        return self.index + 1

    def offset(self, segment_size: int) -> int:
        """The physical offset at which the log begins: that of a segment."""
        return -(-self.end_offset // segment_size) * segment_size

    def encode(self) -> bytes:
        """The bytes that stand for it."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.index,
            self.term,
            self.digest,
            self.end_offset,
            self.append_time_ms,
            self.configuration_index,
            self.configuration_term,
            len(self.configuration),
        )
        return head + self.configuration


FROM_THE_FIRST: Final = LogStart()


def decode_start(content: bytes) -> LogStart:
    """The start that `content` stands for.

    Raises:
        InvalidFrame: it stands for none.
    """
    if len(content) < _HEAD.size:
        raise InvalidFrame(0, "size", f"{_HEAD.size} bytes", len(content))
    magic, version, *values, size = _HEAD.unpack_from(content)
    if (magic, version) != (_MAGIC, _VERSION):
        expected = f"magic {_MAGIC:08x} version {_VERSION}"
        raise InvalidFrame(0, "note", expected, f"{magic:08x} {version}")
    if len(content) != _HEAD.size + size:
        raise InvalidFrame(0, "size", f"{_HEAD.size + size} bytes", len(content))
    index, term, digest, end, time_ms, place, place_term = values
    body = content[_HEAD.size :]
    start = LogStart(index, term, digest, end, time_ms, place, place_term, body)
    if not (start.term > 0 and start.configuration_index <= start.index and start.end_offset):
        raise InvalidFrame(0, "note", "the end of an entry", start)
    return start


def start_noted(data: str) -> LogStart | None:
    """What the note of a data directory says; `FROM_THE_FIRST` where there is none, None where it
    can't be read, or says nothing.

    Raises:
        ObjectsUnreadable: a store that holds the directory doesn't answer.
    """
    try:
        with opened(os.path.join(data, NOTE)) as descriptor:
            stored = read_at(descriptor, MAX_NOTE_BYTES, 0)
    except ObjectsUnreadable:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return FROM_THE_FIRST
    except OSError:
        return None
    content, crc = stored[: -_CRC.size], stored[-_CRC.size :]
    if crc != _CRC.pack(crc32c(content)):
        return None
    try:
        return decode_start(content)
    except InvalidFrame:
        return None
