"""What is held against peers, and the look into one's own log that follows a contradiction.

This counts messages that no working peer sends, says so at a bounded rate, and raises the alarm
when a peer contradicts what is settled here. One of the two nodes is wrong then, and a peer's word
must never be what stops this one: the node looks into its own log instead. It reads what is
committed again, from the files, verifies every frame and computes the running digest anew (ADR 6).
If that isn't what the log has always said, the node stops; if it is, the node goes on and says so.
Which of the two logs is wrong the others have to say; whoever asks them is told of contradictions.
The stream of the peer is closed either way, by whoever hears of the refusal.

The look is done in slices, one a tick, so that it never holds the event loop; one at a time, and
not again for a while, so that a peer can't keep the disk busy by contradicting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from dledger.core.errors import Contradiction
from dledger.core.types import Index, NodeId, OwnLogVerified, PeerContradicted, PeerMessageRefused
from dledger.errors import ReplicaDiverged
from dledger.ports import Observer, ReplicatedLog

REPORT_EVERY_TICKS = 500  # five seconds, as a rule: for each peer and kind, a line in the log
MAX_REPORTS = 256  # remembered: members come and go
STRANGERS = NodeId("")  # in reports: all who are no members; they call under any name they like
LOOK_EVERY_TICKS = 6_000  # a minute
LOOK_SLICE_BYTES = 256 << 10  # a tick: about a millisecond

H = TypeVar("H")


@dataclass(slots=True)
class _Look:
    """A look under way: entries `[next, through]` are still to be read."""

    next: int
    through: int
    digest: int  # computed so far


@dataclass(slots=True)
class _Report:
    """What was said of one peer last, and what was not said since."""

    tick: int
    unreported: int = 0


class Doubt(Generic[H]):
    """The doubts of one node; owned by its driver, on the event loop."""

    def __init__(
        self,
        log: ReplicatedLog[H],
        observer: Observer,
        on_contradiction: Callable[[Index], None],
    ) -> None:
        """Args:
        on_contradiction: is told at which entry one of the two logs is wrong.
        """
        self.messages_refused = 0
        self.contradictions = 0
        self._log = log
        self._observer = observer
        self._on_contradiction = on_contradiction
        self._tick = 0
        self._reports: dict[tuple[NodeId, bool], _Report] = {}  # of members, and of strangers
        self._look: _Look | None = None
        self._next_look_tick = 0

    def on_refused(
        self, peer: NodeId, error: Exception, settled_index: Index, members: Collection[NodeId]
    ) -> None:
        """`peer` said what can't be. Up to `settled_index` entries are committed, and durable in
        this node's log; `members` are the group's, as far as that knows."""
        self.messages_refused += 1
        is_contradiction = isinstance(error, Contradiction)
        if isinstance(error, Contradiction):
            self.contradictions += 1
            self._begin_look(min(error.index, settled_index))
            self._on_contradiction(error.index)
        whose = peer if peer in members else STRANGERS
        self._report(whose, peer, str(error), is_contradiction=is_contradiction)

    def on_tick(self) -> None:
        """One tick has passed; goes on with the look under way.

        Raises:
            ReplicaDiverged: this node's log isn't what it says it is. What the log raises for a
                rotten frame passes through. The node must stop.
        """
        self._tick += 1
        look, log = self._look, self._log
        if look is not None and look.next < log.first_index:
            look = self._look = None  # what it was to read is gone: proven, and retired
        if look is None:
            return
        last = log.last_that_fits(look.next, look.through, LOOK_SLICE_BYTES)
        look.digest = log.verify(look.next, last, look.digest)
        look.next = last + 1
        if last < look.through:
            return
        self._look = None
        said = log.digest_at(look.through)
        if said != look.digest:
            raise ReplicaDiverged(look.through, said, look.digest)
        self._observer.on_event(OwnLogVerified(Index(look.through), look.digest))

    def give_up(self) -> None:
        """The look under way is over: its frames are being got back, and proven by that."""
        self._look = None

    def _begin_look(self, index: int) -> None:
        through = min(index, self._log.synced_index)
        first = self._log.first_index
        if self._look is None and through >= first and self._tick >= self._next_look_tick:
            self._next_look_tick = self._tick + LOOK_EVERY_TICKS
            self._look = _Look(first, through, self._log.digest_at(first - 1))

    def _report(self, whose: NodeId, peer: NodeId, reason: str, *, is_contradiction: bool) -> None:
        report = self._reports.get((whose, is_contradiction))
        if report is not None and self._tick - report.tick < REPORT_EVERY_TICKS:
            report.unreported += 1
            return
        unreported = report.unreported if report is not None else 0
        self._reports[whose, is_contradiction] = _Report(self._tick)
        if len(self._reports) > MAX_REPORTS:  # members came and went
            del self._reports[next(iter(self._reports))]
        kind = PeerContradicted if is_contradiction else PeerMessageRefused
        self._observer.on_event(kind(peer, reason, unreported))
