"""The demo's consumer group: two push consumers at work beside the sender, of which one dies.

This owns their processes and reads their books (`chaos.demo_member`). One is killed when a half of
the lines is acknowledged and it has handled some; it isn't started again. The other must get
through with everything. A line that both have handled had been handled by the dead one and not
committed: that is the only reason there is.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from chaos.account import Fate, LineId, Sent
from chaos.errors import DemoFailed
from dledger.client import Client

GROUP = "librarians"
LOOK_S = 0.1
THROUGH_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0


class Progress(Protocol):
    """What the group needs to know of the load."""

    async def reached(self, acknowledged: int) -> None:
        """Waits until so many lines are acknowledged."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What the group did with the acknowledged lines."""

    lines: int  # handled, each counted once
    forgotten: int  # acknowledged, and handled by nobody
    again: int  # handled by the one that died, and then by the other
    without_reason: int  # handled twice, and not for that
    by_the_dead: int

    @property
    def flawless(self) -> bool:
        """Whether nothing was forgotten, and nothing repeated that needn't be."""
        return not self.forgotten and not self.without_reason


class Members:
    """Two processes; made by `members_of`."""

    def __init__(self, folder: Path, addresses: list[str], topic: str, queues: int) -> None:
        self._topic = topic
        self._books = [folder / "first.book", folder / "second.book"]
        share = queues // len(self._books)
        self._processes = [_started(book, addresses, topic, share) for book in self._books]

    async def at_work(self) -> None:
        """Waits until each has its share of the queues: one that came later than everything would
        be given nothing.

        Raises:
            DemoFailed: they don't come to it.
        """
        deadline = asyncio.get_running_loop().time() + THROUGH_TIMEOUT_S
        while not all(book.exists() for book in self._books):
            for book, process in zip(self._books, self._processes, strict=True):
                if process.poll() is not None:
                    raise DemoFailed(f"a consumer ended by itself: {_last_words(book)}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoFailed("the consumers never had their queues")
            await asyncio.sleep(LOOK_S)

    async def lose_one(self, load: Progress, at: int) -> int:
        """SIGKILL of the first one, once so many lines are acknowledged and it is at work; how
        many it had handled.

        Raises:
            DemoFailed: it ended before, or never had anything to do.
        """
        await load.reached(at)
        first, book = self._processes[0], self._books[0]
        deadline = asyncio.get_running_loop().time() + THROUGH_TIMEOUT_S
        while not (book.exists() and book.stat().st_size):
            if first.poll() is not None:
                raise DemoFailed(f"a consumer ended by itself: {_last_words(book)}")
            if asyncio.get_running_loop().time() > deadline:
                raise DemoFailed("a consumer was given nothing")
            await asyncio.sleep(LOOK_S)
        first.send_signal(signal.SIGKILL)
        first.wait()
        return sum(1 for _ in _lines(book))

    async def through(self, client: Client) -> None:
        """Waits until the group has committed every message that is stored.

        Raises:
            DemoFailed: it doesn't.
        """
        described = await client.describe_topic(self._topic)
        total = sum(queue.max_offset for queue in described.queues)
        try:
            async with asyncio.timeout(THROUGH_TIMEOUT_S):
                while await self._committed(client) < total:  # noqa: ASYNC110  only asking tells
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise DemoFailed("the consumer that was left never got through") from None

    async def _committed(self, client: Client) -> int:
        return sum((await client.fetch_offsets(GROUP, self._topic)).values())

    async def dismiss(self) -> None:
        """The one that is left says goodbye.

        Raises:
            DemoFailed: it doesn't end well.
        """
        left = self._processes[1]
        left.terminate()
        await asyncio.to_thread(left.wait, END_TIMEOUT_S)
        if left.returncode:
            raise DemoFailed(f"a consumer ended badly: {_last_words(self._books[1])}")

    def account(self, sent: Sent) -> Handled:
        """The two books beside the sender's."""
        dead, left = (Counter(_lines(book)) for book in self._books)
        both = dead + left
        again = sum(1 for line in left if line in dead)
        return Handled(
            lines=len(both),
            forgotten=sum(
                fate is Fate.ACKNOWLEDGED and line not in both for line, fate in sent.fates.items()
            ),
            again=again,
            without_reason=both.total() - len(both) - again,
            by_the_dead=len(dead),
        )

    def end(self) -> None:
        """No process is left."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


@contextmanager
def members_of(folder: Path, addresses: list[str], topic: str, queues: int) -> Iterator[Members]:
    """The two, at work; neither they nor their books are left afterwards.

    Args:
        folder: where a folder for the books is made.
    """
    with tempfile.TemporaryDirectory(prefix="members-", dir=folder) as books:
        made = Members(Path(books), addresses, topic, queues)
        try:
            yield made
        finally:
            made.end()


def _started(book: Path, addresses: list[str], topic: str, share: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-P", "-m", "chaos.demo_member"]
    with book.with_suffix(".log").open("wb") as errors:
        return subprocess.Popen(
            [*program, ",".join(addresses), GROUP, topic, str(book), str(share)],
            stdin=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )


def _last_words(book: Path) -> str:
    lines = book.with_suffix(".log").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"


def _lines(book: Path) -> Iterator[LineId]:
    """What is in it; a line that was cut short is none."""
    if not book.exists():
        return
    for line in book.read_bytes().split(b"\n")[:-1]:
        file, _, number = line.decode().rpartition("\t")
        yield file, int(number)
