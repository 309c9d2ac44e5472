"""What a member knows of entries that it has verified or written, for its next start.

A seal is a file a segment, `<data>/seal/<base>`: of the entries that the segment begins with, up to
one that is committed, on this disk, and noted as both, it says what walking over them would have
found (`store.intact.IntactRun`), and where some of them begin. A start passes over them and reads
what follows; what rots in them is the scrub's to find, as in a member that never stopped
(docs/adr/0037-a-start-reads-what-is-new.md). It must never speak of an entry that may still be cut,
nor of bytes that the checkpoint doesn't know to be durable.

    none ─ a snapshot is named ─▶ up to its entry ─ the next ─▶ … ─▶ the segment's last ─▶ removed

Nothing here is needed: a segment without a seal, or with one that isn't what was written, or that
isn't of these bytes, is walked. `Seals` belongs to the log's owner thread; the steps that it hands
out touch only the seals' files and may run on any thread, one at a time.
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header
from dledger.records.errors import InvalidFrame
from dledger.records.layout import (
    FILE_NAME,
    SEAL,
    SEAL_CONFIGURATION,
    SEAL_MARK,
    SEAL_TERM,
    file_name,
)
from store.atomic_file import replace_file
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound, NotARegularFile, SealRefused
from store.files import LOST_ERRNOS, FileSystem, make_directory, read_exactly
from store.history import History
from store.intact import IntactRun, Known, Marks
from store.segment_reader import LogReader
from store.segments import Segment, SegmentTable

FOLDER: Final = "seal"
MAX_SEAL_BYTES: Final = 16 << 20  # marks of the largest segment are 256 KiB; more is none
SEALS_A_LOOK: Final = 8
_MAGIC: Final = SEAL.constant("magic")
_VERSION: Final = SEAL.constant("version")
_HEAD: Final = SEAL.struct()
_CRC: Final = SEAL.run("crc")
_TERM: Final = SEAL_TERM.struct()
_CONFIGURATION: Final = SEAL_CONFIGURATION.struct()
_WORDS_A_MARK: Final = SEAL_MARK.size // array("I").itemsize


def encode_seal(run: IntactRun, first: bytes, last: bytes) -> bytes:
    """The bytes of a seal. `first`, `last`: the headers, as they lie in the log."""
    terms = b"".join(_TERM.pack(*each) for each in run.terms)
    configurations = b"".join(
        part
        for index, body in run.configurations
        for part in (_CONFIGURATION.pack(index, len(body)), body)
    )
    marks = _pack(run.marks or Marks(array("I"), array("I")))
    sizes = len(terms), len(configurations), len(marks)
    head = _HEAD.pack(_MAGIC, _VERSION, first, last, *sizes)
    content = b"".join((head, terms, configurations, marks))
    return content + _CRC.pack(crc32c(content))


def decode_seal(content: bytes) -> IntactRun:
    """What a seal says; of what, and whether that is so, is the walk's to find out.

    Raises:
        SealRefused: it isn't what was written, or of another version.
    """
    body, crc = content[: -_CRC.size], content[-_CRC.size :]
    if len(body) < _HEAD.size or _CRC.pack(crc32c(body)) != crc:
        raise SealRefused("its CRC32C is another")
    magic, version, first, last, *sizes = _HEAD.unpack_from(body)
    if (magic, version) != (_MAGIC, _VERSION):
        raise SealRefused(f"magic {magic:08x}, version {version}")
    if len(body) != _HEAD.size + sum(sizes):
        raise SealRefused(f"{len(body)} bytes")
    at = _HEAD.size
    parts: list[bytes] = []
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    try:
        run = IntactRun(
            parse_header(first, 0),
            parse_header(last, 0),
            tuple(_TERM.iter_unpack(parts[0])),
            tuple(_configurations(parts[1])),
            _unpack(parts[2]),
        )
    except (InvalidFrame, ValueError) as error:
        raise SealRefused(str(error)) from error
    _check(run)
    return run


def _configurations(packed: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(packed):
        if len(packed) - at < _CONFIGURATION.size:
            raise ValueError("half a configuration")
        index, size = _CONFIGURATION.unpack_from(packed, at)
        at += _CONFIGURATION.size
        yield index, packed[at : at + size]
        at += size


def _pack(marks: Marks) -> bytes:
    words = array("I", bytes(SEAL_MARK.size * len(marks.slots)))
    words[0::_WORDS_A_MARK] = marks.slots
    words[1::_WORDS_A_MARK] = marks.starts
    return _big_endian(words).tobytes()


def _unpack(packed: bytes) -> Marks:
    """Raises ValueError: half a mark."""
    if len(packed) % SEAL_MARK.size:
        raise ValueError("half a mark")
    words = array("I")
    words.frombytes(packed)
    words = _big_endian(words)
    return Marks(words[0::_WORDS_A_MARK], words[1::_WORDS_A_MARK])


def _big_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _check(run: IntactRun) -> None:
    """What it says can be so, of some segment.

    Raises:
        SealRefused: it can't.
    """
    first, last, marks = run.first, run.last, run.marks
    count = last.index - first.index + 1
    inner = last.physical_offset - first.physical_offset
    if count < 1 or inner < 0 or (count == 1) != (inner == 0):
        raise SealRefused(f"entries {first.index} to {last.index} in {inner} bytes")
    for what, indexes in (
        ("terms", [index for index, _ in run.terms]),
        ("configurations", [index for index, _ in run.configurations]),
    ):
        if not _ascends(indexes) or not all(first.index < i <= last.index for i in indexes):
            raise SealRefused(f"{what} of other entries")
    terms = [first.term, *(term for _, term in run.terms)]
    if not _ascends(terms) or terms[-1] != last.term:
        raise SealRefused("terms that go back, or don't lead to the last entry's")
    if marks is None or not marks.slots or (marks.slots[0], marks.starts[0]) != (0, 0):
        raise SealRefused("no mark for the first entry")
    if not (_ascends(marks.slots) and _ascends(marks.starts)):
        raise SealRefused("marks that go back")
    if marks.slots[-1] >= count or marks.starts[-1] > inner:
        raise SealRefused("marks of entries that it doesn't speak of")


def _ascends(values: list[int] | array[int]) -> bool:
    return all(map(operator.lt, values, values[1:]))


def read_seals(files: FileSystem, directory: Path, checkpoint: Checkpoint) -> Known:
    """What the seals of a data directory say of bytes that its checkpoint knows to be durable;
    those that say nothing are passed over, and written anew one day."""
    folder = directory / FOLDER
    runs: list[IntactRun] = []
    with suppress(OSError, NotARegularFile):  # what has the folder's name is none
        for name in _names(files, folder):
            with suppress(OSError, NotARegularFile, SealRefused, CorruptionFound):
                run = decode_seal(_content(files, folder / name))
                if run.base == int(name) and run.base + run.size <= checkpoint.state.watermark:
                    runs.append(run)
    return tuple(runs)


def _names(files: FileSystem, folder: Path) -> list[str]:
    if not files.exists(folder):
        return []
    return sorted(name for name in files.listdir(folder) if FILE_NAME.fullmatch(name))


def _content(files: FileSystem, path: Path) -> bytes:
    handle = files.open(path)
    try:
        size = files.size(handle)
        if size > MAX_SEAL_BYTES:
            raise SealRefused(f"{size} bytes")
        return read_exactly(files, handle, size, 0, str(path))
    finally:
        files.close(handle)


def _remove(files: FileSystem, folder: Path, is_wanted: Callable[[int], bool]) -> None:
    names = [name for name in _names(files, folder) if is_wanted(int(name))]
    for name in names:
        files.unlink(folder / name)
    if names:
        files.fsync_directory(folder)


@dataclass(frozen=True, slots=True)
class SealStep:
    """What is to be done next, on any thread: `run`. Raises OSError, NotARegularFile: not now.

    `base`, `last_index`: the segment, and the entry in it up to which it is sealed then; None where
    seals are removed that nothing is left of.
    """

    run: Callable[[], None]
    base: int
    last_index: int | None


@dataclass(frozen=True, slots=True)
class SealLook:
    """Which of some seals aren't what was written."""

    files: FileSystem
    folder: Path
    bases: tuple[int, ...]

    def run(self) -> list[int]:
        """Their segments' bases. Blocks. Raises OSError: that can't be told now."""
        wrong: list[int] = []
        for base in self.bases:
            try:
                content = _content(self.files, self.folder / file_name(base))
                if content[-_CRC.size :] != _CRC.pack(crc32c(content[: -_CRC.size])):
                    wrong.append(base)
            except (NotARegularFile, SealRefused, CorruptionFound):
                wrong.append(base)
            except OSError as error:
                if error.errno not in LOST_ERRNOS:
                    raise
                wrong.append(base)
        return wrong


class Seals:
    """One log's seals: what `due` gives is run, then told to `finish`, until it gives nothing.

    Args:
        directory: the data directory.
        passed_over: base of a segment to the last entry in it that a seal spoke of at this start.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        table: SegmentTable,
        history: History,
        reader: LogReader,
        passed_over: dict[int, int],
    ) -> None:
        self._files = files
        self._folder = directory / FOLDER
        self._table = table
        self._history = history
        self._reader = reader
        self._sealed = passed_over
        self._next = 0  # every segment of a lower base is wholly sealed
        self._first = 0  # the base of the first segment when seals were last removed

    def due(self, through: int) -> SealStep | None:
        """The next step towards seals of all entries through `through`, which is committed, and
        noted as derived and durable here; None: they are there.

        Raises:
            CorruptionFound: the log has rotted there.
        """
        segments = self._table.segments
        first = segments[0].base
        if first != self._first:
            gone = partial(_remove, self._files, self._folder, lambda base: base < first)
            return SealStep(gone, first, None)
        self._next = max(self._next, first)
        for segment in segments[self._table.position_at(self._next) :]:
            wanted = min(through, segment.first_index + segment.count - 1)
            if wanted < segment.first_index:
                break
            if self._sealed.get(segment.base, 0) < wanted:
                return SealStep(self._writing(segment, wanted), segment.base, wanted)
            self._next = segment.base
        return None

    def finish(self, done: SealStep) -> None:
        """The step has been run."""
        if done.last_index is None:
            self._first = done.base
            self._sealed = {b: last for b, last in self._sealed.items() if b >= done.base}
        else:
            self._sealed[done.base] = done.last_index

    @property
    def folder(self) -> str:
        """Where the seals are."""
        return str(self._folder)

    def path(self, base: int) -> str:
        """The file of the seal of the segment that begins at `base`."""
        return str(self._folder / file_name(base))

    def looks(self) -> Iterator[SealLook]:
        """At the seals that are there, a few at a time; each for any thread."""
        bases = sorted(self._sealed)
        for at in range(0, len(bases), SEALS_A_LOOK):
            yield SealLook(self._files, self._folder, tuple(bases[at : at + SEALS_A_LOOK]))

    def wrong(self, bases: Iterable[int]) -> list[int]:
        """Those of what a look has found that should be there."""
        first = self._table.segments[0].base
        return [base for base in bases if base >= first and base in self._sealed]

    def forget(self, bases: Iterable[int]) -> None:
        """The seals of these segments are none; they are written anew."""
        for base in bases:
            self._sealed.pop(base, None)
            self._next = min(self._next, base)

    def _writing(self, segment: Segment, last_index: int) -> Callable[[], None]:
        run = self._run(segment, last_index)
        content = encode_seal(run, self._bytes_of(run.first), self._bytes_of(run.last))
        return partial(self._write, self._folder / file_name(segment.base), content)

    def _write(self, path: Path, content: bytes) -> None:
        make_directory(self._files, self._folder)
        replace_file(self._files, path, content)

    def _run(self, segment: Segment, last_index: int) -> IntactRun:
        first, history = segment.first_index, self._history
        return IntactRun(
            self._reader.header_at(first),
            self._reader.header_at(last_index),
            tuple(each for each in history.term_runs if first < each[0] <= last_index),
            tuple(each for each in history.configuration_entries if first < each[0] <= last_index),
            segment.starts.marks(last_index - first + 1),
        )

    def _bytes_of(self, header: EntryHeader) -> bytes:
        return self._reader.read_at(header.physical_offset, HEADER_SIZE)
