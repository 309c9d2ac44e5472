"""The event loop of a blocking client, on a thread of its own.

This owns the thread and the ways into it. It must never let a caller wait for a thread that has
ended, nor for the one that it is in itself, nor for one that stayed behind in another process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from dledger.client.errors import ClientClosed, Forked, InvalidArgument

Answer = TypeVar("Answer")


class LoopThread:
    """An event loop on its own thread. A daemon, so that a script that dies does not hang."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="dledger-client", daemon=True)
        self._thread.start()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked off the one that has the thread."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Returns in the process that has the thread.

        Raises:
            Forked: in another one.
        """
        if self.is_of_another_process:
            raise Forked(
                "the client was connected before this process was forked: connect in the child"
            )

    def run(self, act: Callable[[], None]) -> None:
        """Has done `act` on the loop's thread."""

        async def acting() -> None:
            act()

        self.call(acting())

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What `work` returns; an interrupted caller cancels it.

        Raises:
            ClientClosed: the thread has ended.
            Forked: it is another process's.
        """
        try:
            self.check()
        except Forked:
            work.close()
            raise
        if not self._thread.is_alive():
            work.close()
            raise ClientClosed("the client was closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidArgument("a blocking call from a future's callback would wait for itself")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed since
            work.close()
            raise ClientClosed("the client was closed") from None
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends loop and thread; what is still to be done there is given up."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)  # calls of other threads
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
        finally:
            self.loop.close()
