"""`bench changes`: how long a send waits at the longest while leadership or members change.

Messages are sent at a steady rate, however long the ones before take. Around each change (from
just before it is asked for until it is in force and half a second on) the longest wait of any send
is taken; a change that nobody notices gives what a quiet second gives, which is measured beside
them. One cycle: leadership is handed over, a follower is demoted and promoted again, removed and
taken in again on an empty disk, and so is the leader itself.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormationRefused, MemberUnreachable
from broker.forming.joining import Newcomer, Wish, change
from broker.local_group import LocalGroup, LocalGroupError, LocalNode, NoAnswer
from dledger.client import Client, ClientError, Producer, SendResult
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.rounds import MS, Tell, Yardsticks, in_ms
from dledger_cli.bench.yardsticks import echo_client

MEDIAN_MS: Final = 150.0
SETTLE_S: Final = 0.5  # behind a change, which may be felt a little later
QUIET_S: Final = 1.0
WITHIN_S: Final = 60.0  # for one change
AGAIN_S: Final = 0.05
PACE_S: Final = 0.002  # between two looks at how many messages are due
MAX_UNDER_WAY: Final = 20_000
CHANGES_A_CYCLE: Final = 9
QUIET: Final = "quiet"


@dataclass(slots=True)
class Waits:
    """How long sends waited: those that are under way, and the longest since `begin`."""

    failed: int = 0
    sent: int = 0
    longest_s: float = 0.0
    _under_way: dict[int, float] = field(default_factory=dict)

    def begin(self) -> None:
        """What ends from now on counts, with all of its wait."""
        self.longest_s = 0.0

    @property
    def under_way(self) -> int:
        """Sends without an answer."""
        return len(self._under_way)

    @property
    def oldest(self) -> float | None:
        """When the first of them was sent."""
        return min(self._under_way.values(), default=None)

    def send(self, producer: Producer, topic: str, body: bytes) -> None:
        """One more."""
        number, self.sent = self.sent, self.sent + 1
        self._under_way[number] = time.monotonic()
        future = producer.send(topic, body)
        future.add_done_callback(functools.partial(self._on_done, number))

    def _on_done(self, number: int, future: asyncio.Future[SendResult]) -> None:
        self.longest_s = max(self.longest_s, time.monotonic() - self._under_way.pop(number))
        if future.cancelled() or future.exception() is not None:
            self.failed += 1


@contextlib.asynccontextmanager
async def steady_sends(
    producer: Producer, topic: str, body: bytes, per_second: int
) -> AsyncIterator[Waits]:
    """Messages go out at that rate for as long as the block lasts; at its end all are settled."""
    waits = Waits()

    async def keep_sending() -> None:
        began, due = time.monotonic(), 0
        while True:
            now_due = int((time.monotonic() - began) * per_second)
            for _ in range(min(now_due - due, MAX_UNDER_WAY - waits.under_way)):
                waits.send(producer, topic, body)
            due = now_due
            await asyncio.sleep(PACE_S)

    sending = asyncio.create_task(keep_sending(), name="steady sends")
    try:
        yield waits
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await producer.flush()


@dataclass(slots=True)
class Changes:
    """The changes of one group, and what each cost: seconds by its kind."""

    group: LocalGroup
    client: Client
    waits: Waits
    tell: Tell
    found: dict[str, list[float]] = field(default_factory=dict)
    cycles: list[float] = field(default_factory=list)  # the median of each

    async def cycle(self) -> None:
        """One of each kind, between quiet seconds.

        Raises:
            LocalGroupError: a change doesn't come into force in time.
        """
        await asyncio.sleep(SETTLE_S)  # the disk's yardstick has held this process's loop
        await self._measured(QUIET, lambda: asyncio.sleep(QUIET_S))
        costs = [await self._measured("transfer", self._transfer)]
        costs += await self._all_done_to(await self.group.resolve("follower"))
        costs += await self._all_done_to(await self._leader(), "_leader", "_former")
        self.cycles.append(median(costs))

    async def _all_done_to(self, node: LocalNode, mark: str = "", later: str = "") -> list[float]:
        """Demoted, promoted, removed and taken in again. Who led is no leader after the first of
        these: who leads by then is removed."""
        costs = []
        for name, wish in (
            (f"demote{mark}", Wish(demote=(node.id,))),
            (f"promote{later}", Wish(promote=(node.id,))),
        ):
            costs.append(await self._measured(name, functools.partial(self._change, wish)))
        if mark:
            node = await self._leader()
        wish = Wish(remove=(node.id,))
        costs.append(await self._measured(f"remove{mark}", functools.partial(self._change, wish)))
        await self._stand_by(node)
        wish = Wish(add=(Newcomer(node.id, node.address),))
        costs.append(await self._measured(f"add{later}", functools.partial(self._change, wish)))
        return costs

    async def _measured(self, name: str, make: Callable[[], Awaitable[object]]) -> float:
        """The longest wait from now until it is over and the sends of the meantime are answered."""
        self.tell(f"{name}: number {len(self.found.get(name, ())) + 1}")
        self.waits.begin()
        await make()
        await asyncio.sleep(SETTLE_S)
        ended = time.monotonic()
        while (oldest := self.waits.oldest) is not None and oldest <= ended:
            if time.monotonic() > ended + WITHIN_S:
                raise LocalGroupError(f"a send has no answer {WITHIN_S:g} s after: {name}")
            await asyncio.sleep(PACE_S)
        self.found.setdefault(name, []).append(self.waits.longest_s)
        return self.waits.longest_s

    async def _transfer(self) -> None:
        await _until(lambda: self.client.transfer_leadership(deadline_s=WITHIN_S))

    async def _change(self, wish: Wish) -> None:
        """In force, whoever leads by then."""

        async def once() -> None:
            _, is_done = await change(GrpcCalls(), (await self._leader()).address, wish, WITHIN_S)
            if not is_done:
                raise NoAnswer(f"{wish} isn't in force")

        await _until(once)

    async def _leader(self) -> LocalNode:
        return await self.group.resolve("leader")

    async def _stand_by(self, node: LocalNode) -> None:
        """The node, which was removed, runs on an empty directory."""
        self.group.signal(node.id, signal.SIGKILL)
        if not await self.group.wait_gone(node.id):
            raise LocalGroupError(f"{node.id} outlived its SIGKILL")
        shutil.rmtree(Path(node.data_directory))
        await self.group.start(node.id)


async def _until(attempt: Callable[[], Awaitable[object]]) -> None:
    """Tries until it is done: a group in the midst of a change may refuse another for a moment.

    Raises:
        LocalGroupError: it isn't, in time; the text says why.
    """
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            await attempt()
        except (FormationRefused, MemberUnreachable, NoAnswer, ClientError) as error:
            if time.monotonic() > deadline:
                raise LocalGroupError(f"no change after {WITHIN_S:g} s: {error}") from error
            await asyncio.sleep(AGAIN_S)
        else:
            return


async def changes(
    place: Arena, echo_address: str, *, count: int, size_bytes: int, per_second: int, tell: Tell
) -> Report:
    """Makes `count` changes, rounded up to whole cycles.

    Raises:
        LocalGroupError: a change isn't made; too few nodes.
    """
    group = place.local_group()
    if len(group.nodes) < 3:
        raise LocalGroupError("who stays has to be a majority: --nodes 3")
    cycles = -(-count // CHANGES_A_CYCLE)
    async with (
        connected(place) as client,
        fresh_topic(place, client) as topic,
        client.producer() as producer,
        echo_client(echo_address) as echo,
    ):
        yardsticks = Yardsticks(echo, place.directory, tell)
        async with steady_sends(producer, topic, bytes(size_bytes), per_second) as waits:
            made = Changes(group, client, waits, tell)
            await asyncio.sleep(QUIET_S)
            await yardsticks.around(cycles, made.cycle)
    return _report(made, yardsticks, size_bytes, per_second)


def _report(made: Changes, yardsticks: Yardsticks, size_bytes: int, per_second: int) -> Report:
    kinds = {name: waits for name, waits in made.found.items() if name != QUIET}
    every = [wait for waits in kinds.values() for wait in waits]
    none = Target(Comparison.AT_MOST, 0, must=True)
    figures = [
        Figure("longest_wait", "ms", in_ms(every), target=Target(Comparison.AT_MOST, MEDIAN_MS)),
        Figure("longest_wait_worst", "ms", Spread.of([max(every) * MS])),
        yardsticks.against_p50("longest_wait_of_a_cycle", made.cycles, None),
        *(Figure(f"{name}_wait", "ms", in_ms(waits)) for name, waits in kinds.items()),
        Figure("failed", "msgs", Spread.of([float(made.waits.failed)]), target=none),
    ]
    return Report(
        "changes",
        {"changes": len(every), "size_bytes": size_bytes, "per_second": per_second},
        (*yardsticks.figures(), Figure("quiet_wait", "ms", in_ms(made.found[QUIET]))),
        tuple(figures),
        (
            "the longest wait of a send around each change; quiet: in a second without one",
            "the load goes on while the yardsticks are taken",
        ),
    )
