"""Runs a coroutine as a test, and holds what every test of the client must hold: it ends in
time, leaves no task behind, and nothing reaches the loop's exception handler."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Params = ParamSpec("Params")
LIMIT_S = 30.0


def async_test(
    body: Callable[Params, Coroutine[Any, Any, None]],
) -> Callable[Params, None]:
    """The coroutine function as a test of pytest's."""

    @functools.wraps(body)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(LIMIT_S):
                await body(*args, **kwargs)
            gc.collect()  # dropped futures complain when they are collected
            left = [task for task in asyncio.all_tasks() if _is_ours(task)]
            assert not left, f"left behind: {left}"

        asyncio.run(watched())
        assert not complaints, complaints

    return run


def _is_ours(task: asyncio.Task[Any]) -> bool:
    """gRPC's own servers end some tasks a little later."""
    return task is not asyncio.current_task() and "dledger" in repr(task.get_coro())
