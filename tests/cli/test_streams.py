"""Lines in, bytes out: from files and pipes, in bounded memory, cancellable at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_cli.errors import LineTooLong
from dledger_cli.streams import READ_BYTES, ByteWriter, LineReader

LIMIT = 1 << 20


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose ends are closed at the end, if they aren't already."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


async def collected(reader: LineReader) -> list[bytes]:
    return [line async for some in reader for line in some.lines]


def lines_of_file(file: Path, limit: int = LIMIT) -> list[bytes]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return asyncio.run(collected(LineReader(descriptor, limit)))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b"\n"]),
        (b"a\nb\n", [b"a\n", b"b\n"]),
        (b"a\nb", [b"a\n", b"b"]),
        (b"a\r\n\r\nb\r\n", [b"a\r\n", b"\r\n", b"b\r\n"]),
        (b"a\rb\x0bc\x85\n", [b"a\rb\x0bc\x85\n"]),
        (b"\xff\x00\n\x00", [b"\xff\x00\n", b"\x00"]),
    ],
)
def test_line_ends_at_a_newline_and_nowhere_else(
    tmp_path: Path, content: bytes, lines: list[bytes]
) -> None:
    """Bytes are bytes; the last line needs no ending."""
    (tmp_path / "input").write_bytes(content)
    assert lines_of_file(tmp_path / "input") == lines


def test_lines_across_chunks_are_whole(tmp_path: Path) -> None:
    """Wherever a read ends, the lines are the file's."""
    content = b"".join(b"%d," % n * (20 * n) + b"\n" for n in range(1, 300))
    assert len(content) > 4 * READ_BYTES
    (tmp_path / "input").write_bytes(content)
    lines = lines_of_file(tmp_path / "input")
    assert len(lines) == 299
    assert b"".join(lines) == content


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_any_cut_of_the_input_gives_the_same_lines(pieces: list[bytes]) -> None:
    """A pipe delivers what was written in pieces of any size."""

    async def run() -> list[bytes]:
        read_end, write_end = os.pipe()
        try:
            reading = asyncio.ensure_future(collected(LineReader(read_end, LIMIT)))
            for piece in pieces:
                os.write(write_end, piece)
                await asyncio.sleep(0)
            os.close(write_end)
            return await reading
        finally:
            os.close(read_end)

    whole = b"".join(pieces)
    expected = [line + b"\n" for line in whole.split(b"\n")]
    expected[-1] = expected[-1][:-1]
    assert asyncio.run(run()) == [line for line in expected if line]


def test_line_is_given_before_the_input_ends(pipe: tuple[int, int]) -> None:
    """`tail -f | dledger produce` must not wait for more."""

    async def run() -> list[bytes]:
        os.write(pipe[1], b"now\nlat")
        async with asyncio.timeout(10):
            async for some in LineReader(pipe[0], LIMIT):
                return some.lines
        raise AssertionError("the input ended")

    assert asyncio.run(run()) == [b"now\n"]


@pytest.mark.parametrize("ending", [b"", b"\n", b"\nafter\n"])
def test_line_over_the_limit_is_refused_after_those_before(tmp_path: Path, ending: bytes) -> None:
    """Its number is told, whether its end was seen or not."""
    (tmp_path / "input").write_bytes(b"one\ntwo\n" + b"x" * 100 + ending)
    descriptor = os.open(tmp_path / "input", os.O_RDONLY)
    before: list[bytes] = []

    async def run() -> None:
        async for some in LineReader(descriptor, 99):
            before.extend(some.lines)

    try:
        with pytest.raises(LineTooLong, match="line 3 is longer than 99 bytes"):
            asyncio.run(run())
    finally:
        os.close(descriptor)
    assert before == [b"one\n", b"two\n"]


def test_endless_line_is_refused_early() -> None:
    """Memory is bounded by the limit and a chunk, whatever comes."""
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        with pytest.raises(LineTooLong):
            asyncio.run(collected(LineReader(descriptor, LIMIT)))
    finally:
        os.close(descriptor)


def test_waiting_for_input_can_be_cancelled(pipe: tuple[int, int]) -> None:
    """Ctrl-C ends a produce that waits for standard input; no thread hangs in a read."""

    async def run() -> None:
        reading = asyncio.ensure_future(collected(LineReader(pipe[0], LIMIT)))
        await asyncio.sleep(0)
        reading.cancel()
        async with asyncio.timeout(10):
            await reading

    threads = threading.active_count()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert threading.active_count() == threads


def test_null_device_is_an_empty_input() -> None:
    """A selector can't wait for it, and needn't."""
    assert lines_of_file(Path("/dev/null")) == []


def test_everything_is_written_to_a_pipe_at_the_readers_pace(pipe: tuple[int, int]) -> None:
    """More than the pipe holds arrives whole, while the loop goes on."""
    data = os.urandom(1 << 20)
    received = bytearray()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def take() -> None:
            chunk = os.read(pipe[0], 1 << 16)
            received.extend(chunk)
            if not chunk:
                loop.remove_reader(pipe[0])
                done.set()

        loop.add_reader(pipe[0], take)
        await ByteWriter(pipe[1]).write(data)
        os.close(pipe[1])
        await done.wait()

    asyncio.run(run())
    assert received == data


def test_writer_to_a_full_pipe_can_be_cancelled(pipe: tuple[int, int]) -> None:
    """Ctrl-C ends a consume whose reader has stopped reading."""

    async def run() -> None:
        writing = asyncio.ensure_future(ByteWriter(pipe[1]).write(bytes(1 << 20)))
        for _ in range(1000):  # far more turns than the pipe's 64 KiB take
            await asyncio.sleep(0)
        assert not writing.done()
        writing.cancel()
        await writing

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_reader_that_has_gone_is_told(pipe: tuple[int, int]) -> None:
    """`| head` has enough."""
    os.close(pipe[0])
    with pytest.raises(BrokenPipeError):
        asyncio.run(ByteWriter(pipe[1]).write(b"line\n"))


def test_file_is_written_whole(tmp_path: Path) -> None:
    """Regular files are never waited for."""
    descriptor = os.open(tmp_path / "output", os.O_WRONLY | os.O_CREAT)
    try:
        asyncio.run(ByteWriter(descriptor).write(b"x" * 100_000))
    finally:
        os.close(descriptor)
    assert (tmp_path / "output").read_bytes() == b"x" * 100_000
