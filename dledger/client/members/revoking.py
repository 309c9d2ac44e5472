"""What an application is told of queues that go, and what it asks of those that it has."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import GET_QUEUE_OFFSETS
from dledger.client.faults import fault
from dledger.client.members.member import Member
from dledger.client.members.process_queue import ProcessQueue
from dledger.client.results import RevokedQueues
from dledger.wire import broker_pb2 as pb

OnRevoke = Callable[[RevokedQueues], Awaitable[None] | None]


async def revoke(call: OnRevoke, queues: Sequence[ProcessQueue], *, lost: bool) -> None:
    """Tells the application, by topic; what it raises changes nothing. Nor does a cancellation of
    its own, as of a task that it has ended and waits for: only that of who tells it goes on.

    Raises:
        SystemExit, KeyboardInterrupt: it wants the program to end.
    """
    task = asyncio.current_task()
    cancels = 0 if task is None else task.cancelling()
    topics: dict[str, list[int]] = {}
    for queue in queues:
        topics.setdefault(queue.place.topic, []).append(queue.place.queue_id)
    for topic, ids in sorted(topics.items()):
        try:
            answer = call(RevokedQueues(topic, sorted(ids), lost))
            if inspect.isawaitable(answer):
                await answer
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > cancels:
                raise
        except Exception as error:  # noqa: BLE001 - the queues go, whatever it says
            fault("on_revoke", error)


def on_a_thread(call: Callable[[RevokedQueues], object]) -> OnRevoke:
    """`call`, run on a thread of its own: it may block. What it gives back to be awaited, as an
    `async def` does, runs on the event loop."""

    async def told(queues: RevokedQueues) -> None:
        answer = await asyncio.to_thread(call, queues)
        if inspect.isawaitable(answer):
            await answer

    return told


async def lag_of(
    broker_group: BrokerGroup, member: Member, deadline_s: float | None
) -> dict[tuple[str, int], int]:
    """How many messages aren't finished, of each queue that `member` holds."""
    found: dict[tuple[str, int], int] = {}
    for queue in [queue for queue in member.queues.values() if queue.is_located]:
        topic, _, queue_id = queue.place
        request = pb.GetQueueOffsetsRequest(topic=topic, queue_id=queue_id)
        answer = await broker_group.call(
            GET_QUEUE_OFFSETS, request, Effect.NONE, deadline_s=deadline_s
        )
        done = queue.finished
        first = max(done.frontier, answer.min_offset)
        found[topic, queue_id] = max(answer.max_offset - first - done.count_above, 0)
    return found
