"""Where a member knows its log to be rotten, for the case that its process ends before that has
been put right.

A start passes over what a seal speaks of (ADR 37), and would forget the doubt that the member was
in: it would vote and acknowledge on what it knew not to hold. So the places are written down in
`<data>/doubt.json` as they are found, and gone when all is sound; a start begins with them. There
is room for so many; a note that is full, or can't be read, doesn't say where all of it is, and the
start after it passes over nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dledger.records.layout import FILE_NAME
from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound, NotARegularFile
from store.files import FileSystem

NAME: Final = "doubt.json"
FORMAT_VERSION: Final = 1
MAX_PLACES: Final = 256  # of the note; that many are a disk to be replaced

# Name of a segment's file, and a byte in it.
Place = tuple[str, int]


class DoubtNote:
    """The note of one data directory. Its methods block."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / NAME

    def read(self) -> list[Place]:
        """The places; none if there is no note that can be read. Raises OSError: not now."""
        try:
            if not self._files.exists(self._path):
                return []
            stored = read_sealed(self._files, self._path)
        except (CorruptionFound, NotARegularFile):
            return []
        places = stored.get("places")
        if stored.get("format_version") != FORMAT_VERSION or not isinstance(places, list):
            return []
        return [(each[0], each[1]) for each in places if _is_place(each)]

    def says_all(self) -> bool:
        """Whether nothing is rotten but what `read` gives, for all that the process before knew.
        Raises OSError: not now."""
        if not self._files.exists(self._path):
            return True
        places = self.read()
        return 0 < len(places) < MAX_PLACES

    def write(self, places: Iterable[Place]) -> None:
        """It holds these, durably; without any there is none. Raises OSError: it may or may not."""
        listed = [list(each) for each in places][:MAX_PLACES]
        if listed:
            fields: dict[str, object] = {"format_version": FORMAT_VERSION, "places": listed}
            write_sealed(self._files, self._path, fields)
        elif self._files.exists(self._path):
            self._files.unlink(self._path)
            self._files.fsync_directory(self._path.parent)


def _is_place(found: object) -> bool:
    match found:
        case [str() as file, int() as at]:
            return FILE_NAME.fullmatch(file) is not None and at >= 0
    return False
