"""`bench snapshot`: how long the event loop is held while a full state is written down.

The state has as many topics, producers and committed offsets as its bounds permit, and so many
pairs of producer and queue as are asked for (`dledger_cli.bench.full_state`). It is taken, written
and named as a member does it, on a loop that measures its turns in its thread's processor time; an
echo on the same loop stands beside it, and for the time by the clock the same bytes written once.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from broker.node import ThreadHand, tune_interpreter
from broker.snapshots import SnapshotKeeper, SnapshotPace, SnapshotSource, SnapshotStatistics
from broker.state.machine import StateMachine
from broker.turns import LoopTurns
from dledger.reading.entry import EntryKind
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.full_state import full_machine
from dledger_cli.bench.rounds import MS, Tell, in_ms
from dledger_cli.bench.turn_loop import TurnLoop, Turns, measure_echo
from store.commitlog import CommitLog, CommitLogOptions
from store.files import OsFiles
from store.snapshot_files import SnapshotFiles

MOST_MS: Final = 50.0
SEGMENT_BYTES: Final = 16 << 20
ECHO, SNAPSHOT = "echo_turn", "snapshot_turn"


def measure_snapshot(directory: Path, *, sequences: int, rounds: int, tell: Tell) -> Report:
    """The report of `rounds` snapshots of one state, each in a new folder in `directory`."""
    found: dict[str, list[float]] = {}
    written: list[SnapshotStatistics] = []
    wrote_s: list[float] = []
    tune_interpreter()
    loop = TurnLoop()

    async def measure(machine: StateMachine) -> None:
        await measure_echo(found, loop.turns, ECHO)
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}")
            with tempfile.TemporaryDirectory(prefix="dledger-snapshot-", dir=directory) as folder:
                taking = take_snapshot(machine, Path(folder) / "data", loop.turns, found, SNAPSHOT)
                written.append(await taking)
                wrote_s.append(_write(Path(folder), written[-1].size_bytes))
            await measure_echo(found, loop.turns, ECHO)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        tell("making a full state")
        machine = full_machine(sequences)
        gc.collect()
        gc.freeze()
        runner.run(measure(machine))
    beside = [each.last_seconds / bare for each, bare in zip(written, wrote_s, strict=True)]
    return Report(
        "snapshot",
        {
            "topics": len(machine.topics),
            "sequences": sequences,
            "rounds": rounds,
            "size_bytes": written[-1].size_bytes,
        },
        (
            Figure(ECHO, "ms", Spread.of(found[ECHO])),
            Figure("bare_write", "ms", in_ms(wrote_s)),
        ),
        (
            Figure(
                SNAPSHOT,
                "ms",
                Spread.of(found[SNAPSHOT]),
                target=Target(Comparison.AT_MOST, MOST_MS),
            ),
            Figure(
                "snapshot_took",
                "ms",
                Spread.of([each.last_seconds * MS for each in written]),
                "bare_write",
                Spread.of(beside),
            ),
        ),
        ("turns: the longest, processor time of the loop's thread",),
    )


async def take_snapshot(
    machine: StateMachine, directory: Path, turns: Turns, found: dict[str, list[float]], name: str
) -> SnapshotStatistics:
    """The state is in a snapshot in the new folder `directory`, as a member comes to it; the
    longest turn of that is in `found[name]`. What the keeper says of it."""
    directory.mkdir()
    log = CommitLog.open(directory, CommitLogOptions(segment_size_bytes=SEGMENT_BYTES))
    hand = ThreadHand()
    with contextlib.closing(log), contextlib.closing(hand):
        while not log.has_room(60):  # noqa: ASYNC110  for a bench
            await asyncio.sleep(0.01)
        log.append(EntryKind.NOOP, 1, 1, 1, 0, b"")
        machine.state.applied_index = 1
        log.checkpoint.note_consume_queue(1, 1)
        keeper = SnapshotKeeper(
            SnapshotSource(machine, log, bytes(16)),
            SnapshotFiles(directory, OsFiles()),
            hand,
            LoopTurns().share,
            None,
            SnapshotPace(entries=1),
        )
        await asyncio.sleep(0)
        with turns.measured(found, name):
            await keeper.step()
            await asyncio.sleep(0)
        if not keeper.statistics().written:
            raise AssertionError("the snapshot was written")
        return keeper.statistics()


def _write(folder: Path, size: int) -> float:
    """Seconds that writing so many bytes into a file takes, and its fsync."""
    content = os.urandom(size)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        file.write(content)
        os.fsync(file.fileno())
        return time.perf_counter() - began
