"""Virtual time: the one heap of everything that is going to happen.

This owns the present moment and the trace. An event belongs to an actor, a process that can be
paused or dead when its time comes: then it waits, or never happens. Each event that does happen
goes into the trace hash, so that two runs of one seed can be compared by one number. It must never
look at a real clock, and ties are broken by the order of scheduling, never by hashing.

Times are microseconds since the start of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from struct import Struct
from typing import Any

from xxhash import xxh3_128

MAX_SAME_INSTANT = 200_000  # events without time moving: something wakes itself for ever

_EVENT = Struct("<QIH")


class Livelock(AssertionError):
    """Time stands still: events beget events at one instant."""


class ActorDied(BaseException):
    """The actor died in the midst of an event. Not an Exception: no code under test may handle
    it."""


class Actor:
    """A process: what it is called, and whether it takes events now."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.paused = False
        self.crashes: list[BaseException] = []  # errors of callbacks, for the run to report
        self.deferred: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def enter(self) -> None:
        """An event of this actor begins."""

    def leave(self) -> None:
        """An event of this actor has been handled: what it left ready is run."""

    def rest(self) -> None:
        """No event of this actor is being handled any more."""


class Timeline:
    """Schedules events and lets them happen in order."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self.after_event: Callable[[Actor], None] = lambda _: None
        self.current: Actor | None = None  # whose event is being handled
        self._heap: list[tuple[int, int, Actor, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0
        self._trace = xxh3_128()

    def at(self, time_us: int, actor: Actor, call: Callable[..., object], *arguments: Any) -> None:
        """`call(*arguments)` happens to `actor` at `time_us`, or now if that is past."""
        self._sequence += 1
        when = time_us if time_us > self.now else self.now
        heappush(self._heap, (when, self._sequence, actor, call, arguments))

    def after(self, delay_us: int, actor: Actor, call: Callable[..., object], *args: Any) -> None:
        """`at`, `delay_us` from now."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay_us, self._sequence, actor, call, args))

    def note(self, content: bytes) -> None:
        """`content` is part of the trace."""
        self._trace.update(content)

    @property
    def trace(self) -> str:
        """A number for everything that has happened so far, in hex."""
        return str(self._trace.hexdigest())

    def resume(self, actor: Actor) -> None:
        """A paused actor goes on: what came meanwhile happens now, in the order it came."""
        actor.paused = False
        deferred, actor.deferred = actor.deferred, []
        for call, arguments in deferred:
            self.at(self.now, actor, call, *arguments)

    def run(self, until_us: int, stop: Callable[[], bool] | None = None) -> bool:
        """Everything up to `until_us` has happened; or `stop()` became true, then True.

        Raises:
            Livelock: see there.
        """
        heap, pack, note = self._heap, _EVENT.pack, self._trace.update
        after_event = self.after_event
        same_instant = 0
        while heap and heap[0][0] <= until_us:
            time_us, sequence, actor, call, arguments = heappop(heap)
            if not actor.alive:
                continue
            same_instant = same_instant + 1 if time_us == self.now else 0
            if same_instant > MAX_SAME_INSTANT:
                raise Livelock(f"{same_instant} events at {time_us} us, the last of {actor.name}")
            self.now = time_us
            if actor.paused:
                actor.deferred.append((call, arguments))
                continue
            self.events += 1
            note(pack(time_us, sequence & 0xFFFFFFFF, actor.number))
            if actor is not self.current:
                self.switch(actor)
            try:
                call(*arguments)
                actor.leave()
            except ActorDied:
                pass
            after_event(actor)
            if stop is not None and stop():
                self.switch(None)
                return True
        self.switch(None)
        self.now = max(self.now, until_us)
        return False

    def switch(self, actor: Actor | None) -> None:
        """What happens from now on happens to `actor`."""
        before, self.current = self.current, actor
        if actor is not None:
            actor.enter()
        elif before is not None:
            before.rest()
