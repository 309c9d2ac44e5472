"""A node that stands by, on a disk that has no room at that moment, is told to be a member."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormingError, RefusedForNow
from broker.forming.planning import UNFORMED, Description, founding_of
from broker.node import entrances
from broker.standby import Standby
from store.files import Handle, OsFiles
from tests.integration.group import make_configs


class FilledFiles(OsFiles):
    """The operating system's, and no new file of some names for as long as `left` says."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.refused = 0
        self.is_full = False

    def create(self, path: Path) -> Handle:
        if self.is_full and path.name.startswith(self._name):
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return super().create(path)


def told_to(
    tmp_path: Path, files: FilledFiles, ask: Callable[[GrpcCalls, str], Awaitable[None]]
) -> None:
    """It is refused for now while the disk is full, the node goes on standing by, and does it as
    soon as there is room."""

    async def run() -> None:
        (config,) = make_configs(tmp_path, 1)
        standby = Standby(config, files, lambda: entrances(config, None))
        waiting = asyncio.create_task(standby.until_member())
        calls = GrpcCalls()
        try:
            async with asyncio.timeout(60):
                while (before := await described(calls, config.listen)) is None:
                    await asyncio.sleep(0.05)
            assert before.state == UNFORMED
            files.is_full = True
            for _ in range(2):
                with pytest.raises(RefusedForNow, match="no space"):
                    await ask(calls, config.listen)
            assert files.refused
            assert not waiting.done()
            assert await calls.describe(config.listen) == before
            files.is_full = False
            await ask(calls, config.listen)
        finally:
            standby.ask_to_stop()
            is_member = await waiting
        assert is_member is (ask is join)

    asyncio.run(run())


async def described(calls: GrpcCalls, address: str) -> Description | None:
    with contextlib.suppress(FormingError):
        return await calls.describe(address)
    return None


async def join(calls: GrpcCalls, address: str) -> None:
    itself = await calls.describe(address)
    await calls.join(address, itself.disk_id)


async def prepare(calls: GrpcCalls, address: str) -> None:
    founding = founding_of([await calls.describe(address)], adopt=False)
    assert founding is not None
    await calls.prepare(address, founding)


def test_joining_waits_for_room(tmp_path: Path) -> None:
    told_to(tmp_path, FilledFiles("identity.json.tmp"), join)


def test_preparing_waits_for_room(tmp_path: Path) -> None:
    told_to(tmp_path, FilledFiles("formation.json.tmp"), prepare)
