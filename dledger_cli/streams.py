"""Bytes in and out of the program's files, pipes and terminals, beside a running event loop.

A read waits for data and a write for a reader without blocking the loop and without a thread:
threads that hang in a read keep the program from ending at Ctrl-C. Pipes and terminals are
waited for with the loop's selector and then used with one system call, which can't block any
more; they stay in blocking mode, because that mode belongs to every process that has them open.
Regular files are never waited for. Memory is bounded by a chunk and the longest line.

Source: pipe(7): a pipe that is writable takes PIPE_BUF bytes without blocking.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from dledger.terminal.standard_streams import was_closed
from dledger_cli.errors import InputUnreadable, LineTooLong

READ_BYTES = 256 << 10
PIPE_BYTES = 4096  # PIPE_BUF on Linux


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines, with their endings (the last line of a file may have none)."""

    lines: list[bytes]
    bytes_read: int  # from the descriptor so far, to show progress


class LineReader:
    """The lines of a file, pipe or terminal, as they come."""

    def __init__(self, descriptor: int, limit_bytes: int, name: str = "standard input") -> None:
        """Args: `limit_bytes` is the length from which a line is refused; errors tell `name`."""
        self._descriptor = descriptor
        self._name = name
        self._limit = limit_bytes
        self._waits = _can_wait(descriptor)

    async def __aiter__(self) -> AsyncIterator[Lines]:
        """Yields what is there, as soon as it holds a whole line.

        Raises:
            LineTooLong: after the lines before it were yielded.
            InputUnreadable: the system can't read on; after the lines before it.
        """
        partial: list[bytes] = []  # one unfinished line, in pieces
        held = number = total = 0
        while chunk := await self._read_behind(number):
            total += len(chunk)
            head, newline, rest = chunk.rpartition(b"\n")
            if newline:
                # Not splitlines(): that would also end lines at a lone carriage return.
                lines = [line + newline for line in (b"".join(partial) + head).split(newline)]
                partial, held = [], 0
                for at, line in enumerate(lines):
                    if len(line) > self._limit:
                        yield Lines(lines[:at], total)
                        raise LineTooLong(number + at + 1, self._limit)
                number += len(lines)
                yield Lines(lines, total)
            partial.append(rest)
            held += len(rest)
            if held > self._limit:
                raise LineTooLong(number + 1, self._limit)
        if held:
            yield Lines([b"".join(partial)], total)

    async def _read_behind(self, number: int) -> bytes:
        try:
            return await self._read()
        except OSError as error:
            raise InputUnreadable(number, error) from error

    async def _read(self) -> bytes:
        if self._waits:
            loop = asyncio.get_running_loop()
            await _ready(self._descriptor, loop.add_reader, loop.remove_reader)
        else:
            await asyncio.sleep(0)  # a file is always ready: let the loop breathe between chunks
        with _named(self._name):
            return os.read(self._descriptor, READ_BYTES)


class ByteWriter:
    """Writes to a file, pipe or terminal, at the pace of whoever reads it."""

    def __init__(self, descriptor: int, name: str = "standard output") -> None:
        """Args: `name` is what errors tell."""
        self._descriptor = descriptor
        self._name = name
        self._waits = _can_wait(descriptor)

    async def write(self, data: bytes) -> None:
        """Everything is handed to the system.

        Raises:
            BrokenPipeError: nobody reads any more.
            OSError: the disk is full, for one; it is named.
        """
        view = memoryview(data)
        while view:
            if self._waits:
                loop = asyncio.get_running_loop()
                await _ready(self._descriptor, loop.add_writer, loop.remove_writer)
            with _named(self._name):
                taken = os.write(self._descriptor, view[: PIPE_BYTES if self._waits else None])
            view = view[taken:]

    async def sync(self) -> None:
        """What was written to a regular file outlives a power cut; of others nobody can say it.
        So it is also when this is cancelled, which waits for it.

        Raises:
            OSError: it doesn't: the disk failed; it is named.
        """
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            return
        syncing = asyncio.ensure_future(asyncio.to_thread(os.fdatasync, self._descriptor))
        with _named(self._name):
            try:
                await asyncio.shield(syncing)
            except asyncio.CancelledError:
                await asyncio.wait([syncing])
                syncing.result()
                raise


def open_standard(stream: TextIO | None, name: str) -> int:
    """The descriptor of a standard stream.

    Raises:
        OSError: the program was started without it; what has its number is another file, or the
            null device, which would take messages that are committed then.
    """
    if stream is None or was_closed(stream.fileno()):
        raise OSError(errno.EBADF, "it is closed", name)
    return stream.fileno()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Gives an error of the system the name that the system, asked by number, doesn't know."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = name
        raise


def _can_wait(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


async def _ready(
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], object],
) -> None:
    """Returns once the descriptor is ready for one call."""
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, wake)
    try:
        await ready
    finally:
        remove(descriptor)
