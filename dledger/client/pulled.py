"""What nodes answer with messages, judged before anything of it counts. Pure functions.

Whatever lies between the offset asked for and `next_offset`, and isn't among the messages, counts
as finished: it is void, or isn't wanted. So one number that is off (a flipped bit, a defect of a
broker) would have a consumer group commit messages that nobody was given. An answer has to account
for every offset that it moves over, and its messages have to be those of the place asked for, each
once. One that doesn't is nobody's: `RecordCorrupt`, and nothing of it is kept.

    next_offset    offset + count + void_count + filtered_count; not behind max_offset
    the messages   `count` of them, of that topic and queue, ascending within [offset, next_offset);
                   if none are left out by tags the last ones of it, one after the other

Brokers of releases before say 0 where they don't know a number, and have nothing of its kind; an
incarnation of 0 says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter, lt
from typing import Final, NamedTuple

from dledger.client.errors import RecordCorrupt
from dledger.client.results import Message, decode_messages
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb
from dledger.wire import deliveries_pb2 as dpb
from dledger.wire import groups_pb2 as gpb

_TOPIC: Final = itemgetter(Message._fields.index("topic"))
_QUEUE: Final = itemgetter(Message._fields.index("queue_id"))
_OFFSET: Final = itemgetter(Message._fields.index("queue_offset"))
_PLACE: Final = itemgetter(*map(Message._fields.index, ("queue_id", "queue_offset")))
_POSITION: Final = attrgetter("position")


class Asked(NamedTuple):
    """What a pull is for: messages of a queue from `offset` on. `incarnation` 0: of whichever topic
    has the name; `by_tags`: some messages may be left out."""

    topic: str
    incarnation: int
    queue_id: int
    offset: int
    by_tags: bool

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id} from {self.offset} on"


class Pulled(NamedTuple):
    """An answer whose numbers agree, not yet decoded: so many messages within what the leader has
    looked at; if not `apart`, the last ones of that, one after the other."""

    asked: Asked
    records: bytes
    record_count: int
    next_offset: int
    apart: bool

    def messages(self) -> list[Message]:
        """The messages.

        Raises:
            RecordCorrupt: they are not so many whole records, or not those of the place.
        """
        messages = decode_messages(self.records)
        _check_place(messages, self.record_count, self.asked.topic, self.asked.queue_id)
        offsets = list(map(_OFFSET, messages))
        end = self.next_offset
        if self.apart:
            is_right = not offsets or (self.asked.offset <= offsets[0] and offsets[-1] < end)
            is_right = is_right and all(map(lt, offsets, offsets[1:]))
        else:
            is_right = offsets == list(range(end - self.record_count, end))
        if not is_right:
            span = f"{offsets[0]} to {offsets[-1]}"
            raise _wrong(f"asked for {self.asked}, up to {end}: messages out of place, {span}")
        return messages


def pulled(answer: pb.PullResponse | gpb.PulledQueue, asked: Asked) -> Pulled:
    """The answer, which accounts for every offset that it moves over.

    Raises:
        RecordCorrupt: it doesn't.
    """
    count, until = answer.count, answer.next_offset
    told = asked.offset + count + answer.void_count + answer.filtered_count
    if (
        until != told
        or until > answer.max_offset
        or (asked.incarnation and answer.topic_incarnation not in (0, asked.incarnation))
    ):
        raise _wrong(
            f"asked for {asked}, of incarnation {asked.incarnation}: {count} messages, "
            f"{answer.void_count} void, {answer.filtered_count} left out, up to {until} of "
            f"{answer.max_offset}, of incarnation {answer.topic_incarnation}"
        )
    apart = asked.by_tags or answer.filtered_count > 0
    return Pulled(asked, answer.records, count, until, apart)


def check_positions(answer: gpb.PullQueuesResponse, asked: int) -> None:
    """Each part of the answer is of one of so many queues, and of another one.

    Raises:
        RecordCorrupt: it isn't.
    """
    positions = list(map(_POSITION, answer.queues))
    if positions and (len({*positions}) < len(positions) or max(positions) >= asked):
        raise _wrong(f"asked for {asked} queues: told of those at {positions[:100]}")


def handed_out(
    parts: Iterable[dpb.HandedOut], topic: str
) -> list[tuple[dpb.HandedOut, list[Message]]]:
    """The messages of each part, which are all at different places: of two at one place the first
    to be done would have the other acknowledged.

    Raises:
        RecordCorrupt: two are at one place; a part isn't so many whole records, or of another
            topic or queue.
    """
    found: list[tuple[dpb.HandedOut, list[Message]]] = []
    places: set[tuple[int, int]] = set()
    count = 0
    for part in parts:
        messages = decode_messages(part.records)
        _check_place(messages, part.count, topic, part.queue_id)
        places.update(map(_PLACE, messages))
        count += len(messages)
        found.append((part, messages))
    if len(places) < count:
        raise _wrong(f"of {topic}: {count} messages at {len(places)} places")
    return found


def _check_place(messages: Sequence[Message], count: int, topic: str, queue_id: int) -> None:
    """There are so many messages, all of that topic and queue."""
    of_topic = list(map(_TOPIC, messages)).count(topic)
    of_queue = list(map(_QUEUE, messages)).count(queue_id)
    if not len(messages) == of_topic == of_queue == count:
        raise _wrong(
            f"{len(messages)} messages, told as {count}: {of_topic} are of topic {topic!r}, "
            f"{of_queue} of queue {queue_id}"
        )


def _wrong(text: str) -> RecordCorrupt:
    return RecordCorrupt(
        f"the node's answer contradicts itself: {text}", outcome=Outcome.DID_NOT_HAPPEN
    )
