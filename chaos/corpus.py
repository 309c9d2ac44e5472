"""Real text with an order that can be checked: the files of the standard library, by lines.

This owns what a run sends and what the originals were; it knows nothing of how they travel.
Lines keep their endings and are bytes throughout, so a file is the concatenation of its lines.
"""

from __future__ import annotations

import hashlib
import io
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One line of a file; `number` counts from 0."""

    file: str
    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was read."""

    name: str
    sha256: str
    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The files of one run."""

    files: tuple[SourceFile, ...]

    @property
    def line_count(self) -> int:
        """Lines of all files together."""
        return sum(len(file.lines) for file in self.files)

    def interleaved(self) -> Iterator[Line]:
        """A line of each file in turn, each file's lines in their order.

        In turn, because order that holds only while one file is sent at a time is no order.
        """
        running = [(file.name, enumerate(file.lines)) for file in self.files]
        while running:
            still = []
            for name, lines in running:
                if (next_line := next(lines, None)) is not None:
                    yield Line(name, *next_line)
                    still.append((name, lines))
            running = still


def read_corpus(paths: Sequence[Path]) -> Corpus:
    """The files at `paths`, whose names must differ.

    Raises:
        OSError: one can't be read.
    """
    files = []
    for path in sorted(paths):
        content = path.read_bytes()
        lines = tuple(io.BytesIO(content))  # ends lines at \n only
        files.append(SourceFile(path.name, hashlib.sha256(content).hexdigest(), lines))
    return Corpus(tuple(files))


def standard_library(limit: int | None = None) -> Corpus:
    """Every top-level .py file of the running Python's standard library, or the first `limit`."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return read_corpus(paths[:limit])
