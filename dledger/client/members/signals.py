"""SIGINT and SIGTERM for whoever works on an event loop: the first one is for all of them.

Where somebody else handles a signal already, or in another thread than the main one, it is left
alone. What there was before is there again afterwards, unless the program has installed a handler
of its own meanwhile: that stays, and hears of what comes.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

HEEDED: Final = (signal.SIGINT, signal.SIGTERM)


class _Listeners:
    """Those of one event loop."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.former: dict[signal.Signals, tuple[Any, Any]] = {}  # and what is in its place

    def _on_signal(self) -> None:
        for call in list(self.calls):
            call()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        own = partial(_tell, loop, self._on_signal)
        for number in HEEDED:
            known = signal.getsignal(number)
            if is_free(known):
                with suppress(NotImplementedError, RuntimeError, ValueError):
                    # A loop that has no signals says so. But it isn't left with this one: nobody
                    # could tell whose handler it has by the end.
                    loop.add_signal_handler(number, self._on_signal)
                    loop.remove_signal_handler(number)
                    signal.signal(number, own)
                    self.former[number] = known, own

    def end(self) -> None:
        former, self.former = self.former, {}
        for number, (known, own) in former.items():
            if signal.getsignal(number) is own:
                signal.signal(number, known)


def _tell(
    loop: asyncio.AbstractEventLoop, call: Callable[[], None], number: int, frame: object
) -> None:
    """Python calls it between any two of its steps; the loop does at its own time."""
    del number, frame
    with suppress(RuntimeError):  # it is closed: nobody is left to be told
        loop.call_soon_threadsafe(call)


_BY_LOOP: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Listeners]] = WeakKeyDictionary()


@contextmanager
def heeding_signals(call: Callable[[], None]) -> Iterator[None]:
    """`call` is called at each of them meanwhile."""
    loop = asyncio.get_running_loop()
    listeners = _BY_LOOP.setdefault(loop, _Listeners())
    if not listeners.calls:
        listeners.begin(loop)
    listeners.calls.append(call)
    try:
        yield
    finally:
        listeners.calls.remove(call)
        if not listeners.calls:
            listeners.end()


def is_free(handler: Any) -> bool:
    """Whether nobody but Python and `asyncio.run` has a use for the signal."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return isinstance(owner, asyncio.Runner)
