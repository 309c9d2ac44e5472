"""`bench restart`: how long a follower that was killed takes until it follows again.

From just before its process is started to the first answer that it follows and has applied what
the group had committed. Its files are warm. Before each round the log grows by another part of a
segment, so that the tail behind the newest snapshot, which a start applies, has another length in
each. Beside it what a start can't do without: the same interpreter with what a node imports, and
reading that tail once.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.local_group import LocalGroup, LocalGroupError, LocalNode
from broker.local_group.status import probe
from dledger.client import Client
from dledger.records.layout import FILE_GLOB
from dledger_cli.bench.arena import Arena, connected, fresh_topic
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target, ratios
from dledger_cli.bench.filled import QUEUES, Shape, fill_to, status_of
from dledger_cli.bench.rounds import Tell, in_ms
from dledger_cli.bench.steady import require_room
from store.files import OsFiles
from store.snapshot_files import SnapshotFiles

MOST_S: Final = 3.0
TAIL_BYTES: Final = 48 << 20  # that the log grows by over all rounds, in unequal parts
RESTART_TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.005
READ_BYTES: Final = 1 << 20
START_TIMEOUT_S: Final = 60.0
BARE: Final = "pass"
IMPORTS: Final = "import broker.node, dledger_cli.app"


@dataclass(slots=True)
class Lengths:
    """What the rounds at one length of the log gave; one more of each yardstick."""

    log_bytes: int
    restarts_s: list[float] = field(default_factory=list)
    tail_bytes: list[float] = field(default_factory=list)
    tail_entries: list[float] = field(default_factory=list)
    found_bytes: list[float] = field(default_factory=list)  # of log; a group may have had more
    reads_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    imports_s: list[float] = field(default_factory=list)
    entries: int = 0

    @property
    def name(self) -> str:
        """How it is called in reports: bytes of log, in MB."""
        return f"{self.log_bytes // 1_000_000:,}MB"


@dataclass(frozen=True, slots=True)
class Tail:
    """What lies behind the newest snapshot of a member: bytes `[start, end)` of its log."""

    start: int
    end: int
    entries: int


async def restart(
    place: Arena, *, sizes: Sequence[int], shape: Shape, rounds: int, tell: Tell
) -> Report:
    """Kills a follower `rounds` times at each length of the log.

    Raises:
        LocalGroupError: a node doesn't come back; the disk is too small; no follower.
    """
    group, found = place.local_group(), []
    if len(group.nodes) < 2:
        raise LocalGroupError("a group of one has no follower: --nodes 3")
    require_room(group, minutes=0, bytes_limit=max(sizes) + TAIL_BYTES)
    async with connected(place) as client, fresh_topic(place, client, QUEUES) as topic:
        for size in sorted(sizes):
            tell(f"filling the log to {size / 1e6:,.0f} MB")
            leader = await fill_to(group, client, topic, shape, size)
            lengths = Lengths(size, entries=leader.last_index)
            await _rounds(group, client, (topic, shape), lengths, rounds, tell)
            found.append(lengths)
    return Report(
        "restart",
        {"body_bytes": shape.size_bytes, "messages_per_entry": shape.per_entry, "rounds": rounds},
        tuple(figure for each in found for figure in _yardsticks(each)),
        tuple(figure for each in found for figure in _figures(each)),
        (
            "restart: from exec to a follower that has applied what was committed; files are warm",
            "python: an interpreter that ends at once; imports: with what a node imports; "
            "tail_read: what lies behind the newest snapshot, read once",
        ),
    )


async def _rounds(
    group: LocalGroup,
    client: Client,
    what: tuple[str, Shape],
    lengths: Lengths,
    rounds: int,
    tell: Tell,
) -> None:
    topic, shape = what
    _sample_starts(lengths)
    for number in range(1, rounds + 1):
        tell(f"{lengths.name}: round {number} of {rounds}")
        grown = lengths.log_bytes + TAIL_BYTES * number // rounds
        leader = await fill_to(group, client, topic, shape, grown)
        victim = await _victim(group, number)
        wanted = (await status_of(victim)).commit_index
        group.signal(victim.id, signal.SIGKILL)
        if not await group.wait_gone(victim.id):
            raise LocalGroupError(f"{victim.id} outlived its SIGKILL")
        tail = tail_of(Path(victim.data_directory), leader.end_offset, leader.last_index)
        lengths.reads_s.append(read_once(Path(victim.data_directory), tail))
        lengths.found_bytes.append(leader.end_offset)
        lengths.tail_bytes.append(tail.end - tail.start)
        lengths.tail_entries.append(tail.entries)
        lengths.restarts_s.append(await _restarted(group, victim, wanted))
        _sample_starts(lengths)


async def _victim(group: LocalGroup, number: int) -> LocalNode:
    """A follower, another one each time."""
    leader = (await group.resolve("leader")).id
    followers = [node for node in group.nodes if node.id != leader]
    return followers[number % len(followers)]


async def _restarted(group: LocalGroup, victim: LocalNode, wanted: int) -> float:
    """Seconds until it follows and has applied entry `wanted`.

    Raises:
        LocalGroupError: it ends, or doesn't come that far.
    """
    began = time.monotonic()
    starting = asyncio.create_task(group.start(victim.id, RESTART_TIMEOUT_S))
    try:
        while True:
            status = await probe(victim.address)
            if status and status.role == "follower" and status.applied_index >= wanted:
                took = time.monotonic() - began
                await starting
                return took
            if starting.done():
                starting.result()
            if time.monotonic() - began > RESTART_TIMEOUT_S:
                raise LocalGroupError(f"{victim.id} hasn't caught up in {RESTART_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def tail_of(data: Path, end: int, last_index: int) -> Tail:
    """What a start of that directory has to apply: all of the log, if there is no snapshot.

    Raises:
        CorruptionFound, OSError: the newest snapshot can't be read.
    """
    files = SnapshotFiles(data, OsFiles())
    for index in files.indexes():
        with files.opened(index) as (head, _):
            return Tail(head.end_offset, end, last_index - head.applied_index)
    first = min((int(path.name) for path in (data / "commitlog").glob(FILE_GLOB)), default=0)
    return Tail(first, end, last_index)


def read_once(data: Path, tail: Tail) -> float:
    """Seconds that reading those bytes of the log takes, in blocks of a mebibyte."""
    began = time.perf_counter()
    for segment in sorted((data / "commitlog").glob(FILE_GLOB)):
        base = int(segment.name)
        with segment.open("rb", buffering=0) as file:
            file.seek(max(0, tail.start - base))
            while base + file.tell() < tail.end and file.read(READ_BYTES):
                pass
    return time.perf_counter() - began


def _sample_starts(lengths: Lengths) -> None:
    for code, into in ((BARE, lengths.bare_s), (IMPORTS, lengths.imports_s)):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=START_TIMEOUT_S)
        into.append(time.perf_counter() - began)


def _yardsticks(each: Lengths) -> list[Figure]:
    return [
        Figure(f"{each.name}_python", "ms", in_ms(each.bare_s)),
        Figure(f"{each.name}_imports", "ms", in_ms(each.imports_s)),
        Figure(f"{each.name}_tail_read", "ms", in_ms(each.reads_s)),
    ]


def _figures(each: Lengths) -> list[Figure]:
    target = Target(Comparison.AT_MOST, MOST_S)
    beside = ratios(each.restarts_s, each.imports_s)
    return [
        Figure(f"{each.name}_restart", "s", Spread.of(each.restarts_s), target=target),
        Figure(
            f"{each.name}_restart_beside",
            "s",
            Spread.of(each.restarts_s),
            f"{each.name}_imports",
            beside,
        ),
        Figure(f"{each.name}_log", "MB", Spread.of([size / 1e6 for size in each.found_bytes])),
        Figure(f"{each.name}_tail", "MB", Spread.of([size / 1e6 for size in each.tail_bytes])),
        Figure(f"{each.name}_tail_entries", "entries", Spread.of(each.tail_entries)),
        Figure(f"{each.name}_entries", "entries", Spread.of([float(each.entries)])),
    ]
