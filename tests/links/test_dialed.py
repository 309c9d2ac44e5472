"""The stream that a node dials: attempts, back-off, the watchdog; by transition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from math import inf
from random import Random

import pytest

from dledger.links import Broken, Dial, DialedLink, Effect, End, LinkTimes, Phase, Ping, Why

TIMES = LinkTimes()
STEP_S = 0.01
MOST_TURNS = 10_000


class Clockwork:
    """A link and its clock; remembers everything that the link asked for."""

    def __init__(self, times: LinkTimes = TIMES) -> None:
        self.now = 100.0
        self.link = DialedLink(times, Random(1), count(1).__next__)
        self.asked: list[tuple[float, Effect]] = []

    def phase(self) -> Phase:
        return self.link.phase

    def then(self, happening: Callable[[], object]) -> list[Effect]:
        """What the link asks for when that happens."""
        happening()
        effects = self.link.take_effects()
        self.asked += [(self.now, effect) for effect in effects]
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        """What it asks for while time passes, called when it wants to be."""
        until, effects = self.now + seconds, []
        for _ in range(MOST_TURNS):
            if self.link.deadline > until:
                break
            self.now = max(self.now, self.link.deadline)
            effects += self.then(lambda: self.link.on_time(self.now))
        else:
            raise AssertionError("the link wants to be called again and again")
        self.now = until
        return effects

    def dial(self) -> int:
        """The generation of the attempt that the start makes."""
        (effect,) = self.then(lambda: self.link.start(self.now))
        assert isinstance(effect, Dial)
        return effect.generation

    def rise(self) -> int:
        """The stream is up; its generation."""
        generation = self.dial()
        assert self.then(lambda: self.link.on_greeted(generation, self.now)) == [Ping(generation)]
        return generation

    def fail(self, generation: int) -> list[Effect]:
        return self.then(lambda: self.link.on_ended(generation, self.now))

    def hear(self, generation: int) -> bool:
        heard = self.link.on_heard(generation, self.now)
        assert not self.link.take_effects()
        return heard


def test_nothing_happens_before_the_start() -> None:
    """An idle link wants nothing, whatever time it is."""
    clock = Clockwork()
    assert clock.phase() is Phase.IDLE
    assert clock.link.deadline == inf
    assert clock.wait(100) == []


def test_the_first_to_be_greeted_wins_and_the_others_are_ended() -> None:
    """Whichever it is; the stream is pinged at once, so that the peer takes it into use."""
    clock = Clockwork()
    first = clock.dial()
    second, third = (effect.generation for effect in clock.wait(0.6) if isinstance(effect, Dial))
    assert clock.phase() is Phase.DIALING
    effects = clock.then(lambda: clock.link.on_greeted(second, clock.now))
    assert effects == [End(first, Why.LOST), End(third, Why.LOST), Ping(second)]
    assert clock.phase() is Phase.UP
    assert clock.link.generation == second
    assert not clock.link.on_greeted(third, clock.now)
    assert clock.link.generation == second


def test_attempts_start_beside_those_that_hang() -> None:
    """One every 250 ms, never more than eight, each given up after five seconds."""
    clock = Clockwork()
    clock.dial()
    most = 0
    for _ in range(int(30 / STEP_S)):
        clock.wait(STEP_S)
        most = max(most, len(clock.link.attempts))
    dialed = [at for at, effect in clock.asked if isinstance(effect, Dial)]
    ended = [at for at, effect in clock.asked if isinstance(effect, End)]
    assert most == TIMES.max_attempts == 8
    assert dialed[:8] == pytest.approx([100 + 0.25 * each for each in range(8)])
    assert ended[:8] == pytest.approx([at + 5 for at in dialed[:8]])
    # Whenever the network comes back: the next attempt is never far.
    assert max(b - a for a, b in pairwise(dialed)) <= 3.25 + STEP_S
    assert Why.TOO_LATE in {effect.why for _, effect in clock.asked if isinstance(effect, End)}


def test_attempts_that_fail_at_once_are_repeated_slower_and_slower() -> None:
    """The peer's machine answers and its process doesn't: up to half a second, with jitter."""
    clock = Clockwork()
    generation = clock.dial()
    pauses: list[float] = []
    for _ in range(12):
        assert clock.fail(generation) == []
        assert clock.phase() is Phase.BACKING_OFF
        pauses.append(clock.link.deadline - clock.now)
        (effect,) = clock.wait(pauses[-1])
        assert isinstance(effect, Dial)
        generation = effect.generation
    limits = [min(TIMES.back_off_max_s, TIMES.back_off_min_s * 2**each) for each in range(12)]
    for pause, limit in zip(pauses, limits, strict=True):
        assert limit / 2 <= pause <= limit
    assert len({pause / limit for pause, limit in zip(pauses, limits, strict=True)}) == 12


def backed_off() -> tuple[Clockwork, int]:
    """A link that has failed often, and its attempt under way."""
    clock = Clockwork()
    generation = clock.dial()
    for _ in range(8):
        clock.fail(generation)
        (effect,) = clock.wait(clock.link.deadline - clock.now)
        assert isinstance(effect, Dial)
        generation = effect.generation
    return clock, generation


def test_back_off_is_reset_by_a_stream_that_says_something() -> None:
    """After its end the link is dialed as if it had never failed."""
    clock, generation = backed_off()
    clock.then(lambda: clock.link.on_greeted(generation, clock.now))
    assert clock.hear(generation)
    assert clock.fail(generation) == [Broken()]
    assert clock.link.deadline - clock.now <= TIMES.back_off_min_s


def test_back_off_is_not_reset_by_a_greeting_alone() -> None:
    """A peer that greets and hangs up would otherwise be dialed fifty times a second."""
    clock, generation = backed_off()
    clock.then(lambda: clock.link.on_greeted(generation, clock.now))
    assert clock.fail(generation) == [Broken()]
    assert clock.link.deadline - clock.now >= TIMES.back_off_max_s / 2


def test_back_off_is_reset_by_a_sign_of_life() -> None:
    """The peer has reached this node: it is dialed at once."""
    clock, generation = backed_off()
    clock.fail(generation)
    assert clock.link.deadline - clock.now >= TIMES.back_off_max_s / 2
    assert clock.then(lambda: clock.link.on_sign_of_life(clock.now)) == []
    assert clock.link.deadline - clock.now <= TIMES.back_off_min_s


def test_a_sign_of_life_makes_room_for_a_fresh_attempt() -> None:
    """Eight hang, in the kernel, which may wait for seconds before it asks again."""
    clock = Clockwork()
    first = clock.dial()
    clock.wait(2.5)
    assert len(clock.link.attempts) == 8
    effects = clock.then(lambda: clock.link.on_sign_of_life(clock.now))
    assert effects == [End(first, Why.TOO_LATE)]
    assert isinstance(clock.wait(TIMES.back_off_min_s)[0], Dial)


def test_signs_of_life_leave_attempts_the_time_of_a_round_trip() -> None:
    """Whoever makes up such signs, in a loop, doesn't keep a far peer from being reached."""
    clock = Clockwork()
    clock.dial()
    lives: dict[int, float] = {}
    shortest = inf
    for _ in range(1_000):
        clock.then(lambda: clock.link.on_sign_of_life(clock.now))
        clock.wait(STEP_S)
        for each in clock.link.attempts:
            lives.setdefault(each, clock.now)
        gone = [each for each in lives if each not in clock.link.attempts]
        shortest = min([shortest, *(clock.now - lives.pop(each) for each in gone)])
    assert shortest >= 1.5


def test_an_older_attempts_end_holds_up_nothing() -> None:
    """Attempts that hung for seconds fail one by one (no route to the host, say): each makes room
    for the next at once, instead of pushing it back."""
    clock = Clockwork()
    clock.dial()
    clock.wait(2.9)
    oldest = clock.link.attempts[0]
    (effect,) = clock.fail(oldest)
    assert isinstance(effect, Dial)


def test_a_refusal_is_no_break() -> None:
    """Nobody is told of a broken stream; other attempts are ended; two seconds pass."""
    clock = Clockwork()
    first = clock.dial()
    clock.wait(0.3)
    second = clock.link.attempts[1]
    effects = clock.then(lambda: clock.link.on_refused(second, clock.now))
    assert effects == [End(first, Why.REFUSED)]
    assert clock.phase() is Phase.REFUSED
    assert TIMES.refused_s / 2 <= clock.link.deadline - clock.now <= TIMES.refused_s
    assert clock.link.streams_ended == 0
    clock.wait(TIMES.refused_s)
    assert clock.phase() is Phase.DIALING


def test_a_refusal_on_a_stream_in_use_ends_it() -> None:
    """However late it comes, the link knows that the stream is gone."""
    clock = Clockwork()
    generation = clock.rise()
    effects = clock.then(lambda: clock.link.on_refused(generation, clock.now))
    assert effects == [Broken()]
    assert clock.link.generation is None


def test_a_silent_stream_is_asked_and_then_renewed() -> None:
    """Pings in the silence, then the end, the news of it, and the next attempt at once."""
    clock = Clockwork()
    generation = clock.rise()
    assert clock.hear(generation)
    begin = len(clock.asked)
    effects = clock.wait(TIMES.silence_s + STEP_S)
    pings = effects.count(Ping(generation))
    assert pings in (3, 4)  # the last is due when the patience ends
    assert effects[:pings] == [Ping(generation)] * pings
    assert effects[pings:] == [End(generation, Why.SILENT), Broken(), Dial(generation + 1)]
    assert clock.asked[begin + pings][0] - 100 == pytest.approx(TIMES.silence_s)
    assert clock.link.renewed == clock.link.streams_ended == 1


def test_a_stream_that_says_something_is_left_alone() -> None:
    """It isn't even asked, if what it says comes often enough."""
    clock = Clockwork()
    generation = clock.rise()
    for _ in range(100):
        assert clock.wait(TIMES.ping_s * 0.9) == []
        assert clock.hear(generation)
    assert clock.link.makes_progress(clock.now)


def test_an_idle_stream_is_asked_seldom() -> None:
    """Once in `ping_s`, while each is answered."""
    clock = Clockwork()
    generation = clock.rise()
    asked = 0
    for _ in range(1_000):
        pings = clock.wait(STEP_S)
        asked += len(pings)
        if pings:
            assert clock.hear(generation)
    assert asked <= 10 / TIMES.ping_s + 1


def test_a_large_message_may_take_its_time() -> None:
    """While it crosses a slow network nothing can be heard; not for longer than a bound."""
    clock = Clockwork()
    generation = clock.rise()
    assert clock.hear(generation)
    clock.link.on_sent(4 << 20)
    clock.wait(TIMES.silence_s + 1.5)
    assert clock.link.generation == generation
    clock.link.on_sent(1 << 30)
    clock.wait(2.0)
    assert clock.link.generation is None


def test_patience_doubles_for_a_peer_that_is_very_far() -> None:
    """A round trip of several seconds: each stream without a word is waited for twice as long,
    until one answers; then as before."""
    clock = Clockwork()
    generation = clock.rise()
    waited: list[float] = []
    for _ in range(5):
        begin = clock.now
        while clock.link.generation == generation:
            clock.wait(STEP_S)
        waited.append(clock.now - begin)
        generation = clock.link.attempts[-1]
        clock.then(lambda: clock.link.on_greeted(generation, clock.now))  # noqa: B023
    patience = [TIMES.silence_s * each for each in (1, 2, 4, 8, 8)]
    assert waited == pytest.approx(patience, abs=2 * STEP_S)
    assert clock.hear(generation)
    clock.wait(TIMES.silence_s + STEP_S)
    assert clock.link.generation is None


def test_the_end_of_a_call_that_is_over_changes_nothing() -> None:
    """Generations: neither its end nor what it still says touches the call in use."""
    clock = Clockwork()
    first = clock.rise()
    assert clock.fail(first) == [Broken()]
    (effect,) = clock.wait(TIMES.back_off_min_s)
    assert isinstance(effect, Dial)
    second = effect.generation
    clock.then(lambda: clock.link.on_greeted(second, clock.now))
    assert clock.fail(first) == []
    assert not clock.hear(first)
    assert clock.link.generation == second
    assert clock.link.streams_ended == 1


def test_what_one_slept_through_is_not_the_peers_silence() -> None:
    """A process that was paused finds everything overdue, and renews nothing."""
    clock = Clockwork()
    generation = clock.rise()
    assert clock.hear(generation)
    clock.now += 60
    clock.link.forgive(60 - TIMES.ping_s, clock.now)
    assert clock.then(lambda: clock.link.on_time(clock.now)) == [Ping(generation)]
    assert clock.link.generation == generation


def test_what_is_heard_on_waking_up_is_heard_then_and_not_later() -> None:
    """Else a stream that dies right after a minute's pause would be noticed a minute late."""
    clock = Clockwork()
    generation = clock.rise()
    clock.now += 60
    assert clock.hear(generation)
    clock.link.forgive(60, clock.now)
    assert clock.wait(TIMES.ping_s) == [Ping(generation)]
    assert clock.link.deadline <= clock.now + TIMES.silence_s


@pytest.mark.parametrize("is_up", [False, True])
def test_a_stop_ends_everything_without_a_word(is_up: bool) -> None:
    """Nothing is dialed, asked or reported any more."""
    clock = Clockwork()
    generation = clock.rise() if is_up else clock.dial()
    assert clock.then(clock.link.stop) == [End(generation, Why.STOPPED)]
    assert clock.phase() is Phase.STOPPED
    assert clock.fail(generation) == []
    clock.then(lambda: clock.link.on_sign_of_life(clock.now))
    assert clock.wait(100) == []


def test_times_follow_the_elections() -> None:
    """Four longest timeouts, but no shorter than a busy machine's pause."""
    assert LinkTimes.of(0.3).silence_s == pytest.approx(1.2)
    assert LinkTimes.of(2.0).silence_s == pytest.approx(8.0)
    assert LinkTimes.of(0.05).silence_s == pytest.approx(0.5)
    assert LinkTimes.of(0.3).ping_s == pytest.approx(0.3)
