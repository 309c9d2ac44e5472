"""The demo's load, and what disturbs it: one task sends, one kills and restarts.

`Load` keeps the sender's book and knows when lines are really under way; `Killer` strikes the
leader in such a moment and brings it back. Neither decides whether the run was flawless: that is
`chaos.account`'s, after everything was read.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from broker.local_group import LocalGroup
from chaos.account import FILE_PROPERTY, LINE_PROPERTY, Fate, Sent
from chaos.corpus import Corpus, Line
from chaos.errors import DemoFailed
from dledger.client import BufferFull, Client, ClientError, Outcome, Producer, SendResult
from dledger.records.message_id import encode_host

TOPIC = "standard-library"
RESTART_DELAY_S = 3.0
FAILOVER_TIMEOUT_S = 60.0
CATCH_UP_TIMEOUT_S = 30.0
WINDOW_LINES = 2_000  # sent and not yet acknowledged, at most
BREATH_LINES = 200  # the sender lets others run after so many


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL, as the client saw it."""

    node_id: str
    acknowledged_before: int
    under_way: int
    gap_ms: float  # until the first acknowledgement by the next leader


def say(console: Console, text: str) -> None:
    """A line, as long as it is: who reads it in a pipe wants it whole."""
    console.print(text, soft_wrap=True, highlight=False)


class Load:
    """Sends the corpus and keeps the sender's book."""

    def __init__(self, producer: Producer, corpus: Corpus, progress: Progress) -> None:
        self.sent = Sent()
        self.total = corpus.line_count
        self.window = max(1, min(WINDOW_LINES, self.total // 20))
        self.pause_at = self.total * 2 // 3
        self.resume = asyncio.Event()
        self._producer = producer
        self._corpus = corpus
        self._progress = progress
        self._task = progress.add_task("sending", total=self.total)
        self._changed = asyncio.Event()
        self._sending = True
        self._over = False
        self._dead_host: bytes | None = None
        self._first_by_next = asyncio.Event()
        self._first_by_next_at = 0.0

    @property
    def acknowledged(self) -> int:
        """Lines that are on a majority of disks."""
        return self.sent.count(Fate.ACKNOWLEDGED)

    @property
    def under_way(self) -> int:
        """Lines whose fate is open."""
        return self.sent.count(Fate.UNDER_WAY)

    async def run(self) -> None:
        """Sends every line; true afterwards: each has its fate."""
        for count, line in enumerate(self._corpus.interleaved()):
            if count == self.pause_at:
                self._sending = False
                self._changed.set()
                await self.resume.wait()
                self._sending = True
            while self.under_way >= self.window or not self._handed_over(line):
                await self._change()
            if count % BREATH_LINES == 0:
                self._progress.update(self._task, completed=self.acknowledged)
                await asyncio.sleep(0)
        await self._producer.flush()
        while self.under_way:
            await self._change()
        self._progress.update(self._task, completed=self.acknowledged)
        self._over, self._sending = True, False
        self._changed.set()

    async def reached(self, acknowledged: int) -> None:
        """Waits until so many lines are acknowledged.

        Raises:
            DemoFailed: all are sent, and some aren't acknowledged.
        """
        while self.acknowledged < acknowledged:
            if self._over:
                raise DemoFailed(f"only {self.acknowledged:,} lines were ever acknowledged")
            await self._change()

    async def well_under_way(self) -> None:
        """Waits until half of the window is under way; the caller acts before the next await.

        Raises:
            DemoFailed: nothing is being sent any more.
        """
        while self.under_way < self.window // 2:
            if not self._sending:
                raise DemoFailed("no line was under way when the leader should have been killed")
            await self._change()

    async def first_by_next(self, dead_address: str, killed_at: float) -> float:
        """Waits for the first acknowledgement by another leader; milliseconds since the kill.

        Who stored a message stands in its record, so answers of the dead leader that are still
        on their way don't count.

        Raises:
            DemoFailed: none came in time.
        """
        host, _, port = dead_address.rpartition(":")
        self._dead_host = encode_host((host, int(port)))
        self._first_by_next.clear()
        try:
            async with asyncio.timeout(FAILOVER_TIMEOUT_S):
                await self._first_by_next.wait()
        except TimeoutError:
            raise DemoFailed(f"no leader followed within {FAILOVER_TIMEOUT_S:g} s") from None
        return (self._first_by_next_at - killed_at) * 1000

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _handed_over(self, line: Line) -> bool:
        identity = (line.file, line.number)
        properties = {FILE_PROPERTY: line.file, LINE_PROPERTY: str(line.number)}
        try:
            future = self._producer.send(TOPIC, line.body, key=line.file, properties=properties)
        except BufferFull:
            return False
        self.sent.on_sent(identity)
        self._changed.set()

        def settled(done: asyncio.Future[SendResult]) -> None:
            self.sent.on_settled(identity, self._fate(done))
            self._changed.set()

        future.add_done_callback(settled)
        return True

    def _fate(self, done: asyncio.Future[SendResult]) -> Fate:
        if done.cancelled():
            return Fate.UNKNOWN
        error = done.exception()
        if error is None:
            if self._dead_host not in (None, done.result().store_host):
                self._dead_host = None
                self._first_by_next_at = time.monotonic()
                self._first_by_next.set()
            return Fate.ACKNOWLEDGED
        refused = isinstance(error, ClientError) and error.outcome is Outcome.DID_NOT_HAPPEN
        return Fate.FAILED if refused else Fate.UNKNOWN


class Killer:
    """Kills the leader under load, and brings it back."""

    def __init__(self, group: LocalGroup, client: Client, load: Load, console: Console) -> None:
        self._group = group
        self._client = client
        self._load = load
        self.console = console

    async def run(self) -> list[Kill]:
        """Both kills; true afterwards: every node is back and has caught up."""
        load = self._load
        kills = []
        for mark in (load.total // 3, load.pause_at + load.window // 2):
            await load.reached(mark)
            kills.append(await self._kill_and_restart())
            load.resume.set()
        return kills

    async def _kill_and_restart(self) -> Kill:
        load, group = self._load, self._group
        leader = group.node((await self._client.leader()).node_id)
        await load.well_under_way()
        acknowledged, under_way = load.acknowledged, load.under_way
        killed_at = group.signal(leader.id, signal.SIGKILL)
        restart_at = killed_at + RESTART_DELAY_S
        gap_ms = await load.first_by_next(leader.address, killed_at)
        say(
            self.console,
            f"killed {leader.id}, the leader, at {acknowledged:,} acknowledged lines with "
            f"{under_way:,} under way; the next leader acknowledged after {gap_ms:.0f} ms",
        )
        await asyncio.sleep(restart_at - time.monotonic())
        await group.start(leader.id)
        await self._caught_up(leader.id)
        say(self.console, f"{leader.id} is back and has caught up")
        return Kill(leader.id, acknowledged, under_way, gap_ms)

    async def _caught_up(self, node_id: str) -> None:
        """Waits until the node has applied what was committed when the wait began."""
        goal = max(view.commit_index or 0 for view in (await self._group.status()).nodes)
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while time.monotonic() < deadline:
            for view in (await self._group.status()).nodes:
                if view.id == node_id and (view.applied_index or 0) >= goal:
                    return
            await asyncio.sleep(0.05)
        raise DemoFailed(f"{node_id} didn't catch up within {CATCH_UP_TIMEOUT_S:g} s")
