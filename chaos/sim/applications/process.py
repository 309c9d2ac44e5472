"""A client's process: an event loop with its own clocks and chance, and the library inside it.

The library asks its machine for a clock, for randomness and for channels. While `library_in`
lasts, each of these is the process's whose event is being handled, so that a seed decides what the
library does. Nothing else of it is touched: what is simulated is the code that users import.
"""

from __future__ import annotations

import os
import random
import sys
import time
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from random import Random
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

import tenacity
import tenacity.wait

from chaos.sim.applications.slips import RULES, Slip, slipping
from chaos.sim.loop import ProcessLoop, Timer
from chaos.sim.timeline import Timeline
from dledger.client import broker_group, client, connection
from dledger.client.members import settings
from dledger.client.members.clock import clock

FIRST_NUMBER = 200  # of the actors that are clients' processes
MAX_WAITS = 100  # of one coroutine that is closed


class Wires(Protocol):
    """What leads to the nodes, by address."""

    def dial(self, process: ClientProcess, address: str) -> Any:
        """A channel."""
        ...

    async def is_refused(self, process: ClientProcess, address: str) -> bool:
        """Whether the host says that nobody listens there."""
        ...


class ClientProcess(ProcessLoop):
    """One process that uses the library. `cut_from`: addresses that it can't reach."""

    def __init__(self, timeline: Timeline, name: str, number: int, chance: Random) -> None:
        super().__init__(timeline, name, FIRST_NUMBER + number)
        self.chance = chance
        self.paused_at_us = -1  # when it was last stopped, or went on again
        self.slip_share = 0.0  # of the library's rules that fail as they are called
        self._clock_timeline = timeline

    def call_soon(self, callback: Callable[..., object], *args: object, context: Any = None) -> Any:
        """As the other processes' loops do, but what it gives can be cancelled."""
        handle = Timer(self, callback, args)
        super().call_soon(handle.fire)
        return handle

    call_soon_threadsafe = call_soon

    def add_signal_handler(self, *_: object) -> NoReturn:
        """There are no signals here: processes are killed."""
        raise NotImplementedError

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As every loop's; what was let slip is told, as it has to be."""
        if not isinstance(context.get("exception"), Slip):
            super().call_exception_handler(context)

    def slips(self) -> bool:
        """Whether what the library does next fails in a way that nobody foresaw."""
        return self.slip_share > 0 and self.chance.random() < self.slip_share

    def die(self) -> None:
        """SIGKILL. What coroutines do as they are closed reaches nobody: it never happened."""
        before = events._get_running_loop()
        self.alive = False
        events._set_running_loop(self._loop)
        try:
            tasks, self._tasks = self._tasks, {}
            for coroutine in tasks.values():
                _close(coroutine)
        finally:
            self._ready.clear()
            events._set_running_loop(before)

    def waits(self) -> list[str]:
        """Where each task waits."""
        frames = (task.get_stack(limit=1) for task in self._tasks)
        return [f"{f.f_code.co_qualname}:{f.f_lineno}" for each in frames for f in each[-1:]]

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused, self.paused_at_us = True, self.now_us

    def resume(self) -> None:
        """SIGCONT."""
        if self.paused:
            self.paused_at_us = self.now_us
            self._clock_timeline.resume(self)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Nothing of it runs any more. One that waits while it is closed has to be closed again."""
    for _ in range(MAX_WAITS):
        try:
            coroutine.close()
        except BaseException as error:  # noqa: BLE001 - of a process that is no more
            if "ignored GeneratorExit" not in str(error):
                return
        else:
            return


class _Chance:
    """`random`, as far as the library uses it: the running process's."""

    def random(self) -> float:
        return _running().random()

    def uniform(self, low: float, high: float) -> float:
        return _running().uniform(low, high)


class _System:
    """`os`, but for randomness and the process's number."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        return _running().randbytes(size)

    def getpid(self) -> int:
        return 1


def _process() -> ClientProcess:
    process: object = events._get_running_loop()
    assert isinstance(process, ClientProcess), "the library runs in no client's process"
    return process


def _running() -> Random:
    return _process().chance


def _wall_s() -> float:
    process: object = events._get_running_loop()
    return process.wall_ms() / 1_000 if isinstance(process, ClientProcess) else 0.0


def _ignore(_: object) -> None:
    """Nobody is told."""


def _slips() -> bool:
    process: object = events._get_running_loop()
    return isinstance(process, ClientProcess) and process.slips()


def _now() -> float:
    loop = events._get_running_loop()
    return 0.0 if loop is None else loop.time()


@contextmanager
def library_in(wires: Wires) -> Iterator[None]:
    """The library lives in the simulated world meanwhile, and reaches it by `wires`."""
    before: list[tuple[Any, str, Any]] = []

    def put(place: Any, name: str, value: Any) -> None:
        before.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    def open_channel(address: str, *_: object) -> Any:
        return wires.dial(_process(), address)

    async def is_refused(address: str) -> bool:
        return await wires.is_refused(_process(), address)

    chance, system = _Chance(), _System()
    stands_for = {
        id(clock): _now,
        id(random): chance,
        id(os): system,
        id(time.time): _wall_s,
    }
    for module in [m for n, m in sorted(sys.modules.items()) if n.startswith("dledger.client")]:
        for name, value in sorted(vars(module).items()):
            if id(value) in stands_for:
                put(module, name, stands_for[id(value)])
    put(broker_group, "open_channel", open_channel)
    put(connection, "is_refused", is_refused)
    put(client, "own_ipv4", lambda _: "10.0.9.9")
    put(settings, "socket", SimpleNamespace(gethostname=lambda: "client"))
    put(tenacity, "time", SimpleNamespace(monotonic=_now, sleep=time.sleep))
    put(tenacity.wait, "random", chance)
    put(sys, "unraisablehook", _ignore)  # of coroutines of killed processes
    for owner, rules in RULES:
        for rule in rules:
            put(owner, rule, slipping(getattr(owner, rule), _slips))
    log = getLogger("dledger.client")
    level = log.level
    log.setLevel(CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # killed processes close nothing
            yield
    finally:
        log.setLevel(level)
        for place, name, value in reversed(before):
            setattr(place, name, value)
