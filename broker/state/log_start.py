"""Where the log may begin: entries before it are retired, by the group's decision.

This owns one index. Every member applies the entry that moves it at the same place of the log, and
drops files when it can (ADR 43); when that is isn't replicated. It never goes back, nor beyond what
is applied.

    state       on                              becomes
    first n     move to m, n < m <= applied     first m
    first n     move to any other               unchanged      (refused: LogStartNotMoved)

A state that nothing was retired from has no section of it in its snapshots, which so are those of
the releases before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import LOG_START_SECTION
from broker.state.refusals import LogStartNotMoved
from broker.state.snapshot import Section, pack, single_record
from dledger.core.errors import InvariantViolation

SECTION: Final = "log-start"
VERSION: Final = 1
FIRST_ENTRY: Final = 1
_OWN: Final = LOG_START_SECTION.struct()


@dataclass(slots=True)
class RetiredThrough:
    """The first entry that is kept, as of the last applied one."""

    first_index: int = field(default=FIRST_ENTRY, init=False)

    def move(self, wanted: int, applied_index: int) -> LogStartNotMoved | None:
        """The log may begin with entry `wanted`; or why nothing has changed."""
        if not self.first_index < wanted <= applied_index:
            return LogStartNotMoved(wanted, self.first_index, applied_index)
        self.first_index = wanted
        return None

    def snapshot(self) -> tuple[Section, ...]:
        """The start as it is now; no section where it is the first entry."""
        if self.first_index == FIRST_ENTRY:
            return ()
        return (Section(SECTION, VERSION, pack((_OWN.pack(self.first_index),))),)

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """It becomes the one that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        (self.first_index,) = single_record(SECTION, payloads, _OWN)
        if self.first_index <= FIRST_ENTRY:
            raise SnapshotDamaged(SECTION, f"more than {FIRST_ENTRY}", self.first_index)

    def check_invariants(self, applied_index: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        if not FIRST_ENTRY <= self.first_index <= max(applied_index, FIRST_ENTRY):
            raise InvariantViolation(f"entries before {self.first_index} are retired")
