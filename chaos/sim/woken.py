"""Whether pulls are woken: one whose messages have come is answered soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.services.gate import Gate
from chaos.sim.defect import Defect
from chaos.sim.machine import Life, Machine
from dledger.wire import broker_pb2 as pb

WAKE_EVENTS, WAKE_US = 20, 20_000  # of a node, with what a pull waits for there


def check_pulls(node: Machine, life: Life) -> None:
    """A pull whose messages have come is answered in that turn or the next: a wake-up that is
    lost would show itself as a hold to its end only. One that is being read, in pieces, was
    woken."""
    topics, now_us = life.replica.machine.topics, life.loop.now_us
    for call in life.calls.values():
        request = call.request
        if not isinstance(request, pb.PullRequest) or call.task in life.turns.paused:
            continue
        topic = topics.get(request.topic)
        offsets = topic.next_offsets if topic is not None else []
        if topic is not None and request.offset < life.replica.queues.min_offset(
            topic.folder, request.queue_id
        ):
            call.arrivals = 0  # it is to be refused, once it is sure who leads
            continue
        # A topic made anew may have fewer queues than the one that is pulled from.
        if request.queue_id >= len(offsets) or offsets[request.queue_id] <= request.offset:
            call.arrivals = 0
            continue
        call.since_us = call.since_us if call.arrivals else now_us
        call.arrivals += 1
        if call.arrivals > WAKE_EVENTS and now_us > call.since_us + WAKE_US:
            if _is_within(call.task, Gate.confirm):
                continue  # a majority is asked who leads: that takes what the network takes
            raise Defect(
                "not woken",
                f"{node.name} holds a pull of {request.topic}/{request.queue_id} from "
                f"{request.offset} on, and has more",
            )


def _is_within(task: asyncio.Task[Any] | None, function: Callable[..., Any]) -> bool:
    """Whether what the task waits for is waited for in that function."""
    coroutine: Any = task.get_coro() if task is not None else None
    while coroutine is not None:
        if getattr(coroutine, "cr_code", None) is function.__code__:
            return True
        coroutine = getattr(coroutine, "cr_await", None)
    return False
