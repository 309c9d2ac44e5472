"""Lived time: how long the broker group has been at work, by the log alone.

Who is forgotten after a while is forgotten after so much *lived* time, and not after so much time
of a calendar: a clock that steps by years, or a group that stands still for a month, must not make
a retry look new. This owns the one number, and every owner of state that forgets by time compares
with it. It must never look at a clock, nor count a step: replicas would forget differently, or all
at once.

    state           on                                              becomes
    lived n         entry d milliseconds of log time after the last lived n + min(d, 60,000)
    lived n         entry that is no later than the last            lived n
    lived 0         the log's first entry                           lived 0

While entries are appended at least once a minute, lived time runs as the log's own time does
(docs/adr/0026-the-logs-own-clock.md). It never falls, and never runs ahead of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.state.errors import SnapshotUnknown
from broker.state.layout import LIVED_TIME_SECTION
from broker.state.snapshot import Section, pack, single_record
from dledger.core.errors import InvariantViolation

SECTION: Final = "lived-time"
VERSION: Final = 1
MAX_GAP_MS: Final = 60_000  # that counts between two entries; a constant of the format
_RECORD: Final = LIVED_TIME_SECTION.struct()


@dataclass(slots=True)
class LivedTime:
    """Milliseconds lived, as of the last applied entry."""

    lived_ms: int = 0

    def advance(self, before_ms: int, append_time_ms: int) -> None:
        """The next entry is applied.

        Args:
            before_ms: append time of the entry before; 0: there is none.
            append_time_ms: its own.
        """
        if before_ms:
            self.lived_ms += min(max(append_time_ms - before_ms, 0), MAX_GAP_MS)

    def snapshot(self) -> Section:
        """The time as it is now."""
        return Section(SECTION, VERSION, pack((_RECORD.pack(self.lived_ms),)))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """It becomes the one that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        (self.lived_ms,) = single_record(SECTION, payloads, _RECORD)

    def check_invariants(self, append_time_ms: int) -> None:
        """Args:
            append_time_ms: of the last applied entry.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        if not 0 <= self.lived_ms <= append_time_ms:
            raise InvariantViolation(
                f"{self.lived_ms} ms were lived by {append_time_ms} ms of the log's time"
            )
