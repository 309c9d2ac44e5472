"""How far a member's scrub has come, for its next process: `<data>/scrub.json`.

It orders work and nothing else: where the next process begins to read, and what it tells of the
last full pass. What is sound is known to nobody but to whoever has read it since the process began.
So a note that is lost, old or wrong costs time, and one that can't be or can't be read says
nothing. Its methods block.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound, NotARegularFile
from store.files import FileSystem

NAME: Final = "scrub.json"
FORMAT_VERSION: Final = 1
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ScrubPlace:
    """Attributes:
    place: the physical offset that the pass under way goes on at; 0: none is, a new one begins.
    worked_ms: how long that pass has taken so far, in all processes.
    ended_ms: when the last full pass ended, by this node's clock; 0: none has.
    took_ms: how long it took.
    """

    place: int = 0
    worked_ms: int = 0
    ended_ms: int = 0
    took_ms: int = 0


NOTHING: Final = ScrubPlace()


class ScrubNote:
    """The note of one data directory."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / NAME

    def read(self, now_ms: int) -> ScrubPlace:
        """What it says, as far as that can be. Nothing ended after now. Raises OSError: not now."""
        try:
            if not self._files.exists(self._path):
                return NOTHING
            stored = read_sealed(self._files, self._path)
        except (CorruptionFound, NotARegularFile):
            return NOTHING
        values = {each.name: stored.get(each.name) for each in fields(ScrubPlace)}
        if stored.get("format_version") != FORMAT_VERSION:
            return NOTHING
        known = {n: v for n, v in values.items() if isinstance(v, int) and 0 <= v < _MOST}
        if len(known) < len(values):
            return NOTHING
        found = ScrubPlace(**known)
        return replace(found, ended_ms=min(found.ended_ms, max(now_ms, 0)))

    def write(self, place: ScrubPlace) -> None:
        """It says so, durably. Raises OSError: it may or may not."""
        write_sealed(self._files, self._path, {"format_version": FORMAT_VERSION, **asdict(place)})
