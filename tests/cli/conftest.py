"""Commands run within the test's process on one event loop, as a program's single command does.

grpc.aio has one poller for the whole process and may still hold events of a loop that was closed;
a loop for each of a hundred commands would make the tests depend on when they are thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import uvloop

from dledger.terminal.loops import default_ctrl_c


@pytest.fixture(scope="session")
def shared_runner() -> Iterator[asyncio.Runner]:
    """The one loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


@pytest.fixture(autouse=True)
def _commands_share_the_loop(
    shared_runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def shared() -> Iterator[asyncio.Runner]:
        with default_ctrl_c():  # tests on Spark may have run in this process
            yield shared_runner

    monkeypatch.setattr("dledger.terminal.outcome.new_runner", shared)
    monkeypatch.delenv("DLEDGER_BOOTSTRAP", raising=False)
