"""Which level of formats and commands is in use in a log, for who reads it without being a node.

Commands in the log raise it, a step at a time; where the log begins later than with entry 1, the
state that it begins with says which one was in use there. A log of a level that this program
doesn't know is refused by name (docs/adr/0023-levels.md): its commands would be passed over, as
those that are void are, and what is read would be wrong without a word. A bare copy of a log's
files that begins later has no such state: then nobody knows the level, and what raises it further
is refused all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from crc32c import crc32c

from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.reading.files import opened, read_at
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import SNAPSHOT_FILE, SNAPSHOT_PIECE, file_name
from dledger.records.state_layout import (
    LEVEL,
    LEVEL_SECTION,
    LEVEL_VERSION,
    SNAPSHOT_CHUNK,
    SNAPSHOT_COPY,
    SNAPSHOT_FOLDER,
)

_LOOK_BYTES: Final = 128 << 10  # the level lies within the first pieces, of 32 KiB at most
_HEAD: Final = SNAPSHOT_FILE.run(
    *("magic", "version", "disk_id", "applied_index", "term", "digest", "end_offset")
)
_HEAD_CRC: Final = SNAPSHOT_FILE.run("head_crc")
_FIRST_PIECE_AT: Final = SNAPSHOT_FILE.at("pieces")
_PIECE: Final = SNAPSHOT_PIECE.struct()
_CHUNK: Final = SNAPSHOT_CHUNK.struct()
_KNOWN: Final = (SNAPSHOT_CHUNK.constant("magic"), SNAPSHOT_CHUNK.constant("version"))
_CRC: Final = SNAPSHOT_CHUNK.run("crc")
_LEVEL: Final = LEVEL_SECTION.struct()


def level_behind(level: int | None, wanted: int) -> int | None:
    """The level in use behind a command that is to raise `level` to `wanted`: any but the next one
    changes nothing. Of a level that nobody knows, one beyond what is known may be the next."""
    if level is None:
        return wanted if wanted > KNOWN_LEVEL else None
    return wanted if wanted == level + 1 else level


def level_at_start(log: Survey) -> int | None:
    """The level in use where the log begins; None: nothing says it.

    Raises:
        ObjectsUnreadable, OSError: what says it can't be read.
    """
    if not log.retained_from:
        return FIRST_LEVEL
    if log.start is None or not log.start.index:
        return None
    folder = os.path.join(os.path.dirname(log.commitlog), SNAPSHOT_FOLDER)
    path = os.path.join(folder, file_name(log.start.index))
    unread: OSError | None = None
    for name in (path, path + SNAPSHOT_COPY):
        try:
            with opened(name) as descriptor:
                content = read_at(descriptor, _LOOK_BYTES, 0)
            _check_head(content, log.start)
            return level_in(_pieces(content))
        except (FileNotFoundError, NotADirectoryError, InvalidFrame):
            continue
        except OSError as error:  # the other copy says it as well
            unread = unread or error
    if unread is not None:
        raise unread
    return None


def level_in(chunks: Iterable[bytes]) -> int:
    """The level in use in the state that the chunks are of. No more of them are taken than needed.

    Raises:
        InvalidFrame: they don't say it, in what is known here.
    """
    for chunk in chunks:
        section, version, payload = _opened_chunk(chunk)
        if section != LEVEL.encode():
            continue
        if version != LEVEL_VERSION or len(payload) != _LEVEL.size:
            raise InvalidFrame(0, f"section {LEVEL}", f"version {LEVEL_VERSION}", version)
        (level,) = _LEVEL.unpack(payload)
        return int(level)
    raise InvalidFrame(0, "sections", LEVEL, "none of that name")


def _opened_chunk(chunk: bytes) -> tuple[bytes, int, bytes]:
    """Section, its version and payload.

    Raises:
        InvalidFrame: it isn't what was written.
    """
    if len(chunk) < _CHUNK.size + _CRC.size:
        raise InvalidFrame(0, "size of a chunk", f"at least {_CHUNK.size + _CRC.size}", len(chunk))
    if chunk[-_CRC.size :] != _CRC.pack(crc32c(memoryview(chunk)[: -_CRC.size])):
        raise InvalidFrame(0, "chunk", "its CRC32C", "another")
    magic, envelope, name_size, version, *_ = _CHUNK.unpack_from(chunk)
    if (magic, envelope) != _KNOWN:
        raise InvalidFrame(0, "magic and version of a chunk", _KNOWN, (magic, envelope))
    name_end = _CHUNK.size + name_size
    return chunk[_CHUNK.size : name_end], version, chunk[name_end : -_CRC.size]


def _check_head(content: bytes, start: LogStart) -> None:
    """The file that begins so is the snapshot that the log begins with.

    Raises:
        InvalidFrame: it isn't.
    """
    packed = content[: _HEAD.size]
    if content[_HEAD.size : _FIRST_PIECE_AT] != _HEAD_CRC.pack(crc32c(packed)):
        raise InvalidFrame(0, "head", "its CRC32C", "another")
    _, _, _, *place = _HEAD.unpack(packed)
    wanted = [start.index, start.term, start.digest, start.end_offset]
    if place != wanted:
        raise InvalidFrame(0, "head", wanted, place)


def _pieces(content: bytes) -> Iterator[bytes]:
    """The chunks that lie whole in the beginning of a snapshot's file, behind its head."""
    at = _FIRST_PIECE_AT
    while at + _PIECE.size <= len(content):
        (size,) = _PIECE.unpack_from(content, at)
        at += _PIECE.size
        if not 0 < size <= len(content) - at:
            return
        yield content[at : at + size]
        at += size
