"""The anomalies of a log, found in a history of sends and polls.

    lost-write           acknowledged, below the highest offset that was polled, and never polled
    unseen               acknowledged and not polled by the end, though all was read to the end
    duplicate            one message at two offsets
    inconsistent-offsets one offset, two values
    nonmonotonic-poll    a consumer goes back between polls (int-: within one), or begins again
                         before what it had committed
    poll-skip            a consumer jumps over messages between polls (int-: within one), or
                         begins again behind what it had committed
    nonmonotonic-send    a producer's later message lands earlier in the same queue
    phantom              polled, never sent; or sent, definitely rejected, polled all the same
    stale-read           a linearizable read misses a write acknowledged, or polled, before it began

Each queue is judged by itself. A topic whose deletion was invoked may take its messages with it:
then nothing of it is lost or unseen. Each anomaly is reported once for the message or the poll it
concerns, with the operations that show it. Where several show the same, the others are told beside
it (`Anomaly.also`): who excuses the one that is shown first has to look at them.

Source: Jepsen's Kafka workload (`jepsen.tests.kafka`), etcd's robustness tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from chaos.checkers.history import Commit, Delete, End, History, Operation, Poll, Send
from dledger.history import Outcome

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not be. `operations` are the numbers of those that show it; `also` is the
    same as others show it, counted with this one. `count`: how many it stands for."""

    name: str
    where: str
    detail: str
    operations: tuple[int, ...] = ()
    also: tuple[Anomaly, ...] = ()
    count: int = 1

    def __str__(self) -> str:
        shown = f" (operations {', '.join(map(str, self.operations))})" if self.operations else ""
        return f"{self.name} in {self.where}: {self.detail}{shown}"


def as_one(found: Iterable[Anomaly]) -> Iterator[Anomaly]:
    """The first one, and the others beside it; none if there is none."""
    told = list(dict.fromkeys(found))
    if told:
        yield replace(told[0], also=tuple(told[1:]))


class Seen(NamedTuple):
    """A value at an offset, and the operation that says so."""

    offset: int
    value: str
    operation: Operation


@dataclass(slots=True)
class QueueHistory:
    """What the history says of one queue."""

    key: QueueKey
    sends: list[Operation] = field(default_factory=list)
    polls: list[Operation] = field(default_factory=list)
    ends: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    may_be_deleted: bool = False

    @property
    def name(self) -> str:
        return f"{self.key[0]}/{self.key[1]}"

    def acknowledged(self) -> Iterator[Seen]:
        """What the acknowledgements of sends say."""
        for send in self.sends:
            if send.is_ok and isinstance(send.action, Send) and isinstance(send.result, int):
                for at, value in enumerate(send.action.values):
                    yield Seen(send.result + at, value, send)

    def polled(self) -> Iterator[Seen]:
        """What the polls say."""
        for poll in self.polls:
            for offset, value in polled_by(poll):
                yield Seen(offset, value, poll)


def polled_by(poll: Operation) -> tuple[tuple[int, str], ...]:
    """`(offset, value)` of each message that a poll gave; none unless it is ok."""
    return poll.result if poll.is_ok and isinstance(poll.result, tuple) else ()


def find_anomalies(history: History) -> list[Anomaly]:
    """Every anomaly of the vocabulary, queue by queue."""
    found: list[Anomaly] = []
    for queue in queues_of(history):
        found += check_offsets(queue)
        found += check_presence(queue)
        found += check_phantoms(queue)
        found += check_polls(queue)
        found += check_producers(queue)
        found += check_ends(queue)
    return found


def find_resumes(history: History) -> list[Anomaly]:
    """What `check_resumes` finds, in a history in which whoever has committed and seeks goes to
    what it has committed, and nowhere else."""
    return [each for queue in queues_of(history) for each in check_resumes(queue)]


def queues_of(history: History) -> list[QueueHistory]:
    """The history by queue, in the order in which queues appear."""
    queues: dict[QueueKey, QueueHistory] = {}
    deleted: set[str] = set()
    for operation in history.operations:
        match operation.action:
            case Send(topic=topic, queue_id=queue_id):
                queues.setdefault((topic, queue_id), QueueHistory((topic, queue_id))).sends.append(
                    operation
                )
            case Poll(topic=topic, queue_id=queue_id):
                queues.setdefault((topic, queue_id), QueueHistory((topic, queue_id))).polls.append(
                    operation
                )
            case End(topic=topic, queue_id=queue_id):
                queues.setdefault((topic, queue_id), QueueHistory((topic, queue_id))).ends.append(
                    operation
                )
            case Commit(topic=topic, queue_id=queue_id):
                key = topic, queue_id
                queues.setdefault(key, QueueHistory(key)).commits.append(operation)
            case Delete(topic=topic) if operation.outcome is not Outcome.FAIL:
                deleted.add(topic)
            case _:
                pass
    for queue in queues.values():
        queue.may_be_deleted = queue.key[0] in deleted
    return list(queues.values())


def check_offsets(queue: QueueHistory) -> Iterator[Anomaly]:
    """duplicate, inconsistent-offsets."""
    value_at: dict[int, str] = {}
    offset_of: dict[str, int] = {}
    offsets: dict[int, list[Seen]] = {}  # those that have several values
    values: dict[str, list[Seen]] = {}  # those that are at several offsets
    for seen in (*queue.acknowledged(), *queue.polled()):
        if value_at.setdefault(seen.offset, seen.value) != seen.value:
            offsets.setdefault(seen.offset, [])
        if offset_of.setdefault(seen.value, seen.offset) != seen.offset:
            values.setdefault(seen.value, [])
    for seen in (*queue.acknowledged(), *queue.polled()) if offsets or values else ():
        offsets.get(seen.offset, []).append(seen)
        values.get(seen.value, []).append(seen)
    for offset, said in offsets.items():
        yield from as_one(
            Anomaly(
                "inconsistent-offsets",
                queue.name,
                f"offset {offset} is {one.value} and {other.value}",
                (one.operation.op, other.operation.op),
            )
            for one, other in _apart(said, lambda seen: seen.value)
        )
    for value, said in values.items():
        yield from as_one(
            Anomaly(
                "duplicate",
                queue.name,
                f"{value} is at offsets {one.offset} and {other.offset}",
                (one.operation.op, other.operation.op),
            )
            for one, other in _apart(said, lambda seen: seen.offset)
        )


def _apart(said: Sequence[Seen], what: Callable[[Seen], Hashable]) -> Iterator[tuple[Seen, Seen]]:
    """Pairs that say two things: the first that do, and of each thing, beside that of before it and
    beside the first, those that are earliest and latest. What is excused by when it happened is
    so for all of these, or one of them shows that there is more."""
    things: dict[Hashable, list[Seen]] = {}
    for seen in said:
        things.setdefault(what(seen), []).append(seen)
    groups = list(things.values())
    yield groups[0][0], groups[1][0]
    early = sorted((min(each, key=_ended) for each in groups), key=_ended)
    late = sorted((max(each, key=_begun) for each in groups), key=_begun)
    for ordered in (early, late):
        yield from pairwise(ordered)
        yield from ((ordered[0], each) for each in ordered[1:])


def _begun(seen: Seen) -> int:
    return seen.operation.invoked_us


def _ended(seen: Seen) -> int:
    return seen.operation.completed_us or seen.operation.invoked_us


def check_presence(queue: QueueHistory) -> Iterator[Anomaly]:
    """lost-write, unseen."""
    if queue.may_be_deleted:
        return
    polled = {seen.value for seen in queue.polled()}
    highest = max((seen.offset for seen in queue.polled()), default=-1)
    all_was_read = any(
        isinstance(poll.action, Poll) and poll.action.final and poll.is_ok for poll in queue.polls
    )
    for seen in queue.acknowledged():
        if seen.value in polled:
            continue
        at = f"{seen.value} was acknowledged at offset {seen.offset}"
        if seen.offset <= highest:
            detail = f"{at} and never polled, offset {highest} was"
            yield Anomaly("lost-write", queue.name, detail, (seen.operation.op,))
        elif all_was_read:
            detail = f"{at}, the queue was read to its end at {highest + 1}"
            yield Anomaly("unseen", queue.name, detail, (seen.operation.op,))


def check_phantoms(queue: QueueHistory) -> Iterator[Anomaly]:
    """phantom."""
    outcomes: dict[str, Outcome] = {}
    for send in queue.sends:
        if isinstance(send.action, Send):
            outcomes.update(dict.fromkeys(send.action.values, send.outcome))
    told: set[str] = set()
    for seen in queue.polled():
        outcome = outcomes.get(seen.value)
        if outcome in (Outcome.OK, Outcome.UNKNOWN) or seen.value in told:
            continue
        told.add(seen.value)
        why = "was never sent" if outcome is None else "was rejected for good"
        detail = f"{seen.value} at offset {seen.offset} {why}"
        yield Anomaly("phantom", queue.name, detail, (seen.operation.op,))


def check_polls(queue: QueueHistory) -> Iterator[Anomaly]:
    """nonmonotonic-poll, poll-skip, and both within one poll."""
    last: dict[str, Operation] = {}  # By process, the last poll that gave something.
    for poll in queue.polls:
        if isinstance(poll.action, Poll) and poll.action.seek:
            last.pop(poll.process, None)  # It has gone elsewhere, whether or not it got something.
        if not (polled := polled_by(poll)):
            continue
        steps = pairwise(offset for offset, _ in polled)
        yield from _check_steps("int-", queue.name, steps, (poll.op,))
        if (before := last.get(poll.process)) is not None:
            step = (polled_by(before)[-1][0], polled[0][0])
            yield from _check_steps("", queue.name, [step], (before.op, poll.op))
        last[poll.process] = poll


def check_resumes(queue: QueueHistory) -> Iterator[Anomaly]:
    """nonmonotonic-poll and poll-skip of a consumer that went elsewhere having committed: it went
    to what is committed, or may be, as of a commit that nobody heard of any more."""
    for poll in queue.polls:
        polled = polled_by(poll)
        if not polled or not isinstance(poll.action, Poll) or not poll.action.seek:
            continue
        own = [
            each
            for each in queue.commits
            if each.process == poll.process and each.invoked_us <= poll.invoked_us
        ]
        heard = [each for each in own if each.is_ok]
        if not heard:
            continue
        unheard = [each for each in own if each.outcome is Outcome.UNKNOWN]
        known = [*heard[-1:], *unheard]
        places = [_committed(each) for each in known]
        begins, operations = polled[0][0], (*(each.op for each in known), poll.op)
        if begins not in places:
            name = "nonmonotonic-poll" if begins < max(places) else "poll-skip"
            words = " or ".join(map(str, sorted(set(places))))
            detail = f"offset {begins} after {words} was committed"
            yield Anomaly(name, queue.name, detail, operations)


def _committed(commit: Operation) -> int:
    """What stands by that commit: what its answer says, or what it asked for."""
    if isinstance(commit.result, int):
        return commit.result
    return commit.action.offset if isinstance(commit.action, Commit) else 0


def _check_steps(
    prefix: str, where: str, steps: Iterable[tuple[int, int]], operations: tuple[int, ...]
) -> Iterator[Anomaly]:
    for before, after in steps:
        if after <= before:
            detail = f"offset {after} after {before}"
            yield Anomaly(f"{prefix}nonmonotonic-poll", where, detail, operations)
        elif after > before + 1:
            detail = f"offset {after} after {before}"
            yield Anomaly(f"{prefix}poll-skip", where, detail, operations)


def check_producers(queue: QueueHistory) -> Iterator[Anomaly]:
    """nonmonotonic-send."""
    places: dict[str, int] = {}
    for seen in (*queue.acknowledged(), *queue.polled()):
        places.setdefault(seen.value, seen.offset)
    by_producer: defaultdict[str, list[Operation]] = defaultdict(list)
    for send in queue.sends:
        by_producer[send.process].append(send)
    for sends in by_producer.values():
        placed = [
            (places[value], value, send.op)
            for send in sends
            if isinstance(send.action, Send)
            for value in send.action.values
            if value in places
        ]
        for before, after in pairwise(placed):
            if after[0] < before[0]:
                detail = f"{after[1]} is at {after[0]}, {before[1]}, sent before, at {before[0]}"
                yield Anomaly("nonmonotonic-send", queue.name, detail, (before[2], after[2]))


def check_ends(queue: QueueHistory) -> Iterator[Anomaly]:
    """stale-read: a maximum offset below what was acknowledged, or read, before it was asked."""
    known = [
        (send.completed_us or 0, send.result + len(send.action.values), send.op)
        for send in queue.sends
        if send.is_ok and isinstance(send.action, Send) and isinstance(send.result, int)
    ]
    known += [
        (end.completed_us or 0, end.result, end.op)
        for end in queue.ends
        if end.is_ok and isinstance(end.result, int)
    ]
    known += [
        (poll.completed_us or 0, polled[-1][0] + 1, poll.op)
        for poll in queue.polls
        if (polled := polled_by(poll))
    ]
    known.sort()
    highest, at = 0, 0
    for end in sorted(queue.ends, key=lambda each: each.invoked_us):
        while at < len(known) and known[at][0] < end.invoked_us:
            highest = max(highest, known[at][1])
            at += 1
        if end.is_ok and isinstance(end.result, int) and end.result < highest:
            yield from as_one(_stale(queue.name, end, end.result, known[:at]))


def _stale(
    where: str, end: Operation, result: int, known: Sequence[tuple[int, int, int]]
) -> Iterator[Anomaly]:
    """By the highest that was `known`, by what was known first, and by what was known last."""
    higher = [each for each in known if each[1] > result]
    for _, offset, witness in (max(higher, key=lambda each: each[1]), higher[0], higher[-1]):
        detail = f"the end was read as {result}, {offset} was known before"
        yield Anomaly("stale-read", where, detail, (witness, end.op))
