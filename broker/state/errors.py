"""Why bytes are no snapshot of the state.

SnapshotRefused             nothing was restored; trying the same bytes again won't help
├── SnapshotDamaged         a chunk is not what was written, or not in its place
├── SnapshotIncomplete      the chunks end before the snapshot does
└── SnapshotUnknown         a section or layout of a later version
    ├── SnapshotOfLaterLevel        the group uses a level that this program doesn't know
    └── SnapshotAppliedOtherwise    the same log gives another state by this program
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import Outcome


class SnapshotRefused(Exception):
    """The chunks give no state."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN


class SnapshotDamaged(SnapshotRefused):
    """A chunk is not what was written. `where` names the chunk or its section."""

    def __init__(self, where: str, expected: object, found: object) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}")
        self.where = where
        self.expected = expected
        self.found = found


class SnapshotIncomplete(SnapshotRefused):
    """There are `chunks` chunks, and none of them is the end."""

    def __init__(self, chunks: int) -> None:
        super().__init__(f"the snapshot breaks off after {chunks} chunks")
        self.chunks = chunks


class SnapshotUnknown(SnapshotRefused):
    """No section of that name and version is known."""

    def __init__(self, section: str, version: int) -> None:
        super().__init__(f"section {section!r} of version {version} is not known here")
        self.section = section
        self.version = version


class SnapshotOfLaterLevel(SnapshotUnknown):
    """A later program made the state, behind a raise in front of which this one would stop."""

    def __init__(self, level: int, known: int) -> None:
        super().__init__("level", level)
        self.level = level
        self.known = known

    def __str__(self) -> str:
        return f"the group uses level {self.level}, and this program knows level {self.known}"


class SnapshotAppliedOtherwise(SnapshotUnknown):
    """An earlier or later program made the state, by rules that aren't this one's."""

    def __init__(self, section: str, version: int, own: int) -> None:
        super().__init__(section, version)
        self.own = own

    def __str__(self) -> str:
        return (
            f"section {self.section!r} of version {self.version}: the log was applied by other "
            f"rules than this program's, version {self.own}"
        )
