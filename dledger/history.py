"""What clients did, when, and what they learned: the format of histories, and the way to read one.

A history is JSON lines, an event each: an operation is invoked, and later it is `ok`, `fail` (it
did not happen) or `unknown` (it may have happened, or still may). An operation that never ends is
unknown. Operation numbers and processes belong to their file.

    {"time_us": 1200, "event": "invoke", "op": 7, "process": "producer-1", "action": "send",
     "topic": "t", "queue_id": 0, "sequence": 4, "values": ["p1-0-4"]}
    {"time_us": 3400, "event": "ok", "op": 7, "result": 12}

    action    fields beside topic                  result of an ok
    send      queue_id, sequence, values           queue offset of the first value, null if
                                                   nobody knows it (or -1, as clients say)
    poll      queue_id, offset, seek, final,       [[offset, value], ...]
              filtered
    commit    group, queue_id, offset              the committed offset as it stands
    fetch     group, queue_id                      the committed offset, null without one
    end       queue_id                             the maximum offset
    create    queues                               none
    delete    -                                    none
    exists    -                                    true or false

A fail may say with which `refusal`, the error's code on the wire: of an operation of which no
attempt may have happened, so that it isn't the answer to an attempt of its own. A refusal is then
an answer about what there was: TOPIC_EXISTS of a create, TOPIC_NOT_FOUND of others.

`values` are the producer's next messages to that queue, in order. `seek` says that the consumer
asked for this offset on purpose, so that going back or forth is no anomaly, which holds until a
poll brings something; `final` marks the reading of everything at the end; `filtered` says that the
consumer wanted some of the messages only (tags), so that passing over others is none. It may be
missing, and is false then.

Chaos runs write histories, any application can, and audits read either's; so the format stands
below all of them. Here a line becomes an event. Which fields a reader needs beyond that is its own
matter: chaos's checkers ask for all of them, a delivery audit for few, so that writing one is easy.

Source: Jepsen's history format, reduced to what a log needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dledger.records.errors import BadEvent, HistoryCorrupt

ACTIONS: Final = frozenset(
    ("send", "poll", "commit", "fetch", "end", "create", "delete", "exists"),
)
INVOKE: Final = "invoke"


class Outcome(StrEnum):
    """What the client knows of an operation; of one that never ended, nothing."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `outcome`: what the operation ended with; None if it is invoked. `fields` are all
    that the line says, asked for by methods that raise `BadEvent`."""

    op: int
    outcome: Outcome | None
    fields: Mapping[str, object]

    @property
    def action(self) -> str:
        """What is done, one of `ACTIONS`."""
        found = self._field("action")
        if not isinstance(found, str) or found not in ACTIONS:
            raise BadEvent(f"unknown action {found!r}")
        return found

    @property
    def values(self) -> tuple[str, ...]:
        """The messages that are sent."""
        found = self._field("values")
        if not isinstance(found, list):
            raise BadEvent("values is a list")
        return tuple(map(str, found))

    @property
    def messages(self) -> tuple[tuple[int, str], ...]:
        """What a poll got."""
        found = self.fields.get("result")
        try:
            if isinstance(found, list):
                return tuple((_whole(at, "an offset"), str(value)) for at, value in found)
        except (TypeError, ValueError) as error:
            raise BadEvent(f"a poll's result is a list of [offset, value]: {error}") from error
        raise BadEvent("a poll's result is a list of [offset, value]")

    @property
    def place(self) -> int | None:
        """The queue offset of a send's first value; None: nobody knows it, as of one that was
        stored so long ago that its place is not remembered."""
        if self.fields.get("result") is None:
            return None
        offset = self.whole("result")
        return None if offset < 0 else offset

    def text(self, name: str) -> str:
        """The field as text."""
        return str(self._field(name))

    def whole(self, name: str) -> int:
        """The field, a whole number."""
        return _whole(self._field(name), name)

    def _field(self, name: str) -> object:
        if name not in self.fields:
            raise BadEvent(f"no field {name!r}")
        return self.fields[name]


def event_of(line: bytes) -> Event:
    """The event that a line holds.

    Raises:
        BadEvent: it holds none.
    """
    if not line.endswith(b"\n"):
        raise BadEvent("cut short: it doesn't end")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadEvent("no event")
    event = Event(0, None, found)
    op, name = event.whole("op"), event.text("event")
    if name == INVOKE:
        return Event(op, None, found)
    try:
        return Event(op, Outcome(name), found)
    except ValueError as error:
        raise BadEvent(f"an operation ends with ok, fail or unknown, not {name!r}") from error


def read_events(lines: Iterable[bytes], file: str, take: Callable[[Event], None]) -> None:
    """Every line has been given to `take`, which may raise `BadEvent` itself.

    Raises:
        HistoryCorrupt: a line is cut short, or no event that fits those before it.
    """
    for number, line in enumerate(lines, start=1):
        try:
            take(event_of(line))
        except BadEvent as error:
            raise HistoryCorrupt(file, number, str(error)) from error


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadEvent(f"{name} is a whole number, not {value!r}")
    return value
