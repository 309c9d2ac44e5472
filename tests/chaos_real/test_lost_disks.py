"""Lost directories: what is done to them, and that a member on an empty one is a finding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from broker.local_group import LocalGroupError
from chaos.real.arena import Arena, ArenaOptions, arena
from chaos.real.blow import Blow
from chaos.real.lost_disks import lose, make_good


class FakeArena:
    """One node, n1; `done` lists what happened to it."""

    def __init__(self) -> None:
        self.meant_to_be_down: set[str] = set()
        self.done: list[str] = []
        self.is_waiting = [True, False]

    def __getattr__(self, name: str) -> Any:
        def note(_: str) -> None:
            self.done.append(name)

        async def note_later(_: str) -> None:
            self.done.append(name)

        return note_later if name in ("gone", "start", "take_in") else note

    async def waits(self, _: str) -> bool:
        return self.is_waiting.pop(0)


def blow(made: FakeArena, how: str) -> Blow:
    async def nothing_read(_: int) -> str:
        return ""

    options = {"how": how}
    return Blow(
        cast(Arena, made), cast(Any, None), "label", ("n1",), options, Random(1), nothing_read
    )


def test_a_directory_is_emptied_below_its_process_and_replaced() -> None:
    made = FakeArena()
    asyncio.run(lose(blow(made, "emptied")))
    assert made.meant_to_be_down == {"n1"}
    assert made.done == ["empty", "kill", "gone", "empty", "start"]
    asyncio.run(make_good(blow(made, "emptied")))
    assert made.done[5:] == ["take_in"]


def test_a_mount_is_gone_and_there_again() -> None:
    made = FakeArena()
    asyncio.run(lose(blow(made, "unmounted")))
    assert made.done == ["kill", "gone", "unmount", "start"]
    asyncio.run(make_good(blow(made, "unmounted")))
    assert made.done[4:] == ["kill", "gone", "mount_again", "start"]


@pytest.mark.parametrize("how", ["emptied", "unmounted"])
def test_a_member_on_an_empty_directory_is_a_finding(how: str) -> None:
    made = FakeArena()
    made.is_waiting = [False]
    with pytest.raises(LocalGroupError, match="n1 is a member on a directory that was empty"):
        asyncio.run(lose(blow(made, how)))


def test_a_mount_has_its_files_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with arena(tmp_path / "group", ArenaOptions(nodes=1, seed=1)) as made:
            data = made.data_directory("n1")
            (data / "raft").mkdir(parents=True)
            (data / "raft" / "boot").write_bytes(b"7")
            made.unmount("n1")
            assert not data.exists()
            data.mkdir()
            (data / "fresh").touch()
            made.mount_again("n1")
            assert [path.name for path in data.iterdir()] == ["raft"]
            assert (data / "raft" / "boot").read_bytes() == b"7"
            made.empty("n1")
            assert data.exists()
            assert not list(data.iterdir())

    asyncio.run(scenario())
