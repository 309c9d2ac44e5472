"""Signals of a program whose consumers run: heeded meanwhile, and its own handlers are kept."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import uvloop

from dledger.client.blocking_push import BlockingPushConsumer
from dledger.client.members.signals import HEEDED, heeding_signals

NEW_LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Own:
    """What the program installs itself."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def __call__(self, number: int = 0, _frame: object = None) -> None:
        self.heard.append(number)


def by_signal(number: signal.Signals, own: Own) -> None:
    signal.signal(number, own)


def by_the_loop(number: signal.Signals, own: Own) -> None:
    asyncio.get_running_loop().add_signal_handler(number, own, int(number))


Install = Callable[[signal.Signals, Own], None]


@pytest.fixture(autouse=True)
def _handlers_of_before() -> Iterator[None]:
    """Whatever a test does, the next one finds what it found."""
    before = [(number, signal.getsignal(number)) for number in HEEDED]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture(params=list(NEW_LOOPS))
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=NEW_LOOPS[request.param]) as made:
        yield made


@pytest.mark.parametrize("number", HEEDED)
def test_signal_is_heeded_meanwhile_and_by_who_was_there_afterwards(
    runner: asyncio.Runner, number: signal.Signals
) -> None:
    """Several that listen share it; the last one to go puts back what there was."""

    async def main() -> None:
        before, told = signal.getsignal(number), asyncio.Event()
        other = asyncio.Event()
        with heeding_signals(told.set):
            with heeding_signals(other.set):
                os.kill(os.getpid(), number)
                await asyncio.wait_for(asyncio.gather(told.wait(), other.wait()), 30)
            told.clear()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(told.wait(), 30)
        assert signal.getsignal(number) is before

    runner.run(main())


@pytest.mark.parametrize("number", HEEDED)
@pytest.mark.parametrize("install", [by_signal, by_the_loop])
def test_handler_that_was_installed_meanwhile_stays(
    runner: asyncio.Runner, install: Install, number: signal.Signals
) -> None:
    """It hears what comes, before the end of the run and behind it; the other signal is as it
    was."""
    own, told = Own(), Own()

    async def heard(count: int) -> None:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(30):
            while len(own.heard) < count:
                await asyncio.sleep(0.001)

    async def main() -> None:
        (other,) = set(HEEDED) - {number}
        before = signal.getsignal(other)
        with heeding_signals(told):
            install(number, own)
            installed = signal.getsignal(number)
            await heard(1)
        assert signal.getsignal(number) == installed
        assert signal.getsignal(other) is before
        await heard(2)

    runner.run(main())
    assert own.heard == [number, number]
    assert not told.heard


class Deaf(asyncio.SelectorEventLoop):
    """A loop that has no signals, as Windows' and the simulator's."""

    def add_signal_handler(self, *_: object) -> None:
        raise NotImplementedError


def test_a_loop_without_signals_leaves_the_process_alone() -> None:
    async def main() -> None:
        with heeding_signals(Own()):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    with asyncio.Runner(loop_factory=Deaf) as runner:
        runner.run(main())


def test_blocking_run_leaves_what_was_installed_meanwhile() -> None:
    """And puts back what there was of the other."""
    consumer = BlockingPushConsumer(cast(Any, None), cast(Any, None))
    own = Own()
    with consumer._signals():
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, own)
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
