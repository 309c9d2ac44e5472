"""Linearizability: is there one order of the operations that explains what everybody saw?

An operation takes effect at one instant between its invocation and its completion; an unknown one
at some instant after its invocation, or never. A refused one has no effect; where its refusal says
what there was, that has to be true at one instant, too (`_ANSWERS`). `check_linearizability`
searches such an order for a small model, remembering which (set of operations taken, state) has
been tried: Wing & Gong's algorithm with Lowe's memory. The search is exponential at worst, so
histories are cut by key before (linearizability is local) and the search is bounded: a key whose
search is too long is undecided, and told beside what the others show. Behind a contradiction the
search goes on, from any state: what is shown first may be permitted (`chaos.real.weaker`), and what
comes later is not for that.

`check_queue_ends` needs no search: a queue's sends carry their offsets, which fixes the order of
all sends and reads of the end, so it only has to agree with real time. All contradictions of a
queue, or of a key, are one anomaly, the later ones beside the first.

Source: Wing & Gong (1993); Lowe, "Testing for linearizability" (2017); Jepsen's Knossos, Porcupine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Generic, TypeVar

from chaos.checkers.anomalies import Anomaly, QueueHistory, as_one, queues_of
from chaos.checkers.history import (
    Commit,
    Create,
    Delete,
    End,
    Exists,
    Fetch,
    History,
    Operation,
    Poll,
    Send,
)
from chaos.errors import ContradictionsLeft, SearchTooLong
from dledger.history import Outcome

MAX_STEPS = 2_000_000
MAX_CONTRADICTIONS: Final = 20  # of a key
FOREVER = 1 << 62

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    """A sequential object. `apply(state, operation)` gives the state after the operation, or
    None if a sequential object in `state` can't answer what it answered. For an unknown
    operation any answer will do. Of refused ones it is given those of `_ANSWERS`. It begins in one
    of `starts`; `anywhere(operations)` are the starts that are worth a try before these, if
    nothing is known of what was before."""

    starts: tuple[S, ...]
    apply: Callable[[S, Operation], S | None]
    anywhere: Callable[[Iterable[Operation]], tuple[S, ...]]


def find_order(key: str, operations: list[Operation], model: Model[S]) -> list[Operation] | None:
    """An order that explains the operations; None if there is none.

    Raises:
        SearchTooLong: see there.
    """
    calls = [each for each in operations if _says_something(each)]
    if any(isinstance(each.action, Delete) for each in calls):
        # A batch is told that there is no topic while it is being deleted, which may come to
        # nothing (ADR 20).
        calls = [each for each in calls if not isinstance(each.action, Send)]
    calls.sort(key=lambda each: each.invoked_us)
    ends = [_end(each) for each in calls]
    required = sum(1 << i for i, end in enumerate(ends) if end != FOREVER)
    stack: list[tuple[int, S, list[int]]] = [(0, state, []) for state in model.starts]
    tried = _Tried[S](required)
    steps = 0
    while stack:
        taken, state, order = stack.pop()
        if taken & required == required:
            return [calls[i] for i in order]
        for i in _next(calls, ends, taken):
            steps += 1
            if steps > MAX_STEPS:
                raise SearchTooLong(key, len(calls), MAX_STEPS)
            after = model.apply(state, calls[i])
            is_idle = after == state and ends[i] == FOREVER  # it may as well never happen
            if after is not None and not is_idle and tried.is_news(taken | 1 << i, after):
                stack.append((taken | 1 << i, after, [*order, i]))
    return None


class _Tried(Generic[S]):
    """What needs no second try: the same completed operations taken, the same state, and no
    unknown operation left that was not left the first time."""

    def __init__(self, required: int) -> None:
        self._required = required
        self._places: defaultdict[tuple[int, S], list[int]] = defaultdict(list)

    def is_news(self, taken: int, state: S) -> bool:
        """Remembers the place and tells whether it has to be tried."""
        unknown = taken & ~self._required
        known = self._places[taken & self._required, state]
        if any(other & unknown == other for other in known):
            return False
        known.append(unknown)
        return True


def _says_something(operation: Operation) -> bool:
    is_answer = (type(operation.action), operation.refusal) in _ANSWERS
    return is_answer or operation.outcome is not Outcome.FAIL


def _end(operation: Operation) -> int:
    if operation.outcome is Outcome.UNKNOWN or operation.completed_us is None:
        return FOREVER
    return operation.completed_us


def _next(calls: list[Operation], ends: list[int], taken: int) -> list[int]:
    """The operations that can come next: not taken, and begun before all others not taken end."""
    candidates: list[int] = []
    first_end = FOREVER
    for i, call in enumerate(calls):
        if call.invoked_us > first_end:
            break
        if not taken >> i & 1:
            candidates.append(i)
            first_end = min(first_end, ends[i])
    candidates.sort(key=lambda i: ends[i], reverse=True)  # the stack takes the earliest end first
    return [i for i in candidates if calls[i].invoked_us <= first_end]


# --- the models --------------------------------------------------------------------------------


# Refusals that tell the state: a topic of the name exists, and none does.
_ANSWERS: Final = frozenset(
    {
        (Create, "TOPIC_EXISTS"),
        *((kind, "TOPIC_NOT_FOUND") for kind in (Delete, Send, Poll, End, Commit, Fetch)),
    }
)


def _apply_topic(exists: bool, operation: Operation) -> bool | None:  # noqa: FBT001  the state
    match operation.action:
        case Create() if operation.outcome is Outcome.FAIL:
            return True if exists else None
        case _ if operation.outcome is Outcome.FAIL:
            return None if exists else False
        case Create():
            return True if not exists or operation.outcome is Outcome.UNKNOWN else None
        case Delete():
            return False if exists or operation.outcome is Outcome.UNKNOWN else None
        case Exists():
            if operation.outcome is Outcome.UNKNOWN or operation.result is exists:
                return exists
            return None
        case _:
            raise TypeError(f"{operation.action} says nothing of a topic")


def _apply_offset(state: int, operation: Operation) -> int | None:
    """A committed offset moves forward only; -1: none is committed."""
    match operation.action:
        case Commit(offset=offset):
            after = max(state, offset)
            return after if operation.result in (None, after) else None
        case Fetch():
            if operation.outcome is Outcome.UNKNOWN:
                return state
            found = -1 if operation.result is None else operation.result
            return state if found == state else None
        case _:
            raise TypeError(f"{operation.action} says nothing of an offset")


def _any_topic(_: Iterable[Operation]) -> tuple[bool, ...]:
    return (False, True)


def _any_offset(operations: Iterable[Operation]) -> tuple[int, ...]:
    """Those that somebody was told."""
    told = {each.result for each in operations if isinstance(each.result, int)}
    return tuple(sorted({-1, *told}))


TOPIC: Model[bool] = Model((False,), _apply_topic, _any_topic)
COMMITTED_OFFSET: Model[int] = Model((-1,), _apply_offset, _any_offset)


# --- whole histories ---------------------------------------------------------------------------


@dataclass(slots=True)
class Explained:
    """What no order explains, and of which keys nobody knows whether one does, or whether there is
    more than what was found."""

    anomalies: list[Anomaly] = field(default_factory=list)
    undecided: list[SearchTooLong | ContradictionsLeft] = field(default_factory=list)


def check_linearizability(history: History) -> Explained:
    """Everything that claims to be linearizable: ends of queues, topics, committed offsets."""
    found = Explained()
    for queue in queues_of(history):
        found.anomalies += check_queue_ends(queue)
    topics: defaultdict[str, list[Operation]] = defaultdict(list)
    offsets: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        if operation.outcome is Outcome.FAIL:
            if _says_something(operation):
                topics[f"topic {operation.action.topic}"].append(operation)
            continue
        match operation.action:
            case Create(topic=topic) | Delete(topic=topic) | Exists(topic=topic):
                topics[f"topic {topic}"].append(operation)
            case Commit(topic=topic, group=group, queue_id=queue_id):
                offsets[f"offset of {group} in {topic}/{queue_id}"].append(operation)
            case Fetch(topic=topic, group=group, queue_id=queue_id):
                offsets[f"offset of {group} in {topic}/{queue_id}"].append(operation)
            case _:
                pass
    _check_each(topics, TOPIC, found)
    _check_each(offsets, COMMITTED_OFFSET, found)
    return found


def _check_each(keys: dict[str, list[Operation]], model: Model[S], found: Explained) -> None:
    for key, operations in keys.items():
        told: list[Anomaly] = []
        try:
            for each in _contradictions(key, operations, model):
                told.append(each)
        except (SearchTooLong, ContradictionsLeft) as error:
            found.undecided.append(error)
        found.anomalies += as_one(told)


def _contradictions(key: str, operations: list[Operation], model: Model[S]) -> Iterator[Anomaly]:
    """One after the other, each by what ended behind the one before.

    Raises:
        SearchTooLong: one of the searches is.
        ContradictionsLeft: nobody knows whether there are more.
    """
    for _ in range(MAX_CONTRADICTIONS):
        if find_order(key, operations, model) is not None:
            return
        shown = _shortest_prefix(key, operations, model)
        detail = f"no order explains {len(shown)} operations, the last of them {shown[-1]}"
        numbers = tuple(each.op for each in shown[-8:])
        yield Anomaly("not-linearizable", key, detail, numbers)
        if shown is operations:
            raise ContradictionsLeft(key, 1)
        last = shown[-1]
        operations = [
            _as_unknown(each) if each is last else each  # it may have happened
            for each in operations
            if _end(each) >= _end(last)
        ]
        model = replace(model, starts=model.anywhere(operations))
    raise ContradictionsLeft(key, MAX_CONTRADICTIONS)


def _shortest_prefix(key: str, operations: list[Operation], model: Model[S]) -> list[Operation]:
    """The operations up to the first completion after which nothing explains them; all of them
    where one of the searches for it is too long."""
    done = sorted(
        (each for each in operations if _end(each) != FOREVER), key=lambda each: _end(each)
    )
    for last in done:
        known = [each for each in operations if _may_be_known(each, _end(last))]
        cut = [each if _end(each) <= _end(last) else _as_unknown(each) for each in known]
        try:
            order = find_order(key, cut, model)
        except SearchTooLong:
            return operations
        if order is None:
            return sorted((each for each in known if _end(each) <= _end(last)), key=_end)
    return operations


def _may_be_known(operation: Operation, at_us: int) -> bool:
    """Whether somebody may have seen it by then: one that is refused later has no effect before."""
    is_refused = operation.outcome is Outcome.FAIL
    return (_end(operation) if is_refused else operation.invoked_us) <= at_us


def _as_unknown(operation: Operation) -> Operation:
    return Operation(operation.op, operation.process, operation.action, operation.invoked_us)


def check_queue_ends(queue: QueueHistory) -> Iterator[Anomaly]:
    """Sends and reads of the end, ordered by what they say, never contradict real time."""
    places = {seen.value: seen.offset for seen in (*queue.polled(), *queue.acknowledged())}
    ordered: list[tuple[int, Operation]] = []
    for send in queue.sends:
        if isinstance(send.action, Send) and send.action.values[0] in places:
            ordered.append((2 * places[send.action.values[0]] + 1, send))
    for end in queue.ends:
        if end.is_ok and isinstance(end.result, int):
            ordered.append((2 * end.result, end))
    ordered.sort(key=lambda each: each[0])
    yield from as_one(_against_time(queue.name, ordered))


def _against_time(where: str, ordered: Sequence[tuple[int, Operation]]) -> Iterator[Anomaly]:
    """What ended before something began that has a smaller place: beside the one of those that
    began last, and the one that ended first."""
    before = _Before()
    for _, same in groupby(ordered, key=lambda each: each[0]):
        group = [operation for _, operation in same]
        for operation in group:
            for other in before.begun_after(_end(operation)):
                detail = f"{operation.action} ended before {other.action} began, and comes after"
                yield Anomaly("not-linearizable", where, detail, (operation.op, other.op))
        for operation in group:
            before.add(operation)


class _Before:
    """Operations with smaller places: those for which no other one began later and ended earlier,
    by when they began."""

    def __init__(self) -> None:
        self._kept: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """It has a smaller place than what is asked from now on."""
        at = bisect_right(self._kept, operation.invoked_us, key=_begin)
        if at < len(self._kept) and _end(self._kept[at]) <= _end(operation):
            return
        first = at
        while first and _end(self._kept[first - 1]) >= _end(operation):
            first -= 1
        self._kept[first:at] = [operation]

    def begun_after(self, time_us: int) -> tuple[Operation, ...]:
        """The one that began last, and the one that ended first; none if none began after it."""
        at = bisect_right(self._kept, time_us, key=_begin)
        return (self._kept[-1], self._kept[at]) if at < len(self._kept) else ()


def _begin(operation: Operation) -> int:
    return operation.invoked_us
