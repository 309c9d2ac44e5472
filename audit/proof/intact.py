"""What an audit has read of a log, for the start that it rehearses: so that nothing is read twice.

A segment's entries are told as a run (`store.intact`) where nothing at all was found in it. They
were read at a replica's own file, or at another's all of whose blocks are equal; either way the
replica's file was hashed, and is the one that was, as its state tells: taken before its first byte
is read, and again when the rehearsal is over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from audit.proof.chain import Chain
from audit.proof.digest import PartDigests
from audit.reading.file_state import FileState, state_of
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind
from dledger.records.layout import file_name
from store.intact import IntactRun

# More of these no group has; a log that has is rehearsed as if nothing of it were known.
MAX_TERMS: Final = 1000
MAX_CONFIGURATION_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The run of a file that was in this state before it was read."""

    run: IntactRun
    state: FileState

    def still_stands(self, commitlog: str) -> bool:
        """Whether the file is as it was."""
        try:
            return state_of(os.path.join(commitlog, file_name(self.run.base))) == self.state
        except OSError:
            return False


def read_runs(parts: Iterable[PartDigests], chains: Iterable[Chain]) -> dict[str, list[ReadRun]]:
    """By replica, the runs of those segments of which all parts were hashed in one state of the
    file."""
    states: dict[tuple[str, int], set[FileState | None]] = {}
    for part in parts:
        state = part.state if part.problem is None else None
        states.setdefault((part.replica, part.base), set()).add(state)
    found: dict[str, list[ReadRun]] = {}
    for chain in chains:
        known = states.get((chain.replica, chain.base), set())
        state = next(iter(known)) if len(known) == 1 else None
        if chain.run is not None and state is not None:
            found.setdefault(chain.replica, []).append(ReadRun(chain.run, state))
    return found


@dataclass(slots=True)
class Growing:
    """A run that is still read, entry by entry."""

    _first: EntryHeader | None = None
    _last: EntryHeader | None = None
    _terms: list[tuple[int, int]] = field(default_factory=list)
    _configurations: list[tuple[int, bytes]] = field(default_factory=list)
    _configuration_bytes: int = 0

    def add(self, header: EntryHeader, frame: Callable[[], bytes]) -> None:
        """The entry is the last one; `frame` gives its bytes."""
        if self._last is None:
            self._first = self._last = header
            return
        if header.term != self._last.term and len(self._terms) <= MAX_TERMS:
            self._terms.append((header.index, header.term))
        if (
            header.kind == EntryKind.CONFIGURATION
            and self._configuration_bytes <= MAX_CONFIGURATION_BYTES
        ):
            self._configurations.append((header.index, frame()[HEADER_SIZE:]))
            self._configuration_bytes += header.total_size
        self._last = header

    def told(self) -> IntactRun | None:
        """The run; None if there is none, or if it is too much to be told."""
        if (
            self._first is None
            or self._last is None
            or len(self._terms) > MAX_TERMS
            or self._configuration_bytes > MAX_CONFIGURATION_BYTES
        ):
            return None
        return IntactRun(self._first, self._last, tuple(self._terms), tuple(self._configurations))
