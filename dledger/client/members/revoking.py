"""What an application is told of queues that go, and what it asks of those that it has."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial

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


def on_a_thread(
    call: Callable[[RevokedQueues], object],
) -> Callable[[RevokedQueues], Coroutine[None, None, None]]:
    """`call`, run on a thread of its own: it may block. What it gives back to be awaited, as an
    `async def` does, runs on the event loop.

    The thread is a daemon, and none of the loop's own: one that never returns neither keeps the
    process alive, nor takes a place of what else has to be done on a thread."""

    async def told(queues: RevokedQueues) -> None:
        answer, error = await _done_by_a_daemon(partial(copy_context().run, call, queues))
        if error is not None:
            raise error
        if inspect.isawaitable(answer):
            await answer

    return told


async def _done_by_a_daemon(act: Callable[[], object]) -> tuple[object, BaseException | None]:
    """What `act` returned, or raised, on a new thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def tell(answer: object, error: BaseException | None) -> None:
        if not done.done():  # who waited may have been cancelled
            done.set_result((answer, error))

    def work() -> None:
        answer: object = None
        error: BaseException | None = None
        try:
            answer = act()
        except BaseException as raised:  # noqa: BLE001 - the event loop is told of it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(tell, answer, error)

    threading.Thread(target=work, name="dledger-on-revoke", daemon=True).start()
    return await done


async def lag_of(
    broker_group: BrokerGroup, member: Member, deadline_s: float | None
) -> dict[tuple[str, int], int]:
    """How many messages aren't finished, of each queue that `member` holds. What has gone isn't
    there to be finished, and what came after the answer isn't counted, finished or not."""
    found: dict[tuple[str, int], int] = {}
    for queue in [queue for queue in member.queues.values() if queue.is_located]:
        topic, _, queue_id = queue.place
        request = pb.GetQueueOffsetsRequest(topic=topic, queue_id=queue_id)
        answer = await broker_group.call(
            GET_QUEUE_OFFSETS, request, Effect.NONE, deadline_s=deadline_s
        )
        first, end = answer.min_offset, answer.max_offset
        found[topic, queue_id] = end - first - queue.finished.count_within(first, end)
    return found
