"""The event loop of benchmarks: one choice for the client under test and for the yardstick.

A yardstick on another kind of event loop would measure the loop, so this takes the one that the
command line and the nodes run on. Ctrl-C and SIGTERM cancel what runs; `finally` blocks do the
tidying up.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

EVENT_LOOP = "uvloop"


def run(work: Coroutine[object, object, T]) -> T:
    """Runs `work` to its end on a loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM within `sigterm_interrupts`.
    """
    with default_ctrl_c(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def default_ctrl_c() -> Iterator[None]:
    """Within it no handler that a library left behind keeps Ctrl-C from ending what runs: asyncio
    cancels its work only where Python's own handler stands, and Spark's puts another there."""
    before = signal.getsignal(signal.SIGINT)
    is_foreign = callable(before) and before is not signal.default_int_handler
    if not is_foreign or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        _put_back(signal.SIGINT, before, signal.default_int_handler)


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within it SIGTERM does what Ctrl-C does, so that it too leaves nothing behind. In the
    background of a script Ctrl-C is ignored, and SIGTERM would be with it; so it would where a
    library has put a handler of its own."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        # To this thread, which runs the handlers: sent to the process, another thread may take it
        # and the interrupt would come after the block has ended.
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    ctrl_c_before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        _put_back(signal.SIGTERM, before, interrupt)
        _put_back(signal.SIGINT, ctrl_c_before, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Within it neither Ctrl-C nor SIGTERM does anything: for what must be finished, and soon."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            _put_back(number, handler, signal.SIG_IGN)


def _put_back(number: signal.Signals, before: Any, own: object) -> None:
    """What there was before is there again, unless what ran has installed a handler meanwhile."""
    if signal.getsignal(number) == own:
        signal.signal(number, before)
