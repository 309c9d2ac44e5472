"""Outcomes: which units with records were refused, until the log itself says so (ADR 54).

A unit is refused by the state before its entry, which who reads the log as data hasn't got. So
the log says it: a command names the refused units of all entries up to one, and is applied only if
it says what this owner knows. What lies behind the last such command isn't settled, and nobody
reads it as data yet. Entries without records have nothing to settle.

    state               on                            becomes
    settled             entry n with records          unsettled to n
    unsettled to m      entry n with records          unsettled to n
    unsettled to m      settle to k < m, as it is     unsettled to m, of k nothing is kept
    unsettled to m      settle to m, as it is         settled
    any                 settle otherwise              unchanged         (refused: OutcomesDiffer)

Bounds: the refused units of what is unsettled. That is what waited in front of the command that is
to settle it: for one a leader has room always (`broker.leader.units_room`). A state in which all is
settled has no section of it in its snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import OUTCOMES_SECTION, REFUSED_UNIT
from broker.state.refusals import OutcomesDiffer
from broker.state.snapshot import PayloadReader, Section, pack
from dledger.core.errors import InvariantViolation
from dledger.reading.compound import MAX_UNITS

SECTION: Final = "unit-outcomes"
VERSION: Final = 1
MAX_SETTLED: Final = MAX_UNITS  # refused units in one command: as many as an entry can hold
_HEAD: Final = OUTCOMES_SECTION.run("through", "count")
_REFUSED: Final = REFUSED_UNIT.struct()
_UNITS_IN_RECORD: Final = 1_024


class RefusedUnit(NamedTuple):
    """Unit `unit` of the entry at `index`."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a unit for
    unit: int


class Settlement(NamedTuple):
    """Of the units with records in entries up to `through`, those that were refused."""

    through: int
    refused: tuple[RefusedUnit, ...]


@dataclass(slots=True)
class Outcomes:
    """What isn't settled, as of the last applied entry."""

    unsettled_to: int = field(default=0, init=False)  # 0: all is settled
    refused: list[RefusedUnit] = field(default_factory=list, init=False)

    def note(self, index: int, refused: Iterable[int]) -> None:
        """Entry `index`, which holds records, was applied; of its units with records these were
        refused."""
        self.unsettled_to = index
        self.refused += [RefusedUnit(index, unit) for unit in refused]

    def to_settle(self) -> Settlement | None:
        """What can be settled now, in one command; None if all is."""
        if not self.unsettled_to:
            return None
        through = self.unsettled_to
        if len(self.refused) > MAX_SETTLED:
            through = self.refused[MAX_SETTLED].index - 1
        return Settlement(through, self._upto(through))

    def refusal_of(self, said: Settlement) -> OutcomesDiffer | None:
        """Why it isn't so; None if it is."""
        known = self._upto(said.through)
        if not 0 < said.through <= self.unsettled_to or said.refused != known:
            return OutcomesDiffer(said.through, len(known), len(said.refused))
        return None

    def settle(self, said: Settlement) -> None:
        """The log has said it; `refusal_of` was asked before."""
        del self.refused[: len(said.refused)]
        if said.through == self.unsettled_to:
            self.unsettled_to = 0

    def _upto(self, index: int) -> tuple[RefusedUnit, ...]:
        return tuple(each for each in self.refused if each.index <= index)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The outcomes as they are now; no section where all is settled."""
        if not self.unsettled_to:
            return ()
        records = _records(self.unsettled_to, tuple(self.refused))
        return (Section(SECTION, VERSION, pack(records)),)

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """They become those that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                through, count = reader.take(_HEAD)
                if not through or self.unsettled_to not in (0, through):
                    raise SnapshotDamaged(SECTION, self.unsettled_to, through)
                self.unsettled_to = through
                self.refused += [RefusedUnit(*each) for each in reader.take_many(_REFUSED, count)]

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, applied_index: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        ascending = self.refused == sorted(set(self.refused))
        last = self.refused[-1].index if self.refused else 0
        if not ascending or last > self.unsettled_to or self.unsettled_to > applied_index:
            raise InvariantViolation(f"unsettled to {self.unsettled_to}, refused {self.refused}")
        if any(not 0 <= each.unit < MAX_UNITS or each.index < 1 for each in self.refused):
            raise InvariantViolation(f"refused {self.refused}")


def _records(through: int, refused: Sequence[RefusedUnit]) -> Iterator[bytes]:
    """Many take several records, so that none is long."""
    for first in range(0, max(1, len(refused)), _UNITS_IN_RECORD):
        part = refused[first : first + _UNITS_IN_RECORD]
        yield _HEAD.pack(through, len(part)) + b"".join([_REFUSED.pack(*each) for each in part])
