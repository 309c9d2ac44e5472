"""One fuzz run: a group, good load on it, strangers, and what became of those who behave."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from broker.local_group import LocalGroup, LocalNode
from chaos.fuzz.attacks import ATTACKS, WEIGHTS, Place
from chaos.fuzz.configurations import broken_configurations
from chaos.fuzz.replicas import read_what_is_left
from chaos.fuzz.target import Vitals, files_below, harassed, loaded, served, vitals
from dledger.client import ClientError

MIB: Final = 1 << 20
WARM_UP_S: Final = 1.0
STRANGERS: Final = 3  # at work at the same time
SERVED_S: Final = 20.0  # a new client is, when the strangers have gone
GROWTH_BYTES: Final = 256 * MIB  # of a node's memory: budgets of requests and answers, and topics
LOG_BYTES_PER_S: Final = 4_096  # of a node's log: a line each five seconds for each cause
LOG_BYTES: Final = 64 << 10
OURS: Final = ("node.toml", "node.log", "group.json", "group.lock", "group.secret")


@dataclass(frozen=True, slots=True)
class FuzzOptions:
    """How much: whichever of the two bounds comes first ends it."""

    seed: int
    requests: int
    seconds: float
    directory: Path


@dataclass(slots=True)
class Fuzzed:
    """What a run found."""

    options: FuzzOptions
    requests: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    good_sent: int = 0
    good_stored: int = 0
    nodes: list[Vitals] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nobody who behaved noticed anything."""
        return not self.problems

    def facts(self) -> dict[str, object]:
        """Plain values, for `--json`."""
        return {
            "seed": self.options.seed,
            "requests": self.requests.total(),
            "by_kind": dict(self.requests),
            "seconds": round(self.seconds, 1),
            "good_sent": self.good_sent,
            "good_stored": self.good_stored,
            "nodes": [asdict(each) for each in self.nodes],
            "problems": self.problems,
            "holds": self.holds,
        }


async def fuzz(options: FuzzOptions, tell: Callable[[str], None]) -> Fuzzed:
    """Harasses a fresh group in the options' folder.

    Raises:
        LocalGroupError: the group can't be made or doesn't start.
    """
    done = Fuzzed(options)
    tell("starting 3 nodes")
    # A secret turns strangers away before their Hello is looked at: every other seed has none.
    async with harassed(options.directory / "group", secret=options.seed % 2 == 0) as group:
        try:
            async with loaded(group) as load:
                await asyncio.sleep(WARM_UP_S)
                before, began = vitals(group), time.monotonic()
                tell("strangers arrive")
                await _harass(group, done, tell)
                done.seconds = time.monotonic() - began
                if not await served(group, SERVED_S):
                    done.problems.append(f"no new client is served within {SERVED_S:g} s")
            tell("reading everything")
            done.problems += await load.compare(group.addresses)
            done.good_sent, done.good_stored = load.sent, len(load.stored)
        except (ClientError, TimeoutError) as error:
            done.problems.append(f"who behaved was told: {type(error).__name__}: {error}")
        done.nodes = vitals(group)
        done.problems += _unhealthy(before, done.nodes, done.seconds)
        done.problems += _strange_files(options.directory, group)
    tell("reading what the nodes have left, harmed")
    chance = Random(f"fuzz {options.seed} files")
    left = {node.id: Path(node.data_directory) for node in group.nodes}
    copies = options.directory / "harmed"
    wrong, tried = await read_what_is_left(chance, left, copies, done.requests.total())
    done.problems += wrong
    done.requests["replicas"] += tried
    return done


async def _harass(group: LocalGroup, done: Fuzzed, tell: Callable[[str], None]) -> None:
    options, places = done.options, [_place(node) for node in group.nodes]
    until = time.monotonic() + options.seconds
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    told = 0

    async def stranger(number: int) -> None:
        nonlocal told
        chance = Random(f"fuzz {options.seed} {number}")
        while done.requests.total() < options.requests and time.monotonic() < until:
            name = chance.choices(names, weights)[0]
            done.requests[name] += await ATTACKS[name](chance, chance.choice(places))
            wrong, tried = broken_configurations(chance)
            done.requests["configurations"] += tried
            done.problems += wrong
            if done.requests.total() // 10_000 > told:
                told = done.requests.total() // 10_000
                tell(f"{done.requests.total():,} requests")

    await asyncio.gather(*(stranger(number) for number in range(STRANGERS)))


def _place(node: LocalNode) -> Place:
    return Place(node.address, node.metrics_address)


def _unhealthy(before: list[Vitals], after: list[Vitals], seconds: float) -> list[str]:
    found: list[str] = []
    for was, now in zip(before, after, strict=True):
        if not now.alive:
            found.append(f"{now.node} has ended")
            continue
        if now.tracebacks > was.tracebacks:
            found.append(f"{now.node} logged {now.tracebacks - was.tracebacks} tracebacks")
        if (grown := now.resident_bytes - was.resident_bytes) > GROWTH_BYTES:
            found.append(f"{now.node} grew by {grown / MIB:.0f} MiB")
        if (more := now.descriptors - was.descriptors) > 600:  # queue files, and connections to go
            found.append(f"{now.node} has {more} more descriptors")
        if now.log_bytes - was.log_bytes > LOG_BYTES + LOG_BYTES_PER_S * seconds:
            found.append(f"{now.node} logged {now.log_bytes - was.log_bytes:,} bytes")
    return found


def _strange_files(directory: Path, group: LocalGroup) -> list[str]:
    """Files that no node has any business to make."""
    data = {Path("group") / node.id / "data" for node in group.nodes}
    return [
        f"a file appeared: {path}"
        for path in files_below(directory)
        if not any(path.is_relative_to(each) for each in data) and path.name not in OURS
    ]
