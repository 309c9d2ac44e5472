"""What must not be between a queue's log and its clients' histories. Pure: values in and out.

    lost        acknowledged and not in the log; or passed over by a consumer though it is there
    duplicated  in the log more often than it was sent; or delivered again without being asked for
    reordered   a producer's later message lies before an earlier one; or one poll goes backwards
    phantom     in the log and never sent, or sent and refused for good; or delivered and not there
    moved       acknowledged at another offset than the one it has
    undecided   this replica isn't known to be committed that far: another one may tell

A consumer is owed what lies behind what it was given last, and behind the offset that it asked for:
without the latter, whoever is given too late a first message seems to have begun there. One that
wants some of the messages only (`filtered`) passes over others rightly.

What retention took away can't be judged and is counted. An operation whose outcome is unknown may
have happened or not, and either is right.

Source: the anomalies of `chaos.checkers.anomalies` (after Jepsen's Kafka workload), which compares
histories with each other; here the log itself is the witness.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from audit.delivery.history import Polled, Process, QueueKey, QueueStory, Sent
from dledger.history import Outcome

NO_OFFSET: Final = 1 << 64  # beyond all that a queue can have


class Kind(StrEnum):
    """Of an anomaly."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    PHANTOM = "phantom"
    MOVED = "moved"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not be. `process`: the client that shows it, empty for none; `offset`:
    the queue offset it concerns, None where nobody named one."""

    kind: Kind
    topic: str
    queue_id: int
    offset: int | None
    value: str
    process: str
    detail: str


@dataclass(slots=True)
class LoggedQueue:
    """One queue as the log has it: the value at each queue offset, and where else a value lies.

    Attributes:
        first: the first queue offset that retention left, 0 where it took nothing, None where
            nobody knows.
        tail_is_known: nothing was committed behind the log's end when it was read.
        has_voids: there may be offsets without a message, those of refused units (ADR 54).
        former: the queues of topics that had the name before, the oldest first
            (`audit.delivery.lives`).
    """

    first: int | None = 0
    tail_is_known: bool = True
    values: dict[int, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    more_places: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    has_voids: bool = False
    former: tuple[LoggedQueue, ...] = ()

    @property
    def lives(self) -> tuple[LoggedQueue, ...]:
        """The queues of all topics that had the name, the oldest first."""
        return (*self.former, self)

    def life(self, number: int) -> LoggedQueue:
        """One of `lives`."""
        return self if number == len(self.former) else self.former[number]

    def add(self, offset: int, value: str) -> None:
        """The log has `value` at queue offset `offset`."""
        self.values[offset] = value
        if self.places.setdefault(value, offset) != offset:
            self.more_places[value].append(offset)

    def places_of(self, value: str) -> list[int]:
        """Every offset of a value, in the log's order."""
        if value not in self.places:
            return []
        return [self.places[value], *self.more_places.get(value, ())]

    def has(self, value: str) -> bool:
        """Whether a message of that value is in the log."""
        return value in self.places

    @property
    def end(self) -> int:
        """The queue offset behind the last message."""
        return max(self.values) + 1 if self.values else self.first or 0

    @property
    def start(self) -> int:
        """The first queue offset that can be judged. Of a queue that has no message, and of which
        nobody knows where it begins, none can."""
        return min(self.values, default=NO_OFFSET) if self.first is None else self.first


@dataclass(frozen=True, slots=True)
class _Case:
    """One queue's log and story, with what every check asks for computed once."""

    key: QueueKey
    log: LoggedQueue
    story: QueueStory
    start: int
    end: int

    def anomaly(
        self, kind: Kind, offset: int | None, value: str, process: Process | None, detail: str
    ) -> Anomaly:
        name = process[1] if process else ""
        return Anomaly(kind, *self.key, offset, value, name, detail)

    def beyond(self, kind: Kind) -> Kind:
        """`kind`, if the log's end is known to be the end."""
        return kind if self.log.tail_is_known else Kind.UNDECIDED


def judge_queue(key: QueueKey, log: LoggedQueue, story: QueueStory) -> Iterator[Anomaly]:
    """Every anomaly of one queue."""
    case = _Case(key, log, story, log.start, log.end)
    for sent in story.sends:
        if sent.outcome is Outcome.OK:
            yield from _check_acknowledged(case, sent)
    yield from _check_claims(case)
    yield from _check_stored(case)
    yield from _check_producers(case)
    yield from _check_consumers(case)


def sent_twice(key: QueueKey, story: QueueStory) -> str:
    """Which value two sends have that may both have happened, in words; empty: none. Who is asked
    for it in the log can't tell them apart, so that one of them could be lost unseen."""
    by: dict[str, Process] = {}
    for sent in story.sends:
        if sent.outcome is Outcome.FAIL:
            continue  # It may be sent again.
        for value in sent.values:
            if value in by:
                first, second = (
                    f"{name} of history {n + 1}" for n, name in (by[value], sent.process)
                )
                return (
                    f"{key[0]}/{key[1]}: {value[:80]!r} was sent by {first} and again by {second}: "
                    "a queue's values have to be unique, and each history is given once"
                )
            by[value] = sent.process
    return ""


def expired_messages(log: LoggedQueue, story: QueueStory) -> int:
    """Acknowledged messages that lay below what retention left."""
    start = log.start
    return sum(
        sent.offset + at < start
        for sent in story.sends
        if sent.offset is not None
        for at in range(len(sent.values))
    )


def compared_messages(log: LoggedQueue, story: QueueStory) -> int:
    """Acknowledged and delivered messages that were held against the log: those that lie, by what
    their clients were told, where retention took nothing. One that was acknowledged nobody knows
    where is, if the log has it."""
    start = log.start
    acknowledged = sum(
        log.has(value) if sent.offset is None else sent.offset + at >= start
        for sent in story.sends
        if sent.outcome is Outcome.OK
        for at, value in enumerate(sent.values)
    )
    delivered = sum(offset >= start for poll in story.polls for offset, _ in poll.messages)
    return acknowledged + delivered


def _check_acknowledged(case: _Case, sent: Sent) -> Iterator[Anomaly]:
    """lost, moved, duplicated, undecided."""
    for at, value in enumerate(sent.values):
        offset = None if sent.offset is None else sent.offset + at
        places = case.log.places_of(value)
        if places and (offset is None or offset in places):
            continue
        if offset is not None and offset < case.start:
            if places:  # Beside the one that retention took away.
                detail = f"acknowledged at {offset}, which has expired, it lies at {places[0]} too"
                yield case.anomaly(Kind.DUPLICATED, places[0], value, sent.process, detail)
            continue
        if places:
            detail = f"acknowledged at {offset}, it lies at {places[0]}"
            yield case.anomaly(Kind.MOVED, offset, value, sent.process, detail)
        elif offset is None or offset >= case.end:
            where = "" if offset is None else f" at {offset}"
            detail = f"acknowledged{where}, the queue's log ends at {case.end}"
            is_open = offset is None and case.start > 0
            kind = Kind.UNDECIDED if is_open else case.beyond(Kind.LOST)
            yield case.anomaly(kind, offset, value, sent.process, detail)
        else:
            detail = f"acknowledged at {offset}, where the log has {_found(case, offset)}"
            yield case.anomaly(Kind.LOST, offset, value, sent.process, detail)


def _check_claims(case: _Case) -> Iterator[Anomaly]:
    """lost: one of two that were acknowledged at one offset, whatever the log has there. Where that
    is known, the other one has been told already."""
    told: dict[int, str] = {}
    for sent in case.story.sends:
        if sent.outcome is not Outcome.OK or sent.offset is None:
            continue
        for offset, value in enumerate(sent.values, sent.offset):
            is_open = offset < case.start or (offset >= case.end and not case.log.tail_is_known)
            if told.setdefault(offset, value) != value and is_open:
                detail = f"acknowledged at {offset}, as {told[offset]} was"
                yield case.anomaly(Kind.LOST, offset, value, sent.process, detail)


def _check_stored(case: _Case) -> Iterator[Anomaly]:
    """duplicated, phantom: what the log has that it shouldn't."""
    allowed: Counter[str] = Counter()
    refused: set[str] = set()
    for sent in case.story.sends:
        if sent.outcome is Outcome.FAIL:
            refused.update(sent.values)
        else:
            allowed.update(sent.values)
    for value, first in case.log.places.items():
        if not allowed[value]:
            why = "refused for good" if value in refused else "never sent to this queue"
            yield case.anomaly(Kind.PHANTOM, first, value, None, f"in the log, {why}")
        elif len(places := case.log.places_of(value)) > allowed[value]:
            detail = f"sent {allowed[value]} times, in the log at {_listed(places)}"
            yield case.anomaly(Kind.DUPLICATED, places[-1], value, None, detail)


def _check_producers(case: _Case) -> Iterator[Anomaly]:
    """reordered: in the log, by producer."""
    last: dict[Process, tuple[int, str]] = {}
    for sent in case.story.sends:
        if sent.outcome is Outcome.FAIL:
            continue
        for at, value in enumerate(sent.values):
            places = case.log.places_of(value)
            if not places:
                continue
            told = None if sent.offset is None else sent.offset + at
            place = told if told in places else places[0]
            before = last.get(sent.process)
            last[sent.process] = (place, value)
            if before is not None and place < before[0]:
                detail = f"it lies before {before[1]} (at {before[0]}), which was sent earlier"
                yield case.anomaly(Kind.REORDERED, place, value, sent.process, detail)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a consumer is by what it was given: `last` is the last offset. `is_left`: it has asked
    for another place since, on purpose; `is_filtered`: what it passed over since is no loss."""

    last: int
    is_left: bool = False
    is_filtered: bool = False

    def followed_by(self, poll: Polled) -> _Place:
        """As it is once this poll was asked."""
        return _Place(self.last, self.is_left or poll.is_seek, self.is_filtered or poll.is_filtered)


def _check_consumers(case: _Case) -> Iterator[Anomaly]:
    """phantom, lost, duplicated, reordered: what consumers got against what the log has."""
    places: dict[Process, _Place] = {}
    for poll in case.story.polls:
        place = places.get(poll.process)
        if place is not None:  # Also a poll that brought nothing has gone to another place.
            place = place.followed_by(poll)
            places[poll.process] = place
        if not poll.messages:
            continue
        for offset, value in poll.messages:
            yield from _check_delivered(case, poll, offset, value)
        yield from _check_first(case, poll, place)
        for (earlier, _), (later, _) in pairwise(poll.messages):
            if later <= earlier:
                detail = f"delivered out of order: offset {later} after {earlier}"
                yield _returned(case, poll, Kind.REORDERED, later, detail)
            elif not poll.is_filtered:
                yield from _check_passed(case, poll, earlier + 1, later, f"after {earlier}")
        places[poll.process] = _Place(poll.messages[-1][0], is_filtered=poll.is_filtered)


def _check_first(case: _Case, poll: Polled, place: _Place | None) -> Iterator[Anomaly]:
    """duplicated, lost: what a poll begins with, after what its consumer was given before, and
    after what it asked for."""
    first = poll.messages[0][0]
    before = None if place is None or place.is_left else place
    if before is not None and first <= before.last:
        detail = f"delivered again: offset {first} after {before.last}"
        yield _returned(case, poll, Kind.DUPLICATED, first, detail)
        return
    if before is None and poll.asked is not None and first < poll.asked:
        detail = f"delivered unasked: offset {first}, {poll.asked} was asked for"
        yield _returned(case, poll, Kind.DUPLICATED, first, detail)
        return
    if poll.is_filtered:
        return
    wanted = [] if poll.asked is None else [(poll.asked, f"{poll.asked} was asked for")]
    if before is not None and not before.is_filtered:
        wanted.insert(0, (before.last + 1, f"after {before.last}"))
    if wanted:
        start, said = min(wanted, key=lambda each: each[0])
        yield from _check_passed(case, poll, start, first, said)


def _returned(case: _Case, poll: Polled, kind: Kind, offset: int, detail: str) -> Anomaly:
    return case.anomaly(kind, offset, case.log.values.get(offset, ""), poll.process, detail)


def _check_passed(case: _Case, poll: Polled, wanted: int, got: int, said: str) -> Iterator[Anomaly]:
    """lost: from `wanted` on the next message is the one at `got`, by the log."""
    between = range(max(wanted, case.start), min(got, case.end))
    missing = [offset for offset in between if offset in case.log.values]  # others are void
    if missing:
        first = missing[0]
        value = case.log.values[first]
        detail = f"not delivered: offset {got}, {said}, the log has {len(missing)} more"
        yield case.anomaly(Kind.LOST, first, value, poll.process, detail)


def _check_delivered(case: _Case, poll: Polled, offset: int, value: str) -> Iterator[Anomaly]:
    if offset < case.start or case.log.values.get(offset) == value:
        return
    if offset >= case.end:
        detail = f"delivered at {offset}, the queue's log ends at {case.end}"
        yield case.anomaly(case.beyond(Kind.PHANTOM), offset, value, poll.process, detail)
    else:
        detail = f"delivered at {offset}, where the log has {_found(case, offset)}"
        yield case.anomaly(Kind.PHANTOM, offset, value, poll.process, detail)


def _found(case: _Case, offset: int) -> str:
    return case.log.values.get(offset, "nothing")


def _listed(places: list[int]) -> str:
    shown = ", ".join(map(str, places[:5]))
    return f"{shown}, ..." if len(places) > 5 else shown
