"""Older programs on directories whose logs begin behind a raise of the level.

Source: docs/adr/0023-levels.md, docs/adr/0043-a-log-that-begins-later.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.state.layout import APPLYING
from dledger.level import KNOWN_LEVEL
from store.starting.errors import BaseUnknown
from tests.node.members import Members
from tests.node.test_later_logs import follower, grow, let_go, on_a_loop, small_members


def files_of(directory: Path) -> dict[Path, bytes]:
    """What must be there later, too."""
    folders = (directory / "commitlog", directory / "snapshot")
    return {each: each.read_bytes() for folder in folders for each in folder.iterdir()}


async def at_the_newest(group: Members) -> None:
    """Every member uses the newest level."""
    await group.until(
        lambda: {each.machine.level.current for each in group.replicas.values()} == {KNOWN_LEVEL}
    )


@on_a_loop
async def test_older_program_behind_the_raise_says_what_to_install(tmp_path: Path) -> None:
    """It can't have the state that the log begins with, and nobody could give it another: whoever
    did as for a base that is lost, and emptied the directory, would have one copy less."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 2, "first")
        await at_the_newest(group)
        first = await let_go(group, leader)
        away = follower(group, leader)
        await group.stop(away)
        directory = group.configs[away].data_directory
        group.known_levels[away], held = KNOWN_LEVEL - 1, files_of(directory)
        with pytest.raises(BaseUnknown) as refused:
            group.start(away)
        assert refused.value.first_index == first
        text = str(refused.value)
        assert f"level {KNOWN_LEVEL}, and this program knows level {KNOWN_LEVEL - 1}" in text
        assert "Don't empty the directory" in text
        assert "group replace" not in text
        assert files_of(directory) == held
        group.known_levels[away] = KNOWN_LEVEL
        group.start(away)
        await grow(group, 1, "later")


@on_a_loop
async def test_base_that_earlier_rules_made_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was made of is gone everywhere: were it refused as a snapshot is, a release with
    other rules would start on no log that begins later. One of rules that aren't known, or not any
    more, is never told as lost."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 2, "first")
        first = await let_go(group, leader)
        away = follower(group, leader)
        await group.stop(away)
        monkeypatch.setattr("broker.state.replicated.APPLYING", APPLYING + 1)
        group.start(away)
        newer = group.replicas[away]
        assert newer.log.first_index == first
        await grow(group, 1, "second")
        second = await let_go(group, await group.leader())
        await group.stop(away)
        with monkeypatch.context() as later:
            later.setattr("broker.state.replicated.APPLYING", APPLYING + 2)
            later.setattr("broker.snapshots.EARLIEST_BASE", APPLYING + 2)
            with pytest.raises(BaseUnknown, match="applied by other rules"):
                group.start(away)
        with monkeypatch.context() as put_back:
            put_back.setattr("broker.state.replicated.APPLYING", APPLYING)
            with pytest.raises(BaseUnknown, match="applied by other rules") as refused:
                group.start(away)
        assert refused.value.first_index == second
        group.start(away)
        await grow(group, 1, "third")
