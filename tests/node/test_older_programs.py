"""Older programs on directories whose logs begin behind a raise of the level.

Source: docs/adr/0023-levels.md, docs/adr/0043-a-log-that-begins-later.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from audit.proof.copy import of_directory
from audit.proof.soundness import Soundness
from broker import installing
from broker.state.layout import APPLYING
from dledger.core.types import SnapshotOffer
from dledger.level import KNOWN_LEVEL
from store.starting.errors import BaseUnknown
from store.starting.judgement import Effect, Kind
from store.starting.judging import judge
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
async def test_older_program_behind_the_raise_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't have the state that the log begins with, and nobody could give it another: whoever
    did as for a base that is lost, and emptied the directory, would have one copy less. Who judges
    the directory by that program says the same, and not that it is damaged."""
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
        with monkeypatch.context() as older:
            older.setattr("store.starting.levels.KNOWN_LEVEL", KNOWN_LEVEL - 1)
            judged = judge(directory)
        assert not judged.starts
        assert judged.refusal == text
        assert [each.kind for each in judged.of(Effect.REFUSED)] == [Kind.BASE_UNKNOWN]
        assert of_directory(judged) is Soundness.INCOMPLETE
        assert judge(directory).starts
        assert files_of(directory) == held
        group.known_levels[away] = KNOWN_LEVEL
        group.start(away)
        await grow(group, 1, "later")


@on_a_loop
async def test_older_program_pulls_a_state_behind_the_raise_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was away until the others' logs began behind its last entry: it is offered a state that it
    can't begin with, says so as of a raise in the log, and the leader's disk isn't read for it
    again and again."""
    monkeypatch.setattr(installing, "AGAIN_S", 0.01)
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        await at_the_newest(group)
        away = follower(group, leader)
        await group.stop(away)
        await let_go(group, await grow(group, 3, "first"))
        group.known_levels[away] = KNOWN_LEVEL - 1
        with capture_logs() as told:
            group.start(away)
            old = group.replicas[away]
            await group.until(lambda: old.installer.apply_stopped)
            offers, take = 0, old.installer.offered

            def counted(offer: SnapshotOffer) -> None:
                nonlocal offers
                offers += 1
                take(offer)

            monkeypatch.setattr(old.installer, "offered", counted)
            await group.until(lambda: offers > 20)
        assert sum(each["event"] == "snapshot_wanted" for each in told) == 1
        # Its own log has the raise as well; one that was filled before it, or never, has not.
        statistics = old.driver.statistics
        monkeypatch.setattr(
            old.driver, "statistics", lambda: replace(statistics(), apply_stopped="")
        )
        status = await old.services.cluster.status()
        assert f"uses level {KNOWN_LEVEL}, and this program knows" in status.apply_stopped
        assert "install a newer one" in status.apply_stopped
        assert old.failure is None


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
