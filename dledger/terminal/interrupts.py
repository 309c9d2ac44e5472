"""Ctrl-C and SIGTERM as an event, for commands that end in good order.

A command that has something to say at its end (a summary, offsets to commit) catches both here;
the others leave Ctrl-C to the event loop's runner, which cancels them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

CAUGHT = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_caught() -> Iterator[asyncio.Event]:
    """Gives an event that Ctrl-C and SIGTERM set, instead of ending the program."""
    interrupt = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in CAUGHT:
        loop.add_signal_handler(number, interrupt.set)
    try:
        yield interrupt
    finally:
        for number in CAUGHT:
            loop.remove_signal_handler(number)


async def finished_or_interrupted(work: Awaitable[None]) -> bool:
    """Runs `work` until it is done, or cancels it at an interrupt; whether there was one.

    Raises:
        Exception: what `work` raised, unless it was interrupted.
    """
    with interrupts_caught() as interrupt:
        return await cancelled_by(interrupt, work)


async def cancelled_by(interrupt: asyncio.Event, work: Awaitable[None]) -> bool:
    """The same, where interrupts are caught already: for a command that goes on after one, which
    clears the event, so that the next one is another."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(interrupt.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (working, waiting):
            one.cancel()
        await asyncio.wait((working, waiting))
    if interrupt.is_set():
        if not working.cancelled():
            working.exception()  # looked at: what broke while it was being ended is no news
        return True
    working.result()
    return False
