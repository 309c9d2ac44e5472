"""An asyncio event loop that lives in virtual time.

This owns one process's ready callbacks, timers and clocks, so that code written for asyncio
(futures, tasks, timeouts) runs unchanged under the simulator. It implements what that code uses
and nothing that would touch a socket or a thread. A loop's death takes everything with it: its
callbacks never run again and its futures are never resolved, as with a killed process.

`time()` is the process's monotonic clock, which may drift; `wall_ms()` its wall clock, which may
also be stepped.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import ceil
from typing import Any, TypeVar, cast

from chaos.sim.timeline import Actor, Livelock, Timeline

MAX_TURNS = 100_000  # callbacks in one turn: one that always makes another is a defect
WALL_START_MS = 1_700_000_000_000

T = TypeVar("T")


class ProcessLoop(Actor):
    """One process's event loop; see the module. It has what asyncio calls in practice, a fraction
    of `AbstractEventLoop`'s methods, hence the casts.

    Args:
        turn_us: how long after an event the callbacks that it made ready are run; 0: at once.
            More lets several events share a turn, as they do on a busy loop.
    """

    def __init__(self, timeline: Timeline, name: str, number: int, turn_us: int = 0) -> None:
        super().__init__(name, number)
        self.wall_offset_ms = 0
        self._timeline = timeline
        self._loop = cast(asyncio.AbstractEventLoop, self)
        self._turn_us = turn_us
        self._turn_due = False
        self._tasks: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}
        # What to call, with which arguments; None: an error ends the run.
        self._ready: deque[tuple[Callable[..., object], tuple[object, ...] | None]] = deque()
        self._rate = 1.0
        self._global_base = timeline.now
        self._local_base = timeline.now / 1e6

    # --- clocks ------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds on this process's monotonic clock."""
        return self._local_base + (self._timeline.now - self._global_base) * self._rate / 1e6

    @property
    def now_us(self) -> int:
        """The one time of all processes, microseconds."""
        return self._timeline.now

    def wall_ms(self) -> int:
        """Milliseconds on this process's wall clock."""
        return WALL_START_MS + int(self.time() * 1000) + self.wall_offset_ms

    def drift(self, rate: float) -> None:
        """The clocks run at `rate` from now on; 1.0 is right. Timers keep their old times."""
        self._local_base = self.time()
        self._global_base = self._timeline.now
        self._rate = rate

    # --- callbacks ---------------------------------------------------------------------------

    def enter(self) -> None:
        events._set_running_loop(self._loop)

    def rest(self) -> None:
        events._set_running_loop(None)

    def leave(self) -> None:
        if self._ready:
            if self._turn_us == 0:
                self._run_ready()
            elif not self._turn_due:
                self._turn_due = True
                self._timeline.after(self._turn_us, self, self._turn)

    def post(self, call: Callable[[], object]) -> None:
        """`call_soon` for calls whose errors end the run and not just themselves."""
        self._ready.append((call, None))

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        """`callback(*args)` in this turn. It can't be cancelled, and context variables are not
        kept: nothing here uses either."""
        self._ready.append((callback, args))
        if self._timeline.current is not self:  # another process's doing: a wake-up is due
            self._timeline.after(0, self, _nothing)

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> Timer:
        timer = Timer(self, callback, args)
        # Rounded up: a timer that fires too early makes whoever looks at the clock set it again.
        delay_us = ceil((when - self.time()) / self._rate * 1e6)
        self._timeline.after(delay_us if delay_us > 0 else 0, self, timer.fire)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> Timer:
        return self.call_at(self.time() + delay, callback, *args)

    def _turn(self) -> None:
        self._turn_due = False
        self._run_ready()

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(MAX_TURNS):
            if not ready or not self.alive:
                return
            callback, args = ready.popleft()
            if args is None:
                callback()
            else:
                self.call_safely(callback, args)
        raise Livelock(f"{self.name}: {MAX_TURNS} callbacks in one turn, the next is {ready[0][0]}")

    def call_safely(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        """As `asyncio.Handle` calls: an error is told to `call_exception_handler`."""
        try:
            callback(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  one that dies with its process, too
            self.call_exception_handler({"exception": error})

    # --- what asyncio asks of a loop ---------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._loop)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self._loop, name=name, context=context)
        self._tasks[task] = coro
        task.add_done_callback(self._tasks.pop)
        return task

    def die(self) -> None:
        """Nothing of this process happens any more, and its coroutines hold on to nothing."""
        self.alive = False
        self._ready.clear()
        tasks, self._tasks = self._tasks, {}
        for coroutine in tasks.values():
            with contextlib.suppress(ValueError, RuntimeError):  # the one that is running now
                coroutine.close()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: that is for the run to report. What dies with its process is not."""
        error = context.get("exception")
        if self.alive and error is not None:
            self.crashes.append(error)


class Timer:
    """What `call_at` gives, in the place of an `asyncio.TimerHandle`. A cancelled one stays in
    the heap and does nothing when its time comes."""

    __slots__ = ("_args", "_callback", "_loop")

    def __init__(
        self, loop: ProcessLoop, callback: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        self._loop = loop
        self._callback: Callable[..., object] | None = callback
        self._args = args

    def fire(self) -> None:
        """Its time has come."""
        if self._callback is not None:
            self._loop.call_safely(self._callback, self._args)

    def cancel(self) -> None:
        """It calls nothing."""
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._callback is None


def _nothing() -> None:
    """An event whose only effect is that what is ready gets run."""
