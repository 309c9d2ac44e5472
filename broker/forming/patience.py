"""Asks again for what only can't be now: a group that has just lost somebody elects for a moment,
and believes for as long that who is gone is there.

Whoever repeats a change of members finishes what was begun, so each attempt is the whole of it, the
search for the leader included. What passes says so itself (`FormingError.retriable`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_fixed,
)

from broker.forming.errors import FormingError, Superseded

PATIENCE_S: Final = 10.0  # elections, and missing who is gone, take a part of it
AGAIN_S: Final = 0.2

T = TypeVar("T")


async def patiently(
    attempt: Callable[[], Awaitable[T]], wait_s: float, tell: Callable[[str], None]
) -> T:
    """What `attempt` gives, as soon as it is no longer refused for now.

    Args:
        wait_s: how long the caller would wait at most; no more than `PATIENCE_S` are waited.
        tell: is told once what is waited for.

    Raises:
        FormingError: the last refusal, or one that doesn't pass; whatever else `attempt` raises.
    """

    def told(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            tell(f"waits: {state.outcome.exception()}")

    retrying = AsyncRetrying(
        retry=retry_if_exception(_passes),
        wait=wait_fixed(AGAIN_S),
        stop=stop_after_delay(min(wait_s, PATIENCE_S)),
        before_sleep=told,
        reraise=True,
    )
    return await retrying(attempt)


async def persistently(
    attempt: Callable[[float], Awaitable[T]],
    is_done: Callable[[T], bool],
    wait_s: float,
    tell: Callable[[str], None],
) -> T:
    """What `attempt` gives once that is all that was wanted, or last before the time was over.

    A change that was begun is finished by whoever leads; who asked has to find that out from
    another one than he asked, where leadership moves or a node falls silent meanwhile. So what ends
    before it is done is asked again, the search for the leader included.

    Args:
        attempt: is told how long it may wait, in seconds.
        wait_s: how long all of it takes at most. For the first one `patiently` asks.

    Raises:
        FormingError: as `patiently`; once anything was begun only `Superseded` is.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    found = await patiently(partial(attempt, wait_s), wait_s, tell)
    while not is_done(found) and loop.time() + AGAIN_S < deadline:
        await asyncio.sleep(AGAIN_S)
        try:
            found = await attempt(max(0.0, deadline - loop.time()))
        except Superseded:
            raise
        except FormingError:
            continue
    return found


def _passes(error: BaseException) -> bool:
    return isinstance(error, FormingError) and error.retriable
