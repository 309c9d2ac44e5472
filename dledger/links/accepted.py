"""The streams that one peer dials to this node.

As a rule there is one. There may be more for a moment, because a peer makes several attempts and
keeps the first that is greeted, because it dials again before the end of its old stream is known
here, or because somebody else says Hello in its name. A Hello alone therefore changes nothing: a
stream is in use from its first message on, which the peer says only on the one that it chose.

A new stream ends those that are silent, so that whoever dialed them dials again, and *stands
beside* those that aren't: answers go out on every stream in use. So a stream cannot be muted by
opening another one.
"""

from __future__ import annotations

from math import inf

from dledger.links.effects import Adopted, Broken, Effect, End, Why
from dledger.links.times import LinkTimes


class AcceptedLinks:
    """One peer, as it dials this node."""

    __slots__ = ("_adopted", "_effects", "_evict_at", "_in_use", "_times", "_waiting")

    def __init__(self, times: LinkTimes) -> None:
        self._times = times
        self._effects: list[Effect] = []
        self._waiting: dict[int, float] = {}  # generation -> until when, the oldest first
        self._adopted: dict[int, float] = {}  # generation -> last heard, in the order of adoption
        self._in_use: tuple[int, ...] = ()
        self._evict_at = -inf

    # --- what there is -----------------------------------------------------------------------

    @property
    def in_use(self) -> tuple[int, ...]:
        """The generations on which answers go out, the oldest first."""
        return self._in_use

    @property
    def waiting(self) -> tuple[int, ...]:
        """The generations that have said Hello and nothing else, the oldest first."""
        return tuple(self._waiting)

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` has something to give."""
        return bool(self._effects)

    @property
    def deadline(self) -> float:
        """When `on_time` has something to do; inf: never, unless something happens."""
        first = next(iter(self._waiting.values()), inf)
        if not self._adopted:
            return first
        return min(first, min(self._adopted.values()) + self._times.abandoned_s)

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # --- inputs ------------------------------------------------------------------------------

    def on_hello(self, generation: int, now: float) -> None:
        """The peer, or somebody in its name, said Hello on a new call, and it fits."""
        if len(self._waiting) >= self._times.max_waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._effects.append(End(oldest, Why.CROWDED))
        self._waiting[generation] = now + self._times.attempt_s

    def on_heard(self, generation: int, now: float) -> bool:
        """A message came; whether it is to be delivered: not when its call is over."""
        if generation in self._adopted:
            self._adopted[generation] = now
            return True
        if self._waiting.pop(generation, None) is None:
            return False
        return self._adopt(generation, now)

    def on_ended(self, generation: int) -> None:
        """That call has ended, and not by our doing."""
        self._waiting.pop(generation, None)
        if self._adopted.pop(generation, None) is not None:
            self._count()

    def on_time(self, now: float) -> None:
        """Time has passed. May be called at any time; has to be at `deadline`."""
        while self._waiting and next(iter(self._waiting.values())) <= now:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            self._effects.append(End(oldest, Why.TOO_LATE))
        self._end_silent(now, self._times.abandoned_s, Why.SILENT)

    def forgive(self, slept_s: float, now: float) -> None:
        """This process did nothing for so long, until now: what it didn't hear meanwhile is not the
        peer's fault. What it has heard since it woke up was not heard later than now."""
        self._adopted = {each: min(now, heard + slept_s) for each, heard in self._adopted.items()}
        self._waiting = {each: until + slept_s for each, until in self._waiting.items()}

    def stop(self) -> None:
        """Everything is ended."""
        self._effects += [End(each, Why.STOPPED) for each in (*self._waiting, *self._adopted)]
        self._waiting.clear()
        self._adopted.clear()
        self._in_use = ()

    # --- which streams are in use ------------------------------------------------------------

    def _adopt(self, generation: int, now: float) -> bool:
        if not self._make_room(now):
            self._effects.append(End(generation, Why.CROWDED))
            return False
        self._adopted[generation] = now
        self._end_silent(now, self._times.silence_s, Why.REPLACED)
        self._count()
        self._effects.append(Adopted(generation))
        return True

    def _make_room(self, now: float) -> bool:
        """There is room for one more stream. When all work, the oldest gives way, because the
        peer itself must always be able to come back; but seldom, so that whoever opens streams
        in a loop doesn't end one in each turn."""
        silence_s = self._times.silence_s
        working = [each for each, heard in self._adopted.items() if heard + silence_s > now]
        if len(working) < self._times.max_streams:
            return True
        if now < self._evict_at:
            return False
        self._evict_at = now + self._times.eviction_every_s
        del self._adopted[working[0]]
        self._effects.append(End(working[0], Why.REPLACED))
        return True

    def _end_silent(self, now: float, silence_s: float, why: Why) -> None:
        # Added as `deadline` adds: a difference may be rounded to just before it, for ever.
        silent = [each for each, heard in self._adopted.items() if heard + silence_s <= now]
        for each in silent:
            del self._adopted[each]
            self._effects.append(End(each, why))
        if silent:
            self._count()

    def _count(self) -> None:
        had_some = bool(self._in_use)
        self._in_use = tuple(self._adopted)
        if had_some and not self._in_use:
            self._effects.append(Broken())
