"""Runs a coroutine as a test, and holds what every test of the client must hold: it ends in
time, leaves no task behind, and nothing reaches the loop's exception handler."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

from tests.grpc_noise import is_grpcs_own

Params = ParamSpec("Params")
LIMIT_S = 30.0


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """A collection within looks at what was made within, and not at all that a long run of tests
    has in memory."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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

        with only_new_garbage():
            asyncio.run(watched())
        told = [
            context
            for context in complaints
            if not is_grpcs_own(context["message"], context.get("exception"))
        ]
        assert not told, told

    return run


def _is_ours(task: asyncio.Task[Any]) -> bool:
    """gRPC's own servers end some tasks a little later."""
    return task is not asyncio.current_task() and "dledger" in repr(task.get_coro())
