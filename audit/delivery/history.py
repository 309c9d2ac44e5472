"""What is kept of clients' histories for a delivery audit: sends, polls and deletions, by queue.

The format and the reading of lines are `dledger.history`'s. Of a history only what a task wants is
kept: memory is that of its queues, whatever the files' size. `Operations` takes events one by one,
so that they may come from a file's lines or, on a cluster, from a shuffle that brings an
operation's events together. Two files may use the same operation numbers and processes.

A history may go on being written. The log is compared up to where it was committed at one moment,
so what is told later that something happened is of unknown outcome; what is told later that was
begun may have been done by then. Whether a deletion was, the log itself says (`deleted_later`).
`ends` are the sizes that the files had before that moment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from audit.errors import UsageMistake
from dledger.history import Event, Outcome, read_events
from dledger.records.errors import BadEvent

LATER: Final = "begun_later"  # a field of an invocation, which no client writes
WHOLE: Final = 1 << 63  # the end of a file that nobody writes to

QueueKey = tuple[str, int]
Process = tuple[int, str]  # The file's number, the name in it.


@dataclass(slots=True)
class Sent:
    """Messages handed over to one queue, in order. `offset`: the queue offset of the first, if
    they were acknowledged, and somebody knows it."""

    process: Process
    values: tuple[str, ...]
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None


@dataclass(slots=True)
class Polled:
    """Messages that a consumer got at once, each with its queue offset. `is_seek`: it asked for
    this place on purpose; `asked`: the queue offset that it asked for, None if the history doesn't
    say; `is_filtered`: it wanted some of the messages only."""

    process: Process
    is_seek: bool
    asked: int | None = None
    is_filtered: bool = False
    messages: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True)
class QueueStory:
    """What the histories say of one queue, each file in the order of invocation."""

    sends: list[Sent] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """What was kept of the histories, and what all of them say: the topics that were sent to or
    polled, those whose deletion was asked for and not refused; apart from them those of which that
    began when the log's end may have been before it."""

    queues: dict[QueueKey, QueueStory] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    deleted_later: set[str] = field(default_factory=set)
    operations: int = 0

    def settle(self, ended: Set[str]) -> None:
        """Deletions that began later happened before the log's end if that is among the topics
        that may have ended in the log since, and else behind it."""
        self.deleted |= self.deleted_later & ended


def read_histories(
    files: Sequence[str], keeps: Callable[[QueueKey], bool], ends: Sequence[int] = ()
) -> Story:
    """The story of the queues that `keeps` accepts.

    Args:
        ends: how large the files were before the log was asked for its end; none: they are whole.

    Raises:
        HistoryCorrupt: a line is cut short, or no event that fits those before it.
        OSError: a file can't be read.
    """
    story = Story()
    for number, path in enumerate(files):
        operations = Operations(story, number, keeps)
        _read(path, ends[number] if ends else WHOLE, operations)
        operations.end()
    return story


def _read(path: str, end: int, operations: Operations) -> None:
    """The file's events are taken."""
    with open(path, "rb") as file:
        lines = _Lines(file, end)
        read_events(lines, path, lambda event: operations.take(lines.as_of_then(event)))


class _Lines:
    """The lines of a history that had `end` bytes before the log was asked for its end; a last one
    that isn't all there is none if the file has grown since."""

    def __init__(self, file: Iterable[bytes], end: int) -> None:
        self._file = file
        self._end = end
        self._at = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self._at += len(line)
            if self._at > self._end and not line.endswith(b"\n"):
                return
            yield line

    def as_of_then(self, event: Event) -> Event:
        """The event of the line that was given last, as far as it says what the log must have."""
        return told_then(event, is_later=self._at > self._end)


def told_then(event: Event, *, is_later: bool) -> Event:
    """What happened by a line that came later may have happened later. Who was refused is refused
    for good, whenever that is told."""
    if is_later and event.outcome is Outcome.OK:
        return replace(event, outcome=Outcome.UNKNOWN)
    if is_later and event.outcome is None and event.action == "delete":
        return replace(event, fields={**event.fields, LATER: True})
    return event


def sizes_of(files: Sequence[str]) -> tuple[int, ...]:
    """How many bytes each has. One that is given twice, or is a copy of another one, would tell
    everything twice, and what was sent once could lie in the log at two places.

    Raises:
        UsageMistake: a file can't be read, or is one of the others.
    """
    path = ""
    try:
        sizes = [os.stat(path := each).st_size for each in files]
        seen: dict[bytes, str] = {}
        for path, size in zip(files, sizes, strict=True):
            if size and sizes.count(size) > 1:  # An empty one tells nothing, however often.
                digest = _digest_of(path)
                if digest in seen:
                    raise UsageMistake(
                        f"{path} is {seen[digest]} once more: give each history once"
                    )
                seen[digest] = path
    except OSError as error:
        raise UsageMistake(f"{path}: {error.strerror}") from error
    return tuple(sizes)


def _digest_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A deletion under way. `is_later`: see `Story.deleted_later`."""

    topic: str
    is_later: bool


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
                self._deleted(pending)

    def take(self, event: Event) -> None:
        """The story goes on with this event.

        Raises:
            BadEvent: it doesn't fit those before it.
        """
        if event.outcome is None:
            if event.op in self._under_way:
                raise BadEvent(f"operation {event.op} is invoked twice")
            self._under_way[event.op] = self._invoked(event)
            self._story.operations += 1
            return
        if event.op not in self._under_way:
            raise BadEvent(f"operation {event.op} ends and isn't under way")
        self._ended(self._under_way.pop(event.op), event.outcome, event)

    def _invoked(self, event: Event) -> Sent | Polled | _Deletion | None:
        action, topic = event.action, event.text("topic")
        if action == "delete":
            return _Deletion(topic, is_later=event.fields.get(LATER) is True)
        if action not in ("send", "poll"):
            return None
        self._story.topics.add(topic)
        key = (topic, event.whole("queue_id"))
        process = (self._number, event.text("process"))
        if action == "poll":
            poll = Polled(
                process,
                event.fields.get("seek") is True,
                None if event.fields.get("offset") is None else event.whole("offset"),
                event.fields.get("filtered") is True,
            )
            if self._keeps(key):
                self._story.queues.setdefault(key, QueueStory()).polls.append(poll)
            return poll
        sent = Sent(process, event.values)
        if self._keeps(key):
            self._story.queues.setdefault(key, QueueStory()).sends.append(sent)
        return sent

    def _ended(
        self, what: Sent | Polled | _Deletion | None, outcome: Outcome, event: Event
    ) -> None:
        match what:
            case Sent():
                what.outcome = outcome
                if outcome is Outcome.OK:
                    what.offset = event.place
            case Polled():
                if outcome is Outcome.OK:
                    what.messages = event.messages
            case _Deletion():
                if outcome is not Outcome.FAIL:
                    self._deleted(what)
            case None:
                pass

    def _deleted(self, what: _Deletion) -> None:
        story = self._story
        (story.deleted_later if what.is_later else story.deleted).add(what.topic)
