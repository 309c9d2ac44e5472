"""What clients did, when, and what they learned, in memory: the input of every checker.

Runs make one as they go, and `sink` gets its lines as they happen, so that a run that dies leaves
what it saw. The format is `dledger.history`'s; read back, every field of an action must be there
and of its type, because a checker that fills in what is missing proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO

from dledger.history import INVOKE, Event, Outcome, read_events
from dledger.records.errors import BadEvent


@dataclass(frozen=True, slots=True)
class Send:
    topic: str
    queue_id: int
    sequence: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Poll:
    topic: str
    queue_id: int
    offset: int
    seek: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    topic: str
    group: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    topic: str
    group: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class End:
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Create:
    topic: str
    queues: int


@dataclass(frozen=True, slots=True)
class Delete:
    topic: str


@dataclass(frozen=True, slots=True)
class Exists:
    topic: str


Action = Send | Poll | Commit | Fetch | End | Create | Delete | Exists
Polled = tuple[tuple[int, str], ...]
Result = int | bool | Polled | None

_ACTIONS: dict[str, type[Action]] = {
    kind.__name__.lower(): kind for kind in (Send, Poll, Commit, Fetch, End, Create, Delete, Exists)
}
_RESERVED = ("time_us", "event", "op", "process", "action")


@dataclass(slots=True)
class Operation:
    """One operation from its invocation to what became of it. `completed_us` is None as long as
    nothing was heard; `outcome` is then UNKNOWN. `refusal`: see `dledger.history`."""

    op: int
    process: str
    action: Action
    invoked_us: int
    completed_us: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    result: Result = None
    refusal: str = ""

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(slots=True)
class History:
    """Operations in the order of their invocation. `sink`, if given, gets the lines as they
    happen."""

    operations: list[Operation] = field(default_factory=list)
    sink: IO[str] | None = None

    def invoke(self, time_us: int, process: str, action: Action) -> Operation:
        """`process` begins an operation now; the caller completes it, or leaves it unknown."""
        operation = Operation(len(self.operations), process, action, time_us)
        self.operations.append(operation)
        if self.sink is not None:
            self._write(_invocation(operation))
        return operation

    def complete(
        self, time_us: int, operation: Operation, outcome: Outcome, result: Result = None
    ) -> None:
        """`operation` ended."""
        operation.completed_us = time_us
        operation.outcome = outcome
        operation.result = result
        self._note_end(operation)

    def refuse(self, time_us: int, operation: Operation, refusal: str) -> None:
        """`operation` was refused: no attempt of it happened, nor can one that is under way."""
        operation.completed_us = time_us
        operation.outcome = Outcome.FAIL
        operation.refusal = refusal
        self._note_end(operation)

    def _note_end(self, operation: Operation) -> None:
        if self.sink is not None:
            self._write(_completion(operation))

    def lines(self) -> Iterator[str]:
        """The events as JSON lines, in the order of time."""
        events = [(each.invoked_us, 0, each.op, _invocation(each)) for each in self.operations]
        events += [
            (each.completed_us, 1, each.op, _completion(each))
            for each in self.operations
            if each.completed_us is not None
        ]
        for *_, event in sorted(events, key=lambda event: event[:3]):
            yield json.dumps(event, separators=(",", ":"))

    def _write(self, event: dict[str, object]) -> None:
        if self.sink is not None:
            self.sink.write(json.dumps(event, separators=(",", ":")) + "\n")


def _invocation(operation: Operation) -> dict[str, object]:
    action = operation.action
    return {
        "time_us": operation.invoked_us,
        "event": INVOKE,
        "op": operation.op,
        "process": operation.process,
        "action": type(action).__name__.lower(),
        **asdict(action),
    }


def _completion(operation: Operation) -> dict[str, object]:
    event: dict[str, object] = {
        "time_us": operation.completed_us,
        "event": operation.outcome.value,
        "op": operation.op,
    }
    if operation.result is not None:
        event["result"] = operation.result
    if operation.refusal:
        event["refusal"] = operation.refusal
    return event


# --- reading -----------------------------------------------------------------------------------


def read_history(path: Path) -> History:
    """The history in the file `path`.

    Raises:
        HistoryCorrupt: a line is cut short, or isn't an event that fits those before it.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        return parse_history(file, str(path))


def parse_history(lines: Iterable[bytes], name: str = "history") -> History:
    """The history in `lines`; see `read_history`."""
    reader = _Reader()
    read_events(lines, name, reader.take)
    return reader.history


class _Reader:
    """Takes events into a history."""

    def __init__(self) -> None:
        self.history = History()
        self._by_op: dict[int, Operation] = {}

    def take(self, event: Event) -> None:
        """The history goes on with this event."""
        time_us = event.whole("time_us")
        if event.outcome is None:
            if event.op in self._by_op:
                raise BadEvent(f"operation {event.op} is invoked twice")
            operation = Operation(event.op, event.text("process"), _action(event), time_us)
            self._by_op[event.op] = operation
            self.history.operations.append(operation)
            return
        if event.op not in self._by_op:
            raise BadEvent(f"operation {event.op} ends and isn't under way")
        operation = self._by_op[event.op]
        if operation.completed_us is not None:
            raise BadEvent(f"operation {event.op} ends twice")
        if time_us < operation.invoked_us:
            raise BadEvent(f"operation {event.op} ends before it begins")
        operation.completed_us = time_us
        operation.outcome = event.outcome
        operation.result = _result(event, operation)
        if event.outcome is Outcome.FAIL and "refusal" in event.fields:
            operation.refusal = event.text("refusal")


def _action(event: Event) -> Action:
    kind = _ACTIONS[event.action]
    given = {key: value for key, value in event.fields.items() if key not in _RESERVED}
    if "values" in given:
        given["values"] = event.values
    known = {each.name for each in fields(kind)}
    if unknown := sorted(given.keys() - known):
        raise BadEvent(f"unknown fields {unknown}")
    for each in fields(kind):
        if each.name in given and (found := type(given[each.name]).__name__) != _kind(each.type):
            raise BadEvent(f"{each.name} is a {found}")
    if given.get("values") == ():
        raise BadEvent("values is empty")
    try:
        return kind(**given)  # type: ignore[arg-type]  # checked against the fields just now
    except TypeError as error:
        raise BadEvent(f"a field is missing: {error}") from error


def _kind(annotation: object) -> str:
    """The name of the type that a field's annotation, a text here, stands for."""
    return str(annotation).partition("[")[0]


def _result(event: Event, operation: Operation) -> Result:
    if isinstance(operation.action, Poll) and operation.is_ok:
        return event.messages
    if isinstance(operation.action, Send) and operation.is_ok:
        return event.place
    found = event.fields.get("result")
    if found is None or isinstance(found, int):
        return found
    raise BadEvent(f"result {found!r}")
