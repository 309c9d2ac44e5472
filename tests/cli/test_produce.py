"""How `produce` drives the client's producer, shown on one that does as it is told."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import typer

from dledger.client import (
    BufferFull,
    ClientError,
    DeadlineExceeded,
    MessageTooLarge,
    Outcome,
    Producer,
    SendResult,
)
from dledger.terminal.output import progress_bar
from dledger_cli.produce import Job, Sender, _tell, pump
from dledger_cli.tally import Tally

STORED = SendResult("t", 0, 0, 0, 0, bytes(8), False)
JOB = Job(topic="t", source="-", key="k", tag=None, keep_line_ending=False)
Answer = Callable[[bytes], Exception | None]
Source = Callable[[bytes], int]


class FakeProducer:
    """Accepts up to `bound` messages and settles them when it is asked for room or a flush."""

    def __init__(self, bound: int = 3, answer: Answer = lambda body: None) -> None:
        self.bodies: list[bytes] = []
        self.calls: list[str] = []
        self._bound = bound
        self._answer = answer
        self._open: list[tuple[bytes, asyncio.Future[SendResult]]] = []

    def send(
        self, topic: str, body: bytes, *, key: str | None, tag: str | None
    ) -> asyncio.Future[SendResult]:
        assert (topic, key, tag) == ("t", "k", None)
        if len(body) > 100:
            raise MessageTooLarge("too large")
        if len(self._open) == self._bound:
            raise BufferFull("full")
        self.bodies.append(body)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._open.append((body, future))
        return future

    async def room(self) -> None:
        self.calls.append("room")
        await self._settle()

    async def flush(self) -> None:
        self.calls.append("flush")
        await self._settle()

    async def _settle(self) -> None:
        for body, future in self._open:
            error = self._answer(body)
            if error is None:
                future.set_result(STORED)
            else:
                future.set_exception(error)
        self._open.clear()
        await asyncio.sleep(0)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    """Makes a file and gives its descriptor."""
    opened: list[int] = []

    def make(content: bytes) -> int:
        (tmp_path / "input").write_bytes(content)
        opened.append(os.open(tmp_path / "input", os.O_RDONLY))
        return opened[-1]

    yield make
    for descriptor in opened:
        os.close(descriptor)


def pumped(descriptor: int, producer: FakeProducer, job: Job = JOB) -> Tally:
    """The tally after everything was pumped."""
    tally = Tally()

    async def work() -> None:
        with progress_bar("bytes") as progress:
            await pump(descriptor, Sender(cast(Producer, producer), job, tally), progress)

    asyncio.run(work())
    return tally


def counts(tally: Tally) -> tuple[int, int, int, int]:
    return tally.sent, tally.acked, tally.failed, tally.unknown


def test_full_producer_is_waited_for_and_no_line_is_skipped(source: Source) -> None:
    """BufferFull means later, not never: that bounds memory on an endless input."""
    producer = FakeProducer(bound=3)
    tally = pumped(source(b"1\n2\n3\n4\n5\n6\n7\n"), producer)
    assert producer.bodies == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert producer.calls == ["room", "room", "flush"]
    assert counts(tally) == (7, 7, 0, 0)
    assert tally.complete


def test_everything_is_flushed_before_the_end(source: Source) -> None:
    """A run that ends is a run whose lines have their answers."""
    producer = FakeProducer()
    assert counts(pumped(source(b"1\n2\n"), producer)) == (2, 2, 0, 0)
    assert producer.calls == ["flush"]


def test_reading_ends_at_a_line_that_can_not_be_stored(source: Source) -> None:
    """It is named; those before it are flushed, those behind it are not sent."""
    producer = FakeProducer()
    tally = pumped(source(b"1\n" + b"x" * 101 + b"\n3\n"), producer)
    assert producer.bodies == [b"1"]
    assert counts(tally) == (2, 1, 1, 0)
    assert tally.first_error is not None
    assert tally.first_error[0] == 2


def test_input_that_fails_to_be_read_ends_with_an_account(
    source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk or a file server that fails in the middle: how much is stored is told, and where to go
    on from, to people and programs."""
    chunks = iter([b"1\n2\n3"])

    def read(descriptor: int, size: int) -> bytes:
        if (chunk := next(chunks, None)) is None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return chunk

    descriptor = source(b"")
    monkeypatch.setattr("dledger_cli.streams.os.read", read)
    producer = FakeProducer()
    tally = pumped(descriptor, producer, replace(JOB, source="access.log"))
    monkeypatch.undo()
    assert (producer.bodies, counts(tally)) == ([b"1", b"2"], (2, 2, 0, 0))
    with pytest.raises(typer.Exit) as ended:
        _tell(tally, interrupted=False, as_json=True)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["acked"] == 2
    assert told.err == ("dledger: reading stopped behind line 2: access.log: Input/output error\n")


def test_line_whose_time_is_over_is_no_failure_to_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its error is a TimeoutError, too, and so the system's, to Python."""
    tally = Tally()
    tally.on_stopped(7, DeadlineExceeded("the delivery timeout is over"))
    with pytest.raises(typer.Exit):
        _tell(tally, interrupted=False, as_json=True)
    assert capsys.readouterr().err.startswith("dledger: line 7: the delivery timeout is over")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ClientError("refused", outcome=Outcome.DID_NOT_HAPPEN), (3, 2, 1, 0)),
        (DeadlineExceeded("late", outcome=Outcome.MAY_HAVE_HAPPENED), (3, 2, 0, 1)),
    ],
)
def test_line_without_a_good_answer_is_counted_by_its_outcome(
    source: Source, error: ClientError, expected: tuple[int, int, int, int]
) -> None:
    """And reading ends once that is known."""
    producer = FakeProducer(bound=3, answer=lambda body: error if body == b"2" else None)
    tally = pumped(source(b"1\n2\n3\n4\n5\n"), producer)
    assert producer.bodies == [b"1", b"2", b"3"]
    assert tally.first_error == (2, error)
    assert counts(tally) == expected


@pytest.mark.parametrize(
    ("keep", "bodies"),
    [(False, [b"a", b"", b"b", b"c\r"]), (True, [b"a\n", b"\n", b"b\r\n", b"c\r"])],
)
def test_line_endings_are_left_or_taken(source: Source, keep: bool, bodies: list[bytes]) -> None:
    r"""`\n` and `\r\n` are endings; a `\r` where nothing ends is text."""
    producer = FakeProducer(bound=9)
    job = Job(topic="t", source="-", key="k", tag=None, keep_line_ending=keep)
    pumped(source(b"a\n\nb\r\nc\r"), producer, job)
    assert producer.bodies == bodies
