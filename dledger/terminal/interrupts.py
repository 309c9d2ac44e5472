"""Ctrl-C and SIGTERM as an event, for commands that end in good order.

A command that has something to say at its end (a summary, offsets to commit) catches both here;
the others leave Ctrl-C to the event loop's runner, which cancels them.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

CAUGHT = (signal.SIGINT, signal.SIGTERM)

# Who hears a signal in the command's loop, the innermost last: a loop doesn't tell.
_hearing: defaultdict[int, list[Callable[[], object]]] = defaultdict(list)


@contextmanager
def heard(number: int, handler: Callable[[], object]) -> Iterator[None]:
    """Within it the signal calls `handler` in the running loop; afterwards, what it did before."""
    loop, before = asyncio.get_running_loop(), signal.getsignal(number)
    hearing = _hearing[number]
    loop.add_signal_handler(number, handler)
    hearing.append(handler)
    try:
        yield
    finally:
        hearing.pop()
        if hearing:
            loop.add_signal_handler(number, hearing[-1])
        else:
            loop.remove_signal_handler(number)
            signal.signal(number, before or signal.SIG_DFL)  # the loop leaves none


@contextmanager
def interrupts_caught() -> Iterator[asyncio.Event]:
    """Gives an event that Ctrl-C and SIGTERM set, instead of ending the program."""
    interrupt = asyncio.Event()
    with ExitStack() as stack:
        for number in CAUGHT:
            stack.enter_context(heard(number, interrupt.set))
        yield interrupt


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
