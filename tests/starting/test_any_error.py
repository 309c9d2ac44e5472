"""Any call of the file layer fails, in any way, while a member starts.

The directories are those that simulated members have left at their ends: in the midst of cuts,
installs, repairs and mends, with logs that begin later and ones that are new. Whatever call fails,
the start goes on as if it hadn't, or refuses in words that name a file; and nothing is the worse
for it afterwards: the next start, after the death of the process, a loss of power, or a start
between the two in the midst of which the power fails, finds the same log and the same promises.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from broker.config import NodeConfig
from broker.ending import DISK_ERRNOS, disk_failure_in, ending_of
from broker.recovery import Recovered, StoreMachinery, recover
from chaos.sim.disk import MachineDied, SimulatedDisk
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.machine_config import DATA
from chaos.sim.node import SimNode
from chaos.sim.run import run_plan
from dledger.core.types import HardState
from dledger.errors import HardStateCorrupt
from dledger.outcome import ExitCode
from store.errors import StorageFailed, StoreError
from store.starting.errors import StartRefused
from store.worker import ManualWorker
from tests.scale import stride

CODES = (
    *(errno.EIO, errno.EIO, errno.EROFS, errno.ESTALE),
    *(errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.ENOSPC, errno.EDQUOT),
)
# What a start may refuse with; anything else would be a traceback.
REFUSALS = (StartRefused, StoreError, HardStateCorrupt, OSError)


@dataclass(frozen=True, eq=False)
class Left:
    """What a member has left behind."""

    config: NodeConfig
    machinery: StoreMachinery
    known_level: int
    disk: SimulatedDisk
    is_settled: bool  # nothing of it is in a page cache only

    def start(self, disk: SimulatedDisk) -> Recovered:
        with capture_logs():
            return recover(self.config, disk, self.machinery, self.known_level)


@dataclass(frozen=True)
class Outcome:
    """What a start comes to, as far as it matters to others."""

    refusal: str = ""
    hard_state: HardState | None = None
    disk_id: bytes = b""
    first_index: int = 0
    last_index: int = 0
    digest: int = 0


@cache
def directories(seed: int, most: int) -> list[Left]:
    """Those on which members of a simulated group have started again, some of them."""
    found: list[Left] = []
    boot = SimNode.boot

    def look(node: SimNode) -> None:
        if node.life is None and node.refill is None and node.boots:
            machinery = replace(node.machinery, workers=ManualWorker)
            is_settled = len(found) % 2 == 0
            disk = node.disk.image(Random(len(found)) if is_settled else None)
            found.append(Left(node.config, machinery, node.known_level, disk, is_settled))
        boot(node)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimNode, "boot", look)
        assert run_plan(draw_plan(seed, duration_ms=4_000)).failure is None
    return Random(seed).sample(found, min(most, len(found)))


def outcome(left: Left, disk: SimulatedDisk) -> Outcome:
    """What a start comes to; its process is dead afterwards."""
    try:
        return told(left.start(disk))
    except REFUSALS as error:
        return Outcome(type(error).__name__)
    finally:
        disk.kill()


def told(recovered: Recovered) -> Outcome:
    log = recovered.log
    return Outcome(
        "",
        recovered.hard_state,
        recovered.directory.disk.disk_id,
        log.first_index,
        log.last_index,
        log.last_digest,
    )


class Listened(SimulatedDisk):
    """A disk that remembers which of its calls were syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[int] = []

    def _look(self, operation: str, path: Path) -> None:
        super()._look(operation, path)
        if "sync" in operation:
            self.syncs.append(self.asked)


@cache
def calls_of(left: Left) -> tuple[int, tuple[int, ...]]:
    """How many calls a start makes, and which of them are syncs."""
    disk = Listened()
    disk.put_in(left.disk.image())
    outcome(left, disk)
    return disk.asked, tuple(disk.syncs)


def wrong(left: Left, expected: Outcome, chance: Random) -> Iterator[str]:
    """What is wrong with what comes of an error of some call, half the time of a sync."""
    disk = left.disk.image()
    calls, syncs = calls_of(left)
    call, code = chance.randrange(1, calls + 1), chance.choice(CODES)
    if syncs and chance.random() < 0.5:
        call, code = chance.choice(syncs), errno.EIO
    disk.fail_calls(call, code)
    promised = False
    try:
        found = told(left.start(disk))
    except REFUSALS as error:
        yield from wrong_words(error, disk, code)
        if left_open := sorted({str(path) for path, _ in disk._open.values()}):
            yield f"{error!r} leaves {left_open} open"
    except Exception as error:  # noqa: BLE001  one of ours, or none that anybody thought of
        yield f"ends with {error!r}"
    else:
        if found != expected:
            yield f"starts as {found}"
        promised = True
    failed = ", ".join(map(str, disk.failures))
    disk.kill()
    # What only the page cache knew may be lost with the power, until somebody has promised it.
    for after in (disk.image(), *([disk.image(chance)] if promised or left.is_settled else [])):
        if (again := outcome(left, after)) != expected:
            yield f"{failed}: starts as {again} afterwards, not as {expected}"
    if promised or left.is_settled:
        midway = disk.image()
        midway.cut_power_in(chance.randrange(1, calls + 1))
        with contextlib.suppress(MachineDied):
            outcome(left, midway)
        midway.power_off(chance)
        midway.power_on()
        if (again := outcome(left, midway)) != expected:
            yield f"{failed}, and power: starts as {again} afterwards, not as {expected}"


def wrong_words(error: Exception, disk: SimulatedDisk, code: int) -> Iterator[str]:
    """What doesn't say what to look at, or has the supervisor replace what is sound."""
    if not disk.failures:
        return  # it is refused anyway
    names_one = getattr(error, "filename", None) or str(DATA) in str(error)
    if not names_one and not isinstance(error, HardStateCorrupt):
        yield f"names no file: {error}"
    told_as = disk_failure_in(error, DATA) if isinstance(error, OSError) else error
    is_the_disk = isinstance(told_as, StorageFailed) and ending_of(told_as) is ExitCode.DISK_FAILED
    is_own = isinstance(error, OSError) and Path(error.filename or DATA).is_relative_to(DATA)
    if is_own and is_the_disk != (code in DISK_ERRNOS):
        yield f"ends as if it were the disk: {is_the_disk}, {error!r}"


@pytest.mark.parametrize(
    "seed", [0, 1, 4, 5, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))]
)
def test_start_that_meets_an_error_goes_on_or_refuses_and_loses_nothing(seed: int) -> None:
    """Whichever call it is, and whatever the system says of it."""
    chance = Random(seed)
    for left in directories(seed, 4):
        expected = outcome(left, left.disk.image())
        for _ in range(20 // stride(2)):
            assert [*wrong(left, expected, chance)] == []
