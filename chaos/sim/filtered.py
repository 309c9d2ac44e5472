"""Tags in the simulator: what messages carry, what some crews want, and whether they got that.

A crew that wants tags is given messages by its group's filter
(docs/adr/0059-tags-at-the-broker.md). What it is not given it has to believe: offsets that the
leader says it has passed over count as finished. So in the end every message is looked at again, by
no filter: each that carries a wanted tag, from the group's start on, was worked on by somebody. Two
of the tags have one hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Final
from zlib import crc32

from broker.errors import BrokerError
from broker.state.topics import TopicRef
from chaos.sim.defect import Defect
from dledger.records.properties import encode_properties
from dledger.records.record import DecodedRecord, decode_records
from dledger.wire import commands_pb2 as cpb
from dledger.wire import groups_pb2 as pb

if TYPE_CHECKING:
    from chaos.sim.node import SimNode

TAGS: Final = ("red", "Aa", "BB", "")
WANTED: Final = (("Aa",), ("BB",), ("Aa", "red"), ("BB", "gone"), ("gone",))
FILTERED_SHARE: Final = 0.5  # of the crews
PULL_BYTES: Final = 1 << 20


def properties_of(value: str) -> bytes:
    """The properties of the message that holds the value."""
    tag = TAGS[crc32(value.encode()) % len(TAGS)]
    return encode_properties({"TAGS": tag}) if tag else b""


def drawn(chance: Random) -> tuple[str, ...]:
    """What a crew wants; nothing: every message."""
    return chance.choice(WANTED) if chance.random() < FILTERED_SHARE else ()


def filters(tags: tuple[str, ...], topics: tuple[str, ...]) -> cpb.TagFilters:
    """What a crew that wants the tags says of them."""
    named = sorted(set(topics)) if tags else ()
    return cpb.TagFilters(topics=[cpb.TagFilter(topic=each, tags=tags) for each in named])


def check_counts(part: pb.PulledQueue, asked: int) -> None:
    """An answer accounts for every offset that it has moved over.

    Raises:
        Defect: it doesn't.
    """
    told = part.count + part.void_count + part.filtered_count
    if part.next_offset - asked != told:
        raise Defect("filter", f"from {asked} to {part.next_offset}, and it tells of {told}")


def wanted_offsets(
    node: SimNode, topic: TopicRef, queue_id: int, start: int, tags: tuple[str, ...]
) -> set[int]:
    """Where messages lie that carry one of the tags, as far as they are kept."""
    return {
        record.queue_offset
        for record in _messages(node, topic, queue_id, start)
        if record.tags in tags
    }


def _messages(node: SimNode, topic: TopicRef, queue_id: int, start: int) -> Iterator[DecodedRecord]:
    assert node.life is not None
    reader = node.life.replica.reader
    low, end = reader.bounds(topic, queue_id)
    at = max(low, start)
    while at < end:
        try:
            found = reader.pull(topic, queue_id, at, 1_000, PULL_BYTES)
        except BrokerError as error:
            raise Defect("filter", f"{topic.name}/{queue_id} at {at}: {error}") from error
        yield from decode_records(found.records)
        at = found.next_offset
