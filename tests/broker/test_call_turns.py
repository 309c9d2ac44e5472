"""Calls that take long, many at once: a turn of the loop is as long as one of them makes it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.turns import LOOKING, SHARE_S, CallTurns

STEPS = 4  # in a share, which the last of them ends
STEP_S = 1.001 * SHARE_S / STEPS
MANY = 2 * LOOKING + 3


class CountedLoop(asyncio.SelectorEventLoop):
    """Knows which turn it is in; more than any test has are for ever."""

    turn = 0

    def _run_once(self) -> None:
        self.turn += 1
        assert self.turn < 5_000
        super()._run_once()  # type: ignore[misc]  # the one place where a turn can be seen


@dataclass
class World:
    """Calls on a loop, and a clock that moves with their steps alone."""

    loop: CountedLoop = field(default_factory=CountedLoop)
    now_s: float = 0.0
    steps: list[tuple[int, object]] = field(default_factory=list)  # in which turn, whose
    turns: CallTurns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = CallTurns(lambda: self.now_s)

    def play(self, test: Callable[[], Awaitable[None]]) -> None:
        """Runs it to its end on the loop, which is closed then."""

        async def whole() -> None:
            await test()

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(whole())

    def step(self, name: object) -> None:
        """Takes `STEP_S`."""
        self.now_s += STEP_S
        self.steps.append((self.loop.turn, name))

    async def call(self, name: object, pieces: int) -> None:
        """One that always has more to do."""
        for _ in range(pieces):
            self.piece(name)
            await self.turns.pause()

    def piece(self, name: object) -> None:
        """Steps until it is enough."""
        is_enough = self.turns.share()
        self.step(name)
        while not is_enough():
            self.step(name)

    def steps_of(self, first_turn: int = 0) -> Counter[int]:
        """How many there were in each turn."""
        return Counter(turn for turn, _ in self.steps if turn >= first_turn)

    def order(self) -> list[object]:
        """Whose pieces came after one another."""
        names = [name for _, name in self.steps]
        return [name for at, name in enumerate(names) if not at or names[at - 1] != name]


def test_calls_have_one_share_of_a_turn_together() -> None:
    """A step each in the turn in which they come, and then no turn is longer than for one."""
    world = World()

    async def test() -> None:
        await asyncio.gather(*(world.call(number, 4) for number in range(MANY)))

    world.play(test)
    first = world.steps[0][0]
    assert world.steps_of()[first] <= MANY - 1 + STEPS
    later = world.steps_of(first + 1)
    assert max(later.values()) <= STEPS
    assert len(world.steps) >= MANY * 4


def test_who_paused_first_goes_on_first() -> None:
    """Nobody is passed, however many there are."""
    world = World()

    async def test() -> None:
        await asyncio.gather(*(world.call(number, 4) for number in range(MANY)))

    world.play(test)
    assert world.order() == list(range(MANY)) * 4


def test_who_is_alone_goes_on_in_the_next_turn() -> None:
    """A pause costs no more than before."""
    world = World()

    async def test() -> None:
        await world.call("alone", 5)

    world.play(test)
    turns = sorted(world.steps_of())
    assert turns == list(range(turns[0], turns[0] + 5))
    assert set(world.steps_of().values()) == {STEPS}


def test_those_who_need_little_go_on_in_one_turn() -> None:
    """As many as there is room for in a share of it."""
    world = World()

    async def brief() -> None:
        await world.turns.pause()
        world.steps.append((world.loop.turn, "brief"))

    async def test() -> None:
        await asyncio.gather(*(brief() for _ in range(100)))

    world.play(test)
    assert len(world.steps_of()) == 1


def test_those_behind_them_go_on_in_the_next_turn() -> None:
    """However many have paused, each turn is used."""
    world = World()

    async def brief() -> None:
        await world.turns.pause()
        world.steps.append((world.loop.turn, "brief"))

    async def test() -> None:
        await asyncio.gather(*(brief() for _ in range(3 * LOOKING)))

    world.play(test)
    turns = sorted(world.steps_of())
    assert turns == list(range(turns[0], turns[0] + 3))


def test_who_comes_later_begins_behind_those_that_paused() -> None:
    """Where they need little, too: there is something left of the turn, and it is theirs."""
    world = World()
    order: list[str] = []

    async def call(name: str) -> None:
        if world.turns.share()():
            await world.turns.pause()
            assert not world.turns.share()()
            assert not world.turns.share()(), "for each of its reads"
        order.append(name)

    async def test() -> None:
        full = asyncio.create_task(world.call("full", 1))
        paused = [asyncio.create_task(call("first")) for _ in range(LOOKING + 1)]
        await asyncio.sleep(0)
        late = asyncio.create_task(call("late"))
        assert not order
        await asyncio.gather(full, *paused, late)

    world.play(test)
    assert order == ["first"] * (LOOKING + 1) + ["late"]


def test_calls_that_come_all_the_time_hold_up_nobody_for_good() -> None:
    """Each turn is used up by others before whoever has paused may look."""
    world = World()
    is_over = False

    async def come() -> None:
        while not is_over:
            world.piece("new")
            await asyncio.sleep(0)

    async def test() -> None:
        nonlocal is_over
        coming = [asyncio.create_task(come()) for _ in range(3)]
        await asyncio.gather(world.call("first", 4), world.call("second", 4))
        is_over = True
        await asyncio.gather(*coming)

    world.play(test)
    turns = [turn for turn, name in world.steps if name in {"first", "second"}]
    assert turns[-1] - turns[0] <= 2 * 4 + 1
    assert max(world.steps_of().values()) <= 2 * STEPS + 5


def test_who_is_cancelled_keeps_nobody_waiting() -> None:
    """Of those that look, of those behind them, and in the turn in which it is told to look."""
    world = World()

    async def test() -> None:
        tasks = [asyncio.create_task(world.call(number, 3)) for number in range(MANY)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        while not tasks[LOOKING].done():
            await asyncio.sleep(0)
            for at in (2, LOOKING + 4):
                tasks[at].cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        kept = [each for each in tasks[::2] if each not in (tasks[2], tasks[LOOKING + 4])]
        assert not any(task.cancelled() for task in kept)
        await world.call("later", 1)

    world.play(test)


def test_those_behind_many_who_were_cancelled_go_on() -> None:
    """More than there is room for at once."""
    world = World()

    async def test() -> None:
        tasks = [asyncio.create_task(world.call(number, 1)) for number in range(MANY)]
        await asyncio.sleep(0)
        for task in tasks[LOOKING : 2 * LOOKING]:
            task.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        assert [task.cancelled() for task in tasks].count(True) == LOOKING

    world.play(test)


def test_a_loop_that_was_closed_keeps_nobody_on_the_next_one_waiting() -> None:
    """What was begun in its last turn isn't ended any more, and who paused there is gone."""
    world = World()

    async def last() -> None:
        gone = world.loop.create_task(world.call("gone", 9))
        gone._log_destroy_pending = False  # type: ignore[attr-defined]  # meant so
        left.append(gone)
        await asyncio.sleep(0)
        world.piece("last")
        world.loop.stop()

    left: list[asyncio.Task[None]] = [world.loop.create_task(last())]
    world.loop.run_forever()
    world.loop.close()
    world.loop = CountedLoop()

    async def test() -> None:
        for name in ("next", "next but one"):
            await world.call(name, 3)
            left.clear()  # at any time

    world.play(test)


def test_a_loop_with_nothing_to_do_waits() -> None:
    """Nothing goes round in it once the calls are done."""
    world = World()

    async def test() -> None:
        await asyncio.gather(*(world.call(number, 2) for number in range(MANY)))
        before = world.loop.turn
        await asyncio.sleep(0.02)
        assert world.loop.turn - before <= 4

    world.play(test)
