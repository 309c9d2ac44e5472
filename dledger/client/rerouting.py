"""A topic that takes messages in other queues than a producer knew: what it holds is chosen anew.

Nothing here waits or asks: `Holding` does, and calls `rerouted` once all lanes of the topic are
quiet and the topic was read. The order in which a key's messages were sent is kept: under what was
known before they all were in one lane, and go on from there in order; what came meanwhile is held
by the route and follows.

A message that names its queue itself stays there, or fails if the queue takes no messages any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dledger.client.errors import ClientError, QueueClosed, Subject
from dledger.client.lane import Batch, Lane
from dledger.client.routing import Route, for_queue
from dledger.records.record import KEYS, decode_records


class Refused(NamedTuple):
    """A message of `batch` that can't be sent any more, at that place in it."""

    batch: Batch
    position: int
    error: ClientError


def rerouted(
    route: Route, lane: Lane, batches: Iterable[Batch]
) -> Iterator[tuple[Lane, Batch] | Refused]:
    """What `batches`, withdrawn from `lane`, become by what is known of the topic now, in order:
    batches of the same deadlines, and messages that have no queue any more."""
    for batch in batches:
        parts: dict[Lane, list[int]] = {}
        records = list(_records(batch))
        for position, record in enumerate(records):
            is_fixed = position in batch.fixed
            target = _target(route, lane, record, is_fixed=is_fixed)
            if target is None:
                yield Refused(batch, position, _closed(route, lane))
            else:
                parts.setdefault(target, []).append(position)
        for target, positions in parts.items():
            yield (
                target,
                Batch(
                    [for_queue(records[each], target.queue_id) for each in positions],
                    [batch.futures[each] for each in positions],
                    batch.deadline,
                    batch.limit,
                    tuple(at for at, each in enumerate(positions) if each in batch.fixed),
                ),
            )


def _records(batch: Batch) -> Iterator[bytes]:
    at = 0
    for size in batch.sizes:
        yield batch.records[at : at + size]
        at += size


def _target(route: Route, lane: Lane, record: bytes, *, is_fixed: bool) -> Lane | None:
    if is_fixed:
        return lane if lane in route.lanes else None
    key = decode_records(record)[0].properties.get(KEYS)
    return route.choose(key, None)


def _closed(route: Route, lane: Lane) -> QueueClosed:
    return QueueClosed(
        f"topic {route.topic!r} takes messages in queues 0 to {len(route.lanes) - 1}, and not in "
        f"{lane.queue_id} any more",
        subject=Subject.MESSAGE,
    )
