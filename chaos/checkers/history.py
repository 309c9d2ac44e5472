"""What clients did, when, and what they learned: the input of every checker.

A history is a list of events: an operation is invoked, and later it is `ok`, `fail` (it did not
happen) or `unknown` (it may have happened, or still may). An operation that never completes is
unknown. In a file it is JSON lines, one event a line, so that a run that dies leaves what it saw.

    {"time_us": 1200, "event": "invoke", "op": 7, "process": "producer-1", "action": "send",
     "topic": "t", "queue_id": 0, "sequence": 4, "values": ["p1-0-4"]}
    {"time_us": 3400, "event": "ok", "op": 7, "result": 12}

    action    fields beside topic                  result of an ok
    send      queue_id, sequence, values           queue offset of the first value
    poll      queue_id, offset, seek, final        [[offset, value], ...]
    commit    group, queue_id, offset              the committed offset as it stands
    fetch     group, queue_id                      the committed offset, null without one
    end       queue_id                             the maximum offset
    create    queues                               none
    delete    -                                    none
    exists    -                                    true or false

`values` are the producer's next messages to that queue, in order. `seek` says that the consumer
asked for this offset on purpose, so that going back or forth is no anomaly; `final` marks the
reading of everything at the end. Source: Jepsen's history format, reduced to what a log needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import IO

from chaos.errors import HistoryCorrupt


class Outcome(Enum):
    """What the client knows of an operation."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


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
    nothing was heard; `outcome` is then UNKNOWN."""

    op: int
    process: str
    action: Action
    invoked_us: int
    completed_us: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    result: Result = None

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
        "event": "invoke",
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
    return event


# --- reading -----------------------------------------------------------------------------------


def read_history(path: Path) -> History:
    """The history in the file `path`.

    Raises:
        HistoryCorrupt: a line is cut short, or isn't an event that fits those before it.
        OSError: the file can't be read.
    """
    with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
        return parse_history(file, str(path))  # what isn't UTF-8 is no JSON either, in its line


def parse_history(lines: Iterable[str], name: str = "history") -> History:
    """The history in `lines`; see `read_history`."""
    history = History()
    by_op: dict[int, Operation] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if not line.endswith("\n"):
                raise ValueError("cut short: it doesn't end")
            _take(json.loads(line), history, by_op)
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryCorrupt(name, number, f"{type(error).__name__}: {error}") from error
    return history


def _take(event: dict[str, object], history: History, by_op: dict[int, Operation]) -> None:
    time_us, number = event["time_us"], event["op"]
    if not isinstance(time_us, int) or not isinstance(number, int):
        raise TypeError("time_us and op are whole numbers")
    if event["event"] == "invoke":
        if number in by_op:
            raise ValueError(f"operation {number} is invoked twice")
        operation = Operation(number, str(event["process"]), _action(event), time_us)
        by_op[number] = operation
        history.operations.append(operation)
        return
    operation = by_op[number]
    if operation.completed_us is not None:
        raise ValueError(f"operation {number} ends twice")
    if time_us < operation.invoked_us:
        raise ValueError(f"operation {number} ends before it begins")
    operation.completed_us = time_us
    operation.outcome = Outcome(event["event"])
    operation.result = _result(event.get("result"), operation)


def _action(event: dict[str, object]) -> Action:
    kind = _ACTIONS[str(event["action"])]
    given = {key: value for key, value in event.items() if key not in _RESERVED}
    if "values" in given:
        values = given["values"]
        if not isinstance(values, list):
            raise TypeError("values is a list")
        given["values"] = tuple(map(str, values))
    known = {each.name for each in fields(kind)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"unknown fields {unknown}")
    for each in fields(kind):
        if each.name in given and (found := type(given[each.name]).__name__) != _kind(each.type):
            raise TypeError(f"{each.name} is a {found}")
    if given.get("values") == ():
        raise ValueError("values is empty")
    return kind(**given)  # type: ignore[arg-type]  # checked against the fields just now


def _kind(annotation: object) -> str:
    """The name of the type that a field's annotation, a text here, stands for."""
    return str(annotation).partition("[")[0]


def _result(found: object, operation: Operation) -> Result:
    if isinstance(operation.action, Poll) and operation.is_ok:
        if not isinstance(found, list):
            raise TypeError("a poll's result is a list of [offset, value]")
        return tuple((int(offset), str(value)) for offset, value in found)
    if found is None or isinstance(found, int):
        return found
    raise TypeError(f"result {found!r}")
