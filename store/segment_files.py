"""The segment files of a log, as recovery finds them.

This lists and opens them and checks what can be checked without reading: names, order, sizes. It
must never make up for a file that is missing: a log that was silently shortened lets a node vote
for a candidate that lacks a committed entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dledger.reading.log_start import NOTE
from dledger.records.layout import FILE_NAME, UNFINISHED_NAME, file_name
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound
from store.files import FileSystem
from store.segments import Segment


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """`bases` are the physical offsets in the names, ascending; `foreign` names are none of
    ours and are left alone; `leftovers` are unfinished preallocations."""

    bases: tuple[int, ...]
    foreign: tuple[str, ...]
    leftovers: tuple[str, ...]


def find_segment_files(files: FileSystem, directory: Path) -> FoundFiles:
    """What lies in the commit log's directory."""
    names = files.listdir(directory)
    ours = [name for name in names if FILE_NAME.fullmatch(name)]
    leftovers = [name for name in names if UNFINISHED_NAME.fullmatch(name)]
    foreign = [name for name in names if name not in ours and name not in leftovers]
    return FoundFiles(tuple(sorted(map(int, ours))), tuple(foreign), tuple(leftovers))


def check_bases(
    directory: Path,
    bases: tuple[int, ...],
    segment_size: int,
    checkpoint: Checkpoint,
    begins_at: int,
) -> None:
    """The files are those of one log without a gap, from where it is known to begin.

    Args:
        begins_at: the base of its first segment, as its start note says.

    Raises:
        CorruptionFound: one is missing, or one has a name that no segment can have.
    """
    state = checkpoint.state
    if state.first_offset > begins_at:
        note = directory.parent / NOTE
        noted = f"a log that begins at {state.first_offset}, as the checkpoint says"
        raise CorruptionFound(str(note), 0, noted, f"one that begins at {begins_at}")
    first = str(directory / file_name(begins_at))
    if not bases:
        if state.watermark > begins_at:
            raise CorruptionFound(first, 0, "a segment", "no file")
        return
    if bases[0] > begins_at:
        raise CorruptionFound(first, 0, "a segment", f"the log begins at {bases[0]}")
    for position, base in enumerate(bases):
        expected = bases[0] - bases[0] % segment_size + position * segment_size
        if base != expected:
            missing = directory / file_name(expected)
            raise CorruptionFound(str(missing), 0, "a segment", f"{file_name(base)} instead")


def open_segment(files: FileSystem, path: Path) -> Segment:
    """The segment at `path`, opened; its size is not yet checked."""
    return Segment(int(path.name), path, files.open(path))


def check_size(
    files: FileSystem, segment: Segment, segment_size: int, *, tail_from: int | None
) -> bool:
    """The segment has its full size; True if it had to be given it.

    A file gets its name only at its full size, so a short one was shortened. That loses nothing
    if all that is missing lies beyond the durable watermark.

    Args:
        tail_from: for the last segment, the watermark if it is known; None otherwise.

    Raises:
        CorruptionFound: too long, or too short in a place that counts.
    """
    size = files.size(segment.handle)
    if size == segment_size:
        return False
    if size > segment_size or tail_from is None or segment.base + size < tail_from:
        at = min(size, segment_size)
        raise CorruptionFound(str(segment.path), at, f"{segment_size} bytes", f"{size} bytes")
    files.fallocate(segment.handle, segment_size)
    files.fsync(segment.handle)
    return True
