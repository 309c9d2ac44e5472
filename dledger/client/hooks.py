"""What an application hangs into the client for tracing, and what its failures may do: nothing.

    stamp(properties)   writes into a message's properties before it is sent (`traceparent`, say)
    around(message)     a context manager around the work on a message

A hook looks on. It must never lose a message, change what became of one, or end a loop: whatever
it raises is counted, told to the event loop's exception handler (the first time, the second, the
fourth, the eighth, so that a hook that always fails doesn't fill a disk with it), and then
forgotten. What isn't an `Exception` (KeyboardInterrupt, a cancellation) goes its way.

Hooks run where the application runs: in the thread and the context of who sends, or loops. So they
see its current span.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import Any

from dledger.client.arguments import property_texts
from dledger.client.errors import InvalidArgument
from dledger.client.results import Message

Stamp = Callable[[MutableMapping[str, str]], None]
Around = Callable[[Message], AbstractContextManager[Any]]
Told = Callable[[dict[str, Any]], None]  # the loop's exception handler, or the way to it


class HookFailures:
    """Counts a hook's failures, from any thread.

    Args:
        hook: its name.
        tell: is called with a context for the loop's exception handler.
    """

    def __init__(self, hook: str, tell: Told) -> None:
        self._hook = hook
        self._tell = tell
        self._lock = threading.Lock()
        self.count = 0

    def add(self, error: Exception, consequence: str) -> None:
        """The hook has failed, and `consequence` is all that comes of it."""
        with self._lock:
            self.count += 1
            count = self.count
        if count & (count - 1) == 0:
            text = f"the hook {self._hook!r} has failed {count} times; {consequence}"
            self._tell({"message": f"dledger.client: {text}", "exception": error})


class Stamping:
    """Calls `stamp` on copies of messages' properties."""

    def __init__(self, stamp: Stamp, tell: Told) -> None:
        self._stamp = stamp
        self.failures = HookFailures("stamp", tell)

    def encoded(
        self, given: Mapping[str, str] | None, encode: Callable[[Mapping[str, str] | None], bytes]
    ) -> bytes:
        """What `encode` makes of the properties with the stamp; as they were given, where the stamp
        fails or puts in what can't be encoded.

        Raises:
            InvalidArgument: the given ones can't be encoded.
        """
        stamped = {} if given is None else property_texts(given)
        try:
            self._stamp(stamped)
            return encode(stamped)
        except Exception as error:  # noqa: BLE001 - the boundary that this module is about
            plain = encode(given)
            self.failures.add(error, "the message is sent without it")
            return plain


class Surrounding:
    """Keeps at most one `around` open: of the message that a loop, or a worker, has in hand."""

    def __init__(self, around: Around, failures: HookFailures) -> None:
        self._around = around
        self._open: AbstractContextManager[Any] | None = None
        self.failures = failures

    def enter(self, message: Message) -> None:
        """The work on `message` begins."""
        self.leave()
        try:
            manager = self._around(message)
            manager.__enter__()
        except Exception as error:  # noqa: BLE001 - as above
            self.failures.add(error, "the message is handed over without it")
        else:
            self._open = manager

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """The work is over; with an error, which stays the caller's whatever the hook says."""
        manager, self._open = self._open, None
        if manager is None:
            return
        try:
            manager.__exit__(kind, error, trace)
        except Exception as failure:  # noqa: BLE001 - as above
            if failure is not error:  # contextlib's managers raise what they are left with
                self.failures.add(failure, "the work on the message was over by then")


def checked_on_revoke(call: object) -> None:
    """Returns if `call` can be called, and does something then.

    Raises:
        InvalidArgument: otherwise.
    """
    if not callable(call) or isgeneratorfunction(call) or isasyncgenfunction(call):
        raise InvalidArgument(
            f"on_revoke is {call!r}; wanted: a function, or a coroutine function, without `yield`"
        )


def checked_hook(name: str, hook: object) -> None:
    """Returns if `hook` can be called and need not be awaited.

    Raises:
        InvalidArgument: otherwise: what it returned would be dropped, and nothing would happen.
    """
    if hook is None:
        return
    if not callable(hook) or iscoroutinefunction(hook):
        raise InvalidArgument(f"{name} is of type {type(hook).__name__}; wanted: a plain function")
