"""Attempts: how often the message at the front of a group's queue has failed (ADR 63).

This owns one number for a queue that a group leases: of the message at the group's frontier, how
often its handlers have failed and, besides, how many sessions that held the queue ended without a
goodbye while it was there: for what kills its process nobody else counts. Of messages behind the
frontier nothing is known. Whoever holds the queue next goes on counting.

A member has many queues, and what killed it was in one of them at most. So such an end counts for
all of them only until the next holders are *careful* (`careful_from`): c times. From there on it
counts for a message that its holder, by the epoch of its lease, said to have *begun*: those have
nothing else in hand.

    state                     on                                      becomes
    nothing                   failed once, at the frontier            1
    nothing, or n < c         its holder's session ends, no goodbye   1, or n + 1
    n >= c, begun by e        that of epoch e ends, no goodbye        n + 1
    n >= c, otherwise         its holder's session ends, no goodbye   n
    n                         commit by e that says begun, or not     n, begun by e, or not begun
    n                         failed n + 1 times, by who holds it     n + 1, not begun
    n                         failed m times, m is not n + 1          unchanged  (refused: Counted)
    any                       the frontier is another                 nothing
    any                       the topic is deleted, or the group
                              is forgotten                            nothing

The frontier is `broker.state.offsets`' and who holds a queue `broker.state.leases`': whoever knows
several owners asks those first. Bound: one for each queue in which a group has a start. A state in
which nothing was counted has no section.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import FAILURES_SECTION
from broker.state.leases import Place
from broker.state.refusals import CountedAlready
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation
from dledger.records.reserved import CAREFUL_AFTER, CAREFUL_IN_ORDER

SECTION: Final = "failures"
OWN_SECTIONS: Final = (SECTION,)
VERSION: Final = 1
MAX_FAILURES: Final = (1 << 16) - 1  # it fails on, and is counted no more
_OWN: Final = FAILURES_SECTION.run("incarnation", "queue_id", "offset", "failures", "begun")


class Failed(NamedTuple):
    """The message at that offset has failed so often. `begun`: epoch of the lease by which it is
    the only one in its holder's hand; 0: nobody has said so. It is of no use once that lease is
    over, and stays."""

    offset: int
    failures: int
    begun: int = 0


def careful_from(*, is_orderly: bool) -> int:
    """After how many failures of the message in front who holds its queue is careful."""
    return CAREFUL_IN_ORDER if is_orderly else CAREFUL_AFTER


@dataclass(slots=True)
class Attempts:
    """As of the last applied entry. What is compared is replicated state; `_topics` has the same
    places by incarnation: one entry may delete hundreds of topics, in one turn."""

    _failed: dict[Place, Failed] = field(default_factory=dict, init=False)
    _topics: dict[int, set[Place]] = field(default_factory=dict, init=False, compare=False)

    # --- reading ------------------------------------------------------------------------------

    def of(self, place: Place, offset: int) -> int:
        """How often the message at that offset of the queue has failed, as far as it is known."""
        found = self._failed.get(place)
        return found.failures if found is not None and found.offset == offset else 0

    def places(self) -> Mapping[Place, Failed]:
        """All that is known."""
        return MappingProxyType(self._failed)

    def in_topic(self, incarnation: int) -> list[Place]:
        """The topic's queues of which anything is known, in order."""
        return sorted(self._topics.get(incarnation, ()))

    def refusal_of(self, place: Place, failed: Failed) -> CountedAlready | None:
        """Why a failure isn't counted; None if it is."""
        known = self.of(place, failed.offset)
        if failed.failures != known + 1 or known >= MAX_FAILURES:
            return CountedAlready(place.queue_id, known)
        return None

    # --- transitions --------------------------------------------------------------------------

    def fail(self, place: Place, offset: int) -> None:
        """The message there, which is at the frontier, has failed once more."""
        failures = min(self.of(place, offset) + 1, MAX_FAILURES)
        self._put(place, Failed(offset, failures))

    def vanish(self, place: Place, offset: int, epoch: int, careful: int) -> None:
        """Who held the queue by that epoch said no goodbye, and the message there is at the
        frontier. `careful`: after so many failures it is to blame only if it was begun."""
        found = self._failed.get(place)
        if found is None or found.failures < careful or found.begun == epoch:
            self.fail(place, offset)

    def begin(self, place: Place, epoch: int) -> None:
        """The message at the frontier is all that the queue's holder, by that epoch, is at work on;
        0: it isn't. Of one that hasn't failed nothing is kept."""
        found = self._failed.get(place)
        if found is not None and found.begun != epoch:
            self._failed[place] = found._replace(begun=epoch)

    def _put(self, place: Place, failed: Failed) -> None:
        self._failed[place] = failed
        self._topics.setdefault(place.incarnation, set()).add(place)

    def on_frontier(self, place: Place, frontier: int) -> None:
        """The group's frontier in the queue is that now."""
        found = self._failed.get(place)
        if found is not None and found.offset != frontier:
            self._drop([place])

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of the topic. Others aren't looked at."""
        self._drop(tuple(self._topics.get(incarnation, ())))

    def on_group_forgotten(self, group: str) -> None:
        """Nothing is known of the group."""
        self._drop([each for each in self._failed if each.group == group])

    def _drop(self, places: Iterable[Place]) -> None:
        for place in places:
            del self._failed[place]
            topic = self._topics[place.incarnation]
            topic.remove(place)
            if not topic:
                del self._topics[place.incarnation]

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The state as it is now, whatever is applied while the payloads are taken."""
        if not self._failed:
            return ()
        return (Section(SECTION, VERSION, pack(_records(self._failed.copy()))),)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """Nothing becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                group = reader.take_text()
                incarnation, queue_id, offset, failures, begun = reader.take(_OWN)
                place = Place(group, incarnation, queue_id)
                if place in self._failed or not failures:
                    raise SnapshotDamaged(section, "failures of each queue once", place)
                self._put(place, Failed(offset, failures, begun))

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, applied_index: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        for place, failed in self._failed.items():
            is_possible = failed.offset >= 0 <= failed.begun <= applied_index
            if not 0 < failed.failures <= MAX_FAILURES or not is_possible:
                raise InvariantViolation(f"{place}: {failed}")
        by_topic = [(each.incarnation, each) for each in self._failed]
        kept = [(incarnation, each) for incarnation, of in self._topics.items() for each in of]
        if sorted(kept) != sorted(by_topic) or not all(self._topics.values()):
            raise InvariantViolation(f"{len(by_topic)} failures, {len(kept)} by topic")


def _records(failed: Mapping[Place, Failed]) -> Iterator[bytes]:
    for place, each in sorted(failed.items()):
        yield pack_text(place.group) + _OWN.pack(place.incarnation, place.queue_id, *each)
