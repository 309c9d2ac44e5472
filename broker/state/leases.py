"""Leases: which session of a group holds which queue, and what is finished above the frontier.

The frontier, below which everything is finished, is the offset that the group has committed
(`broker.state.offsets`); this owns what lies above it, who may move both, and in which queues a
group has a start at all. An epoch is the index of the entry that granted a lease: who names another
is refused, whatever it believes to hold. No lease ends by itself.

    state                     on                                    becomes
    started in n queues       start in all m > n of the topic       started in m
    free, or held by epoch e  grant to s that names 0, or e         held by s, epoch: this entry
    held by e                 grant to nobody that names e          free
    any                       grant that names another epoch        unchanged  (refused: LeaseMoved)
    held by s, epoch e        progress of s by e                    further
    held by s, epoch e        release of s by e                     free
    any                       either by another epoch or session    unchanged  (refused: LeaseLost)
    held by s                 s is over                             free
    any                       its group commits without a lease     nothing finished above that
    any                       its group is moved there              free; finished as it is told
    any                       its topic is deleted, or its group
                              is forgotten                          nothing is known

What is finished stays so whoever holds the queue next. Bounds: `MAX_RANGES` a queue and
`MAX_ALL_RANGES` in all, refused and never cut: what was called finished must not come again.
A queue is (group, the topic's incarnation, queue id).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import FINISHED_RANGE, GROUP_STARTS_SECTION, LEASES_SECTION
from broker.state.refusals import LeaseLost, LeaseMoved, TooManyRanges
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation

STARTS_SECTION: Final = "group-starts"
SECTION: Final = "leases"
OWN_SECTIONS: Final = (STARTS_SECTION, SECTION)
VERSION: Final = 1
MAX_RANGES: Final = 128
MAX_ALL_RANGES: Final = 500_000
_STARTED: Final = GROUP_STARTS_SECTION.run("incarnation", "started")
_HEAD: Final = LEASES_SECTION.run("incarnation", "queue_id", "session", "epoch", "count")
_RANGE: Final = FINISHED_RANGE.struct()

Ranges = tuple[tuple[int, int], ...]  # first offset, one past the last; ascending and apart


class Place(NamedTuple):
    """A queue, as a group knows it."""

    group: str
    incarnation: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a queue, by which epoch (0 both: nobody), and what is finished above the
    frontier."""

    session: int = 0
    epoch: int = 0
    finished: Ranges = ()


@dataclass(slots=True)
class TopicLeases:
    """A group's in one topic; read only for all but `Leases`. Queues of which there is nothing to
    say are not in it."""

    started: int = 0
    queues: dict[int, Lease] = field(default_factory=dict)
    snapshots: int = field(default=0, compare=False)  # taken before this object was made


FREE: Final = Lease()
KEPT: Final = -1  # of who is copied before its next change, though no snapshot shows it
NO_QUEUES: Final[Mapping[int, Lease]] = MappingProxyType({})
NOTHING: Final[Set[Place]] = frozenset()


@dataclass(slots=True)
class Leases:
    """As of the last applied entry. Every field that is compared is replicated state or its bound.
    Whose leases change after a snapshot was taken is copied first (`_own`)."""

    max_all_ranges: int = MAX_ALL_RANGES
    _topics: dict[int, dict[str, TopicLeases]] = field(default_factory=dict, init=False)
    _held: dict[int, set[Place]] = field(default_factory=dict, init=False)  # by session
    _ranges: int = field(default=0, init=False)
    _snapshots: int = field(default=0, init=False, compare=False)  # taken so far

    # --- reading ------------------------------------------------------------------------------

    def of(self, place: Place) -> Lease:
        """Who holds the queue, and what is finished there."""
        topic = self._topics.get(place.incarnation, {}).get(place.group)
        return FREE if topic is None else topic.queues.get(place.queue_id, FREE)

    def in_topic(self, group: str, incarnation: int) -> Mapping[int, Lease]:
        """By queue; those without a lease and finished ranges may be left out."""
        topic = self._topics.get(incarnation, {}).get(group)
        return NO_QUEUES if topic is None else MappingProxyType(topic.queues)

    def kept(self, group: str, incarnation: int) -> Mapping[int, Lease]:
        """As `in_topic`, and as it is now, whatever is applied while anybody looks at it."""
        topic = self._topics.get(incarnation, {}).get(group)
        if topic is None:
            return NO_QUEUES
        topic.snapshots = KEPT
        return MappingProxyType(topic.queues)

    def started(self, group: str, incarnation: int) -> int:
        """In how many of the topic's queues, from the first on, the group has a start."""
        topic = self._topics.get(incarnation, {}).get(group)
        return 0 if topic is None else topic.started

    def held(self, session: int) -> Set[Place]:
        """What the session holds, in no order."""
        return self._held.get(session, NOTHING)

    def held_by(self, session: int) -> list[Place]:
        """What the session holds, in order."""
        return sorted(self._held.get(session, ()))

    def groups(self, incarnation: int) -> list[str]:
        """The groups that have started in the topic."""
        return list(self._topics.get(incarnation, {}))

    def incarnations(self) -> list[int]:
        """Of the topics in which any group has started."""
        return list(self._topics)

    def held_count(self, session: int) -> int:
        """How many queues the session holds."""
        return len(self._held.get(session, ()))

    @property
    def lease_count(self) -> int:
        """Queues that somebody holds."""
        return sum(len(each) for each in self._held.values())

    @property
    def range_count(self) -> int:
        """Finished ranges above frontiers."""
        return self._ranges

    # --- transitions --------------------------------------------------------------------------

    def start(self, group: str, incarnation: int, count: int) -> None:
        """The group has a start in that many queues of the topic."""
        groups = self._topics.setdefault(incarnation, {})
        groups.setdefault(group, TopicLeases(snapshots=self._snapshots))
        self._own(group, incarnation).started = count

    def _own(self, group: str, incarnation: int) -> TopicLeases:
        """The group's in that topic, to be changed: what a snapshot shows stays there as it is."""
        topic = self._topics[incarnation][group]
        if topic.snapshots != self._snapshots:
            topic = TopicLeases(topic.started, topic.queues.copy(), self._snapshots)
            self._topics[incarnation][group] = topic
        return topic

    def grant(self, place: Place, session: int, former: int, epoch: int) -> LeaseMoved | None:
        """The session, 0: nobody, holds the queue by that epoch; or why it doesn't. The group must
        have a start there."""
        lease = self.of(place)
        if lease.epoch != former:
            return LeaseMoved(place.queue_id, lease.epoch)
        self._put(place, Lease(session, epoch if session else 0, lease.finished))
        return None

    def refusal_of(self, place: Place, session: int, epoch: int) -> LeaseLost | None:
        """Why who names that session and epoch doesn't hold the queue; None if it does."""
        lease = self.of(place)
        if epoch and (lease.session, lease.epoch) == (session, epoch):
            return None
        return LeaseLost(place.queue_id, epoch)

    def too_many(self, place: Place, finished: Ranges) -> TooManyRanges | None:
        """Why the queue can't have these finished ranges; None if it can."""
        if len(finished) > MAX_RANGES:
            return TooManyRanges(MAX_RANGES)
        if self._ranges - len(self.of(place).finished) + len(finished) > self.max_all_ranges:
            return TooManyRanges(self.max_all_ranges)
        return None

    def progress(self, place: Place, finished: Ranges) -> None:
        """These are the queue's finished ranges; `refusal_of` and `too_many` were asked before."""
        lease = self.of(place)
        if lease.finished != finished:
            self._put(place, Lease(lease.session, lease.epoch, finished))

    def release(self, place: Place) -> None:
        """Nobody holds the queue; `refusal_of` was asked before."""
        self._put(place, Lease(finished=self.of(place).finished))

    def move(self, place: Place, finished: Ranges) -> None:
        """Nobody holds the queue, and these are its finished ranges: of those before, not more. A
        queue in which the group hasn't started has neither."""
        if self.started(place.group, place.incarnation):
            self._put(place, Lease(finished=finished))

    def on_session_ended(self, session: int) -> None:
        """What it held is free. That may be 65,536 queues, all in one turn: so each costs no
        more than it must."""
        queues: dict[int, dict[int, Lease]] = {}  # by incarnation: a session is of one group
        for group, incarnation, queue_id in self._held.pop(session, ()):
            if incarnation not in queues:
                queues[incarnation] = self._own(group, incarnation).queues
            finished = queues[incarnation][queue_id].finished
            if finished:
                queues[incarnation][queue_id] = Lease(finished=finished)
            else:
                del queues[incarnation][queue_id]

    def on_committed(self, group: str, incarnation: int, queues: Iterable[int]) -> None:
        """The group has said without a lease where it is."""
        for queue_id in queues:
            place = Place(group, incarnation, queue_id)
            if self.of(place).finished:
                self.progress(place, ())

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of the topic."""
        for group in self.groups(incarnation):
            self._drop(group, incarnation)

    def on_group_forgotten(self, group: str) -> None:
        """Nothing is known of the group, which has no session."""
        for incarnation in [each for each, groups in self._topics.items() if group in groups]:
            self._drop(group, incarnation)

    def _drop(self, group: str, incarnation: int) -> None:
        for queue_id in list(self._topics[incarnation][group].queues):
            self._put(Place(group, incarnation, queue_id), FREE)
        del self._topics[incarnation][group]
        if not self._topics[incarnation]:
            del self._topics[incarnation]

    def _put(self, place: Place, lease: Lease) -> None:
        """The one place where a lease changes, but for those that end with their session."""
        before, queues = self.of(place), self._own(place.group, place.incarnation).queues
        self._ranges += len(lease.finished) - len(before.finished)
        if before.session != lease.session:
            if before.session:
                held = self._held[before.session]
                held.discard(place)
                if not held:
                    del self._held[before.session]
            if lease.session:
                self._held.setdefault(lease.session, set()).add(place)
        if lease == FREE:
            queues.pop(place.queue_id, None)
        else:
            queues[place.queue_id] = lease

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The leases as they are now, whatever is applied while the payloads are taken."""
        view = [(incarnation, tuple(each.items())) for incarnation, each in self._topics.items()]
        if not view:
            return ()
        self._snapshots += 1
        found = [Section(STARTS_SECTION, VERSION, pack(_starts(view)))]
        if any(topic.queues for _, groups in view for _, topic in groups):
            found.append(Section(SECTION, VERSION, pack(_records(view))))
        return tuple(found)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """One of `OWN_SECTIONS`, in their order, becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                group = reader.take_text()
                if section == STARTS_SECTION:
                    incarnation, started = reader.take(_STARTED)
                    self.start(group, incarnation, started)
                else:
                    self._restore_one(group, reader)

    def _restore_one(self, group: str, reader: PayloadReader) -> None:
        incarnation, queue_id, session, epoch, count = reader.take(_HEAD)
        finished = tuple((first, end) for first, end in reader.take_many(_RANGE, count))
        place = Place(group, incarnation, queue_id)
        if group not in self._topics.get(incarnation, {}) or self.of(place) != FREE:
            raise SnapshotDamaged(SECTION, "each queue of a started topic once", place)
        self._put(place, Lease(session, epoch, finished))

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, applied_index: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        held: dict[int, set[Place]] = {}
        ranges = 0
        for incarnation, groups in self._topics.items():
            for group, topic in groups.items():
                for queue_id, lease in topic.queues.items():
                    place = Place(group, incarnation, queue_id)
                    ranges += len(lease.finished)
                    if lease.session:
                        held.setdefault(lease.session, set()).add(place)
                    if not _is_possible(lease, applied_index) or queue_id >= topic.started:
                        raise InvariantViolation(f"{place} is {lease}, of {topic.started} started")
        if not groups_are_there(self._topics) or held != self._held or ranges != self._ranges:
            raise InvariantViolation(f"{ranges} finished ranges, {self._ranges} counted")
        if ranges > self.max_all_ranges:
            raise InvariantViolation(f"{ranges} finished ranges, the limit {self.max_all_ranges}")


def groups_are_there(topics: Mapping[int, Mapping[str, TopicLeases]]) -> bool:
    """No topic is kept without a group, and none of a group without a start."""
    return all(
        groups and all(topic.started > 0 for topic in groups.values()) for groups in topics.values()
    )


def _is_possible(lease: Lease, applied_index: int) -> bool:
    is_held = 0 < lease.session < lease.epoch <= applied_index
    ends = [offset for each in lease.finished for offset in each]
    return (
        (is_held or (lease.session, lease.epoch) == (0, 0))
        and lease != FREE
        and len(lease.finished) <= MAX_RANGES
        and all(one < other for one, other in pairwise(ends))
    )


View = Sequence[tuple[int, tuple[tuple[str, TopicLeases], ...]]]  # by incarnation


def _starts(view: View) -> Iterator[bytes]:
    for incarnation, groups in sorted(view, key=_incarnation):
        for group, topic in groups:
            yield pack_text(group) + _STARTED.pack(incarnation, topic.started)


def _records(view: View) -> Iterator[bytes]:
    for incarnation, groups in sorted(view, key=_incarnation):
        for group, topic in groups:
            text = pack_text(group)
            for queue_id, lease in sorted(topic.queues.items()):
                head = _HEAD.pack(
                    incarnation, queue_id, lease.session, lease.epoch, len(lease.finished)
                )
                yield b"".join((text, head, *[_RANGE.pack(*each) for each in lease.finished]))


def _incarnation(part: tuple[int, object]) -> int:
    return part[0]


# --- what is finished --------------------------------------------------------------------------


def ranges_of(frontier: int, runs: Sequence[int]) -> Ranges | None:
    """What `QueueProgress.finished` says: alternately so many unfinished and so many finished, from
    the frontier on; None: it says nothing that can be."""
    if len(runs) % 2 or not all(runs):
        return None
    found: list[tuple[int, int]] = []
    at = frontier
    for unfinished, finished in zip(runs[::2], runs[1::2], strict=True):
        found.append((at + unfinished, at + unfinished + finished))
        at += unfinished + finished
    return tuple(found)


def runs_of(frontier: int, finished: Ranges) -> list[int]:
    """The reverse of `ranges_of`, for ranges above the frontier."""
    runs: list[int] = []
    at = frontier
    for first, end in finished:
        runs += (first - at, end - first)
        at = end
    return runs


def united(frontier: int, one: Ranges, other: Ranges) -> tuple[int, Ranges]:
    """The frontier and the finished ranges above it of everything that is finished by either."""
    found: list[tuple[int, int]] = []
    for first, end in sorted((*one, *other)):
        if first <= frontier:
            frontier = max(frontier, end)
        elif found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((first, end))
    return frontier, tuple(found)
