"""What producers and consumers say of themselves: histories, read for the delivery audit.

The format is that of `chaos.checkers.history`, one JSON event a line; `chaos` writes it, and so
can any application. It is read here once more because audits run beside the nodes and import
nothing of `chaos`. Of a history only sends, polls and deletions matter, and of these only what a
task wants is kept: memory is that of its queues, whatever the files' size. `Operations` reads
events one by one, so that they may come from a file's lines or, on a cluster, from a shuffle that
brings an operation's events together.

    {"time_us": 1200, "event": "invoke", "op": 7, "process": "p1", "action": "send",
     "topic": "t", "queue_id": 0, "sequence": 4, "values": ["p1-0-4"]}
    {"time_us": 3400, "event": "ok", "op": 7, "result": 12}

Operation numbers and processes belong to their file: two files may use the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from audit.errors import HistoryMistake

ACTIONS: Final = frozenset(
    ("send", "poll", "commit", "fetch", "end", "create", "delete", "exists"),
)

BAD_EVENT: Final = (KeyError, TypeError, ValueError, RecursionError)
QueueKey = tuple[str, int]
Process = tuple[int, str]  # The file's number, the name in it.


class Outcome(StrEnum):
    """What the client knows of an operation; of one that never ended, nothing."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    """Messages handed over to one queue, in order. `offset`: the queue offset of the first, if
    they were acknowledged."""

    process: Process
    values: tuple[str, ...]
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None


@dataclass(slots=True)
class Polled:
    """Messages that a consumer got at once, each with its queue offset. `is_seek`: it asked for
    this place on purpose."""

    process: Process
    is_seek: bool
    messages: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class QueueStory:
    """What the histories say of one queue, each file in the order of invocation."""

    sends: list[Sent] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """What was kept of the histories, and what all of them say: the topics that were sent to or
    polled, those whose deletion was asked for and not refused."""

    queues: dict[QueueKey, QueueStory] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    operations: int = 0


def read_histories(files: Sequence[str], keeps: Callable[[QueueKey], bool]) -> Story:
    """The story of the queues that `keeps` accepts.

    Raises:
        HistoryMistake: a line is cut short, or no event that fits those before it.
        OSError: a file can't be read.
    """
    story = Story()
    for number, path in enumerate(files):
        with open(path, "rb") as file:
            _read(Operations(story, number, keeps), file, path)
    return story


def event_of(line: bytes) -> dict[str, object]:
    """The event that a line holds.

    Raises:
        ValueError, TypeError, KeyError, RecursionError: it holds none; see `reason_of`.
    """
    if not line.endswith(b"\n"):
        raise ValueError("cut short: it doesn't end")
    event = json.loads(line)
    if not isinstance(event, dict):
        raise TypeError("no event")
    _whole(event["op"], "op")
    return event


def reason_of(error: Exception) -> str:
    """What is wrong with a line that reading has failed of."""
    return f"no field {error}" if isinstance(error, KeyError) else str(error)


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A deletion under way."""

    topic: str


def _read(operations: Operations, lines: Iterable[bytes], name: str) -> None:
    """Every line is in the story."""
    for number, line in enumerate(lines, start=1):
        try:
            operations.take(event_of(line))
        except BAD_EVENT as error:
            raise HistoryMistake(name, number, reason_of(error)) from error
    operations.end()


class Operations:
    """Takes one file's events into a story. Operations under way are all that it remembers."""

    def __init__(self, story: Story, number: int, keeps: Callable[[QueueKey], bool]) -> None:
        self._story = story
        self._number = number
        self._keeps = keeps
        self._under_way: dict[int, Sent | Polled | _Deletion | None] = {}

    def end(self) -> None:
        """There are no more events: what is under way may have happened."""
        for pending in self._under_way.values():
            if isinstance(pending, _Deletion):
                self._story.deleted.add(pending.topic)

    def take(self, event: dict[str, object]) -> None:
        """The story goes on with this event.

        Raises:
            ValueError, TypeError, KeyError: it doesn't fit those before it; see `reason_of`.
        """
        op = _whole(event["op"], "op")
        if event["event"] == "invoke":
            if op in self._under_way:
                raise ValueError(f"operation {op} is invoked twice")
            self._under_way[op] = self._invoked(event)
            self._story.operations += 1
            return
        outcome = Outcome(str(event["event"]))
        if op not in self._under_way:
            raise ValueError(f"operation {op} ends and isn't under way")
        self._completed(self._under_way.pop(op), outcome, event.get("result"))

    def _invoked(self, event: dict[str, object]) -> Sent | Polled | _Deletion | None:
        action = event["action"]
        if action not in ACTIONS:
            raise ValueError(f"unknown action {action!r}")
        topic = str(event["topic"])
        if action == "delete":
            return _Deletion(topic)
        if action not in ("send", "poll"):
            return None
        self._story.topics.add(topic)
        key = (topic, _whole(event["queue_id"], "queue_id"))
        process = (self._number, str(event["process"]))
        if action == "poll":
            poll = Polled(process, event.get("seek") is True)
            if self._keeps(key):
                self._story.queues.setdefault(key, QueueStory()).polls.append(poll)
            return poll
        values = event["values"]
        if not isinstance(values, list):
            raise TypeError("values is a list")
        sent = Sent(process, tuple(map(str, values)))
        if self._keeps(key):
            self._story.queues.setdefault(key, QueueStory()).sends.append(sent)
        return sent

    def _completed(
        self, what: Sent | Polled | _Deletion | None, outcome: Outcome, result: object
    ) -> None:
        match what:
            case Sent():
                what.outcome = outcome
                if outcome is Outcome.OK and result is not None:
                    what.offset = _whole(result, "a send's result")
            case Polled():
                if outcome is Outcome.OK:
                    what.messages = _messages(result)
            case _Deletion():
                if outcome is not Outcome.FAIL:
                    self._story.deleted.add(what.topic)
            case None:
                pass


def _messages(result: object) -> tuple[tuple[int, str], ...]:
    if not isinstance(result, list):
        raise TypeError("a poll's result is a list of [offset, value]")
    return tuple((_whole(offset, "an offset"), str(value)) for offset, value in result)


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    return value
