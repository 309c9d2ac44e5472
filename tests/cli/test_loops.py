"""The loop of commands: Ctrl-C ends what runs, whoever used the process before."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from dledger.terminal.loops import run, sigterm_interrupts, uninterrupted
from dledger.terminal.outcome import new_runner


def deaf(_number: int, _frame: object) -> None:
    """A library's handler that has other things to do."""


@pytest.fixture(params=[deaf, signal.default_int_handler], ids=["a library's", "Python's"])
def handler(request: pytest.FixtureRequest) -> Iterator[object]:
    """Who hears Ctrl-C before the run, and has to again after it."""
    before = signal.signal(signal.SIGINT, request.param)
    yield request.param
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_cancels_what_runs(handler: object) -> None:
    """And tidies up: `finally` blocks have run when it is told."""
    tidied = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(asyncio.Event().wait(), timeout=10)
        finally:
            tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(work())
    with pytest.raises(KeyboardInterrupt), new_runner() as runner:
        runner.run(work())
    assert tidied == [True, True]
    assert signal.getsignal(signal.SIGINT) is handler


def test_handler_that_was_installed_meanwhile_stays(handler: object) -> None:
    """Whoever ran has a use for it; what was there before has gone by that one's will."""

    def own(_number: int, _frame: object) -> None:
        """The program's."""

    async def work() -> None:
        signal.signal(signal.SIGINT, own)

    run(work())
    assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    for meanwhile in (sigterm_interrupts, uninterrupted):
        with meanwhile():
            signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGTERM, before)
