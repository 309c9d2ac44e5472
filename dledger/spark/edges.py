"""Where a reading of topics begins and where it ends, queue by queue.

An `Edge` is what the options say (an end of the queues, offsets, times) before any broker was
asked; `resolved` makes offsets of one topic's queues of it. Options as Spark's Kafka source has
them; what is said twice, or of a topic or queue that isn't there, is refused and never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger.spark import options as opt
from dledger.spark.brokers import Topic
from dledger.spark.errors import BadOption, DataLost

EARLIEST: Final = -2
LATEST: Final = -1
EDGE_OPTIONS: Final = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
)

ByQueue = Mapping[str, Mapping[int, int]]
AskTime = Callable[[Topic, int, int], int]  # topic, queue id, ms since the epoch: an offset


@dataclass(frozen=True, slots=True)
class Edge:
    """One of the ends: `everywhere` for all queues alike (EARLIEST, LATEST), or `time_ms`, or
    `offsets` or `times_ms` by topic and queue. `name`: the option that said so."""

    name: str
    everywhere: int = LATEST
    time_ms: int | None = None
    offsets: ByQueue | None = None
    times_ms: ByQueue | None = None


def edge_of(options: Mapping[str, str], side: str, default: int, topics: tuple[str, ...]) -> Edge:
    """What the options say of one side.

    Args:
        side: `starting` or `ending`.
        default: EARLIEST or LATEST, where nothing is said.
        topics: those that are read.

    Raises:
        BadOption: they make no sense, or say it twice.
    """
    names = tuple(name for name in EDGE_OPTIONS if name.startswith(side))
    given = [name for name in names if options.get(name)]
    if len(given) > 1:
        raise BadOption(f"{given[0]} and {given[1]} exclude each other")
    if not given:
        return Edge(names[0], default)
    name = given[0]
    text = options[name].strip()
    if name.endswith("Timestamp") and "By" not in name:
        return Edge(name, time_ms=opt.milliseconds(options, name))
    if name.endswith("Offsets") and text.lower() in ("earliest", "latest"):
        if side == "ending" and text.lower() == "earliest":
            raise BadOption(f"{name} is {text!r}: nothing ends where it begins")
        return Edge(name, EARLIEST if text.lower() == "earliest" else LATEST)
    found = opt.by_queue(text, name)
    if strangers := [topic for topic in found if topic not in topics]:
        raise BadOption(f"{name} names topic {strangers[0]!r}, which topics doesn't")
    if name.endswith("ByTimestamp"):
        return Edge(name, times_ms=found)
    return Edge(name, offsets=found)


def resolved(edge: Edge, topic: Topic, ask_time: AskTime, *, fails_on_loss: bool) -> list[int]:
    """The offset of each queue, by its id, within the queue's bounds.

    Raises:
        BadOption: the edge says nothing of one of the queues, or names one that isn't there, or an
            offset beyond its end.
        DataLost: an offset that is kept no longer.
    """
    if edge.time_ms is not None:
        return [ask_time(topic, queue_id, edge.time_ms) for queue_id in range(len(topic.bounds))]
    if edge.times_ms is not None:
        times = _of_topic(edge, edge.times_ms, topic)
        if wrong := [each for each in times if each < 0]:
            raise BadOption(f"{edge.name} says {wrong[0]}: ms since the epoch are wanted")
        return [ask_time(topic, queue_id, time_ms) for queue_id, time_ms in enumerate(times)]
    said = [edge.everywhere] * len(topic.bounds)
    if edge.offsets is not None:
        said = _of_topic(edge, edge.offsets, topic)
    return [
        _within(edge, (topic, queue_id), offset, fails_on_loss=fails_on_loss)
        for queue_id, offset in enumerate(said)
    ]


def _of_topic(edge: Edge, by_queue: ByQueue, topic: Topic) -> list[int]:
    """What it says of each queue of the topic."""
    said = by_queue.get(topic.name, {})
    wanted = range(len(topic.bounds))
    for queue_id in said:
        if queue_id not in wanted:
            told = f"{topic.name!r} has queues 0 to {len(wanted) - 1}, not {queue_id}"
            raise BadOption(f"{edge.name}: topic {told}")
    for queue_id in wanted:
        if queue_id not in said:
            raise BadOption(f"{edge.name} says nothing of {topic.name}/{queue_id}")
    return [said[queue_id] for queue_id in wanted]


def _within(edge: Edge, place: tuple[Topic, int], offset: int, *, fails_on_loss: bool) -> int:
    topic, queue_id = place
    low, high = topic.bounds[queue_id]
    if offset in (EARLIEST, LATEST):
        return low if offset == EARLIEST else high
    if not 0 <= offset <= high:
        told = f"offset {offset} of {topic.name}/{queue_id} is outside 0 to {high}"
        raise BadOption(f"{edge.name}: {told}")
    if offset < low and fails_on_loss:
        raise DataLost(f"messages {offset} to {low} of {topic.name}/{queue_id} are kept no longer")
    return max(offset, low)
