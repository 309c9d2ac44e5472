"""`produce` in a script that ends it: what it says on standard error, which is no terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import typer

from dledger.client import Producer, ProducerOptions
from dledger.outcome import ExitCode
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger_cli.produce import Job, _produce, _tell
from dledger_cli.tally import Tally

WAIT_S = 60
BOTH = [signal.SIGINT, signal.SIGTERM]


@contextlib.contextmanager
def produced(group: BlockingFakeGroup, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """Three lines were given to it, and it waits for more."""
    words = ("produce", topic, "--bootstrap", group.addresses)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "dledger_cli", *words], stdin=pipe, stdout=pipe, stderr=pipe
    ) as running:
        assert running.stdin is not None
        try:
            running.stdin.write(b"1\n2\n3\nunfinished")
            running.stdin.flush()
            yield running
        finally:
            running.kill()


def ended(running: subprocess.Popen[bytes]) -> tuple[str, str]:
    """What it had said when it ended, with 130."""
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.wait(WAIT_S) == ExitCode.INTERRUPTED
    return running.stdout.read().decode(), running.stderr.read().decode()


@pytest.mark.parametrize("number", BOTH)
def test_interrupted_it_says_what_is_stored(number: signal.Signals) -> None:
    """It used to say nothing, and whoever had ended it had to guess where to go on."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        with produced(group, topic) as running:
            while len(group.bodies(topic)) < 3:
                time.sleep(0.01)
            running.send_signal(number)
            out, error = ended(running)
    assert out == ""
    assert error.startswith("dledger: interrupted: 3 of 3 stored in ")


@pytest.mark.parametrize("number", BOTH)
def test_interrupted_twice_it_does_not_wait_and_says_what_is_unclear(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node has taken the second message, and doesn't answer. The second signal used to end the
    program without a word, and without the facts that were asked for."""
    asyncio.run(_interrupted_twice(number, monkeypatch))
    out, error = capsys.readouterr()
    facts = json.loads(out)
    assert (facts["sent"], facts["acked"], facts["unknown"], facts["failed"]) == (2, 1, 1, 0)
    assert "interrupted: 1 of 2 stored in" in error
    assert "; 1 may be stored or not" in error


async def _interrupted_twice(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    held, closing, close = asyncio.Event(), asyncio.Event(), Producer.close

    async def hold(method: str, node: FakeNode, request: object) -> None:
        if method == "Send" and len(group.model.bodies("t", 0)) == 1:
            held.set()
            await asyncio.Event().wait()

    async def begin_to_close(producer: Producer) -> None:
        closing.set()
        await close(producer)

    monkeypatch.setattr(Producer, "close", begin_to_close)
    (reads, writes), tally = os.pipe(), Tally()
    async with FakeGroup() as group:
        group.model.create("t", 1)
        group.before.append(hold)
        options = ProducerOptions(close_timeout_ms=3_600_000)
        job = Job("t", "-", "k", None, keep_line_ending=False)
        producing = asyncio.create_task(
            _produce(group.bootstrap.split(","), reads, options, job, tally)
        )
        os.write(writes, b"1\n")
        while not tally.acked:
            await asyncio.sleep(0.01)
        os.write(writes, b"2\n")
        await held.wait()
        signal.raise_signal(number)
        await closing.wait()
        signal.raise_signal(number)
        assert await producing
    os.close(reads)
    os.close(writes)
    with pytest.raises(typer.Exit) as exited:
        _tell(tally, interrupted=True, as_json=True)
    assert exited.value.exit_code == ExitCode.INTERRUPTED
