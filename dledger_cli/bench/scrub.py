"""`bench scrub`: what reading the log again costs, as fast as it can and as a node does it.

The first figures are bytes for each second of one processor: the first look at a log walks every
entry, each later one compares with what the first has remembered. Beside them the same bytes read
in blocks of a mebibyte, and an XXH3-64 over each. The share is what a node at rest takes more with
the scrub than without, passes following each other without a pause, so that it is what it is while
one is under way; processor time of the whole process counts, and not only that of the steps.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from xxhash import xxh3_64_intdigest

from broker.node import tune_interpreter
from broker.ports import Rhythm
from broker.scrubbing import ScrubPace
from dledger.records.layout import FILE_GLOB
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target, ratios
from dledger_cli.bench.filled import Shape
from dledger_cli.bench.inside import fill_inside, serving_node
from dledger_cli.bench.rounds import Tell
from store.commitlog import CommitLog

LEAST_BYTES_PER_S: Final = 1e9
MOST_PERCENT: Final = 3.0
BLOCK_BYTES: Final = 1 << 20
SETTLE_S: Final = 1.5  # a start's and a load's own work, one round of housekeeping
WITHOUT_A_PAUSE: Final = Rhythm(scrub=ScrubPace(between_s=0.0))


@dataclass(slots=True)
class Taken:
    """What the rounds gave: bytes for a second of a processor; percent of one."""

    hashed: list[float] = field(default_factory=list)  # one more than rounds
    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    resting: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)  # bytes a second by the clock, as a node does


def measure_scrub(
    directory: Path, *, size: int, shape: Shape, seconds: float, rounds: int, tell: Tell
) -> Report:
    """The report of `rounds` rounds over one log, made in a folder of its own in `directory`."""
    taken = Taken()
    tune_interpreter()

    async def measure(folder: Path) -> None:
        tell("filling the log")
        async with serving_node(folder, scrub_percent=0) as node:
            await fill_inside(node, size, size_bytes=shape.size_bytes, per_entry=shape.per_entry)
        taken.hashed.append(_hashed(folder))
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}: as fast as it can")
            async with serving_node(folder, scrub_percent=0) as node:
                log = node.replica.log
                for into in (taken.first, taken.again):  # what isn't in the files yet can't be read
                    into.append(_unthrottled(log, log.synced_index))
            tell(f"round {number} of {rounds}: as a node does it")
            await _beside_rest(folder, seconds, taken)
            taken.hashed.append(_hashed(folder))

    with (
        tempfile.TemporaryDirectory(prefix="dledger-scrub-", dir=directory) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(Path(folder)))
    return _report(taken, size, shape, seconds)


def _unthrottled(log: CommitLog, through: int) -> float:
    """Bytes for a second of this thread's processor time, over one pass."""
    scrub = log.scrub
    began, before = time.thread_time(), scrub.checked_bytes
    scrub.begin(through)
    while not scrub.is_over:
        scrub.finish(scrub.step()())
    return (scrub.checked_bytes - before) / (time.thread_time() - began)


async def _beside_rest(folder: Path, seconds: float, taken: Taken) -> None:
    async with serving_node(folder, scrub_percent=0):
        await asyncio.sleep(SETTLE_S)
        resting = await _percent(seconds)
    async with serving_node(folder, WITHOUT_A_PAUSE) as node:
        await asyncio.sleep(SETTLE_S)
        before = node.replica.scrubber.statistics().checked_bytes
        began = time.monotonic()
        scrubbing = await _percent(seconds)
        checked = node.replica.scrubber.statistics().checked_bytes - before
        taken.rate.append(checked / (time.monotonic() - began))
    taken.resting.append(resting)
    taken.share.append(scrubbing - resting)


async def _percent(seconds: float) -> float:
    """Of a processor, that this process takes in that time."""
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.monotonic() - began)


def _hashed(folder: Path) -> float:
    """The log's files, read and hashed once: bytes for a second of this thread's processor time."""
    size, took = 0, 0.0
    for segment in sorted((folder / "commitlog").glob(FILE_GLOB)):
        with segment.open("rb", buffering=0) as file:
            began = time.thread_time()
            while block := file.read(BLOCK_BYTES):
                xxh3_64_intdigest(block)
                size += len(block)
            took += time.thread_time() - began
    return size / took


def _report(taken: Taken, size: int, shape: Shape, seconds: float) -> Report:
    fast = Target(Comparison.AT_LEAST, LEAST_BYTES_PER_S / 1e6)
    figures = []
    for name, rates in (("first_look", taken.first), ("looked_again", taken.again)):
        figures += [
            Figure(name, "MB/cpu-s", _mb(rates), target=fast),
            Figure(f"{name}_beside", "", _mb(rates), "xxh3", ratios(rates, taken.hashed)),
        ]
    return Report(
        "scrub",
        {
            "log_bytes": size,
            "body_bytes": shape.size_bytes,
            "messages_per_entry": shape.per_entry,
            "seconds": seconds,
            "rounds": len(taken.first),
        },
        (
            Figure("xxh3", "MB/cpu-s", _mb(taken.hashed)),
            Figure("node_at_rest", "% of a core", Spread.of(taken.resting)),
        ),
        (
            *figures,
            Figure(
                "share",
                "% of a core",
                Spread.of(taken.share),
                target=Target(Comparison.AT_MOST, MOST_PERCENT),
            ),
            Figure("rate_of_a_node", "MB/s", _mb(taken.rate)),
        ),
        (
            "MB/cpu-s: for each second of one processor; first_look: walks every entry; "
            "looked_again: compares with what that remembered",
            "share: of a node at rest, passes without a pause between them, less node_at_rest",
        ),
    )


def _mb(rates: list[float]) -> Spread:
    return Spread.of([rate / 1e6 for rate in rates])
