"""Seals are written as far as a snapshot goes; what can't be written costs a start's time only."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from broker.sealing import RETRY_S, STEPS_A_ROUND, Sealer
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import BODIES, DATA, LogUnderTest, make_log

SEAL = DATA / "seal"


class Hand:
    """Runs steps at once."""

    async def run(self, step: Callable[[], object]) -> object:
        return step()


def seals_on(disk: SimulatedDisk) -> list[str]:
    return [path.name for path in disk.paths() if path.parent == SEAL]


def refuse(disk: SimulatedDisk, number: int) -> None:
    """What makes or syncs a seal fails so."""

    def before(operation: str, name: str) -> None:
        if operation == "fsync" and name.endswith(".tmp"):
            raise OSError(number, "refused")

    disk.before = before


def test_nothing_is_sealed_beyond_the_newest_snapshot() -> None:
    made, through = make_log(BODIES), 0
    sealer = Sealer(made.log.seals, lambda: through, Hand())
    asyncio.run(sealer.step())
    assert seals_on(made.disk) == []
    through = 3
    asyncio.run(sealer.step())
    made.disk.kill()
    assert LogUnderTest(made.disk).log.passed_over == ((2, 2),)


def test_a_round_takes_a_few_steps() -> None:
    """However many segments of an older release's log have no seal."""
    made = make_log([b"x" * 3000] * (STEPS_A_ROUND + 2))
    sealer = Sealer(made.log.seals, lambda: STEPS_A_ROUND + 2, Hand())
    asyncio.run(sealer.step())
    assert len(seals_on(made.disk)) == STEPS_A_ROUND
    asyncio.run(sealer.step())
    assert len(seals_on(made.disk)) == STEPS_A_ROUND + 2


def test_a_full_disk_is_waited_for() -> None:
    made = make_log(BODIES)

    async def rounds() -> None:
        sealer = Sealer(made.log.seals, lambda: 7, Hand())
        refuse(made.disk, errno.ENOSPC)
        await sealer.step()
        made.disk.before = lambda _operation, _name: None
        await sealer.step()
        assert seals_on(made.disk) in ([], ["00000000000000000000.tmp"]), "not at once"
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now + RETRY_S + 1  # type: ignore[method-assign]
        await sealer.step()
        assert len(seals_on(made.disk)) == 3

    asyncio.run(rounds())


def test_a_disk_that_fails_ends_the_member() -> None:
    made = make_log(BODIES)
    refuse(made.disk, errno.EIO)
    with pytest.raises(OSError, match="refused"):
        asyncio.run(Sealer(made.log.seals, lambda: 7, Hand()).step())
