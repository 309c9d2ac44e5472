"""The stream that this node dials to one peer: attempts, back-off, and a watchdog.

An attempt that hangs never stands in the way of the next: while packets are dropped silently a
new one starts every `attempt_every_s`, so that one of them is fresh when the network is back (RFC
8305's idea, for one address). The first to be greeted wins and the others are ended. Attempts that
fail *at once* come from a machine that answers, and are repeated slower and slower.

A stream is kept as long as it says something. When it is silent it is asked (`Ping`); when it
stays silent it is ended and dialed anew, whatever TCP believes of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from math import inf

from dledger.links.effects import Broken, Dial, Effect, End, Ping, Why
from dledger.links.times import MAX_ALLOWANCE_S, MAX_PATIENCE, SLOWEST_BYTES_PER_S, LinkTimes

MAX_DOUBLINGS = 16  # beyond any back-off's limit


class Phase(Enum):
    """What a dialed link is doing."""

    IDLE = "idle"  # not started
    DIALING = "dialing"  # attempts are under way
    BACKING_OFF = "backing off"  # until the next attempt
    REFUSED = "refused"  # the same, after a refusal
    UP = "up"
    STOPPED = "stopped"


class DialedLink:
    """One peer, as this node dials it. Times are seconds on one clock that never runs back.

    Args:
        times: the bounds.
        rng: decides the jitter.
        number: gives a generation that no other call of this node has.
    """

    __slots__ = (
        "_attempts",
        "_dial_at",
        "_effects",
        "_failures",
        "_has_heard",
        "_heard_at",
        "_is_refused",
        "_is_stopped",
        "_largest_bytes",
        "_newest",
        "_next_sign_at",
        "_number",
        "_patience",
        "_pinged_at",
        "_rng",
        "_times",
        "generation",
        "renewed",
        "streams_ended",
    )

    def __init__(self, times: LinkTimes, rng: random.Random, number: Callable[[], int]) -> None:
        self.generation: int | None = None  # of the stream that is up
        self.streams_ended = 0  # that were up
        self.renewed = 0  # of those, for their silence
        self._times = times
        self._rng = rng
        self._number = number
        self._effects: list[Effect] = []
        self._attempts: dict[int, float] = {}  # generation -> until when, the oldest first
        self._newest = 0
        self._dial_at = inf
        self._failures = 0
        self._is_refused = self._is_stopped = False
        self._heard_at = self._pinged_at = -inf
        self._has_heard = False  # on this stream, after its Hello
        self._next_sign_at = -inf
        self._patience = 1  # times the silence that a stream without a word may last
        self._largest_bytes = 0  # of a message on this stream

    # --- what there is -----------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        if self._is_stopped:
            return Phase.STOPPED
        if self.generation is not None:
            return Phase.UP
        if self._attempts:
            return Phase.DIALING
        if self._dial_at == inf:
            return Phase.IDLE
        return Phase.REFUSED if self._is_refused else Phase.BACKING_OFF

    @property
    def attempts(self) -> tuple[int, ...]:
        """The generations under way, the oldest first."""
        return tuple(self._attempts)

    def makes_progress(self, now: float) -> bool:
        """Whether the stream is up and something was heard on it lately."""
        return self.generation is not None and now - self._heard_at <= self._times.silence_s

    @property
    def deadline(self) -> float:
        """When `on_time` has something to do; inf: never, unless something happens."""
        if self._is_stopped:
            return inf
        if self.generation is not None:
            return min(self._silent_at, self._ping_at)
        first = next(iter(self._attempts.values()), inf)
        return first if self._is_at_limit else min(first, self._dial_at)

    def take_effects(self) -> list[Effect]:
        """What is to be done since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # --- inputs ------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """From now on there is to be a stream."""
        self._dial_at = now
        self.on_time(now)

    def stop(self) -> None:
        """Everything is ended, nothing is dialed any more."""
        generations = [*self._attempts] if self.generation is None else [self.generation]
        self._effects += [End(each, Why.STOPPED) for each in generations]
        self._attempts.clear()
        self.generation = None
        self._is_stopped = True

    def on_time(self, now: float) -> None:
        """Time has passed. May be called at any time; has to be at `deadline`."""
        if self._is_stopped:
            return
        if self.generation is not None:
            self._watch(now)
        if self.generation is None:
            self._give_up(now)
            self._dial(now)

    def forgive(self, slept_s: float, now: float) -> None:
        """This process did nothing for so long, until now: what it didn't hear meanwhile is not the
        peer's fault. What it has heard since it woke up was not heard later than now."""
        self._heard_at = min(now, self._heard_at + slept_s)
        self._pinged_at = min(now, self._pinged_at + slept_s)
        self._attempts = {each: until + slept_s for each, until in self._attempts.items()}

    def on_greeted(self, generation: int, now: float) -> bool:
        """The peer's Hello came back on that attempt, and fits; whether it is the stream now."""
        if self._attempts.pop(generation, None) is None:
            return False
        self._end_attempts(Why.LOST)
        self.generation = generation
        self._heard_at = self._pinged_at = now
        self._has_heard = self._is_refused = False
        self._largest_bytes = 0
        # Said at once: the peer takes a stream into use with its first message after the Hello.
        self._effects.append(Ping(generation))
        return True

    def on_heard(self, generation: int, now: float) -> bool:
        """A message came; whether it is to be delivered: not when its call is over."""
        if generation != self.generation:
            return False
        self._heard_at = now
        if not self._has_heard:
            self._has_heard = True
            self._failures = 0
            self._patience = 1
        return True

    def on_sent(self, size_bytes: int) -> None:
        """A message of that size is on its way on the stream."""
        self._largest_bytes = max(self._largest_bytes, size_bytes)

    def on_refused(self, generation: int, now: float) -> None:
        """The peer, or this node, will not have a stream: asking again soon changes nothing."""
        if self._attempts.pop(generation, None) is None:
            self.on_ended(generation, now)
            return
        self._end_attempts(Why.REFUSED)
        self._is_refused = True
        self._dial_at = now + self._jittered(self._times.refused_s)

    def on_ended(self, generation: int, now: float) -> None:
        """That call has ended, and not by our doing."""
        if self._is_stopped:
            return
        if generation == self.generation:
            self._lose()
            self._back_off(now)
        elif self._attempts.pop(generation, None) is not None:
            # An older attempt's end says nothing of how the newest fares; it just makes room.
            if generation == self._newest:
                self._back_off(now)
            self._dial(now)

    def on_sign_of_life(self, now: float) -> None:
        """The peer reached this node, so the way back may be open again: dial soon, beside what
        hangs."""
        if self._is_stopped or self.generation is not None or now < self._next_sign_at:
            return
        # Not oftener: each may end an attempt, which has to be given the time of a round trip.
        self._next_sign_at = now + self._times.attempt_every_s
        self._failures = 0
        self._is_refused = False
        self._dial_at = min(self._dial_at, now + self._jittered(self._times.back_off_min_s))
        if self._is_at_limit:
            self._end_oldest(Why.TOO_LATE)

    # --- dialing -----------------------------------------------------------------------------

    @property
    def _is_at_limit(self) -> bool:
        return len(self._attempts) >= self._times.max_attempts

    def _dial(self, now: float) -> None:
        if now < self._dial_at or self._is_at_limit:
            return
        self._newest = self._number()
        self._attempts[self._newest] = now + self._times.attempt_s
        self._is_refused = False
        self._dial_at = now + self._times.attempt_every_s
        self._effects.append(Dial(self._newest))

    def _give_up(self, now: float) -> None:
        while self._attempts and next(iter(self._attempts.values())) <= now:
            self._end_oldest(Why.TOO_LATE)

    def _end_oldest(self, why: Why) -> None:
        oldest = next(iter(self._attempts))
        del self._attempts[oldest]
        self._effects.append(End(oldest, why))

    def _end_attempts(self, why: Why) -> None:
        while self._attempts:
            self._end_oldest(why)

    def _back_off(self, now: float) -> None:
        times = self._times
        delay = min(times.back_off_max_s, times.back_off_min_s * 2**self._failures)
        self._failures = min(self._failures + 1, MAX_DOUBLINGS)
        self._dial_at = now + self._jittered(delay)

    def _jittered(self, delay_s: float) -> float:
        """Up to half less, so that nodes that were restarted together don't dial in step."""
        return delay_s * self._rng.uniform(0.5, 1.0)

    # --- the watchdog ------------------------------------------------------------------------

    @property
    def _silent_at(self) -> float:
        allowance = min(MAX_ALLOWANCE_S, self._largest_bytes / SLOWEST_BYTES_PER_S)
        return self._heard_at + self._patience * self._times.silence_s + allowance

    @property
    def _ping_at(self) -> float:
        return max(self._heard_at, self._pinged_at) + self._times.ping_s

    def _watch(self, now: float) -> None:
        if self.generation is None:
            return
        if now >= self._silent_at:
            self._effects.append(End(self.generation, Why.SILENT))
            self.renewed += 1
            if not self._has_heard:
                # Perhaps its round trip is longer than our patience: the next may take twice that.
                self._patience = min(2 * self._patience, MAX_PATIENCE)
            self._lose()
            self._dial_at = now
        elif now >= self._ping_at:
            self._pinged_at = now
            self._effects.append(Ping(self.generation))

    def _lose(self) -> None:
        self.generation = None
        self.streams_ended += 1
        self._effects.append(Broken())
