"""The scrub of a member that is restarted: it goes on, and tells of the pass before."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.ports import Rhythm
from broker.scrubbing import ScrubPace
from dledger.core.types import NodeId
from store.files import OsFiles
from store.scrub_note import NAME, ScrubNote, ScrubPlace
from tests.node.members import members
from tests.node.test_repairs import Wiretap, fill, follower, rot, without_answers
from tests.node.test_replica import on_a_loop
from tests.node.world import World

OFTEN = Rhythm(housekeeping_s=0.02, scrub=ScrubPace(between_s=0.02, note_s=0.0))
SLOW = replace(OFTEN, scrub=ScrubPace(shortest_pause_s=3_600.0, longest_pause_s=3_600.0))


@on_a_loop
async def test_last_full_pass_and_progress_are_told_on_after_a_restart(tmp_path: Path) -> None:
    async with members(tmp_path, 3, OFTEN) as group:
        victim = follower(group, await fill(group))
        name, path = NodeId(victim.config.node_id), victim.config.data_directory
        await group.until(lambda: victim.scrubber.statistics().passes > 1)
        ended_ms = victim.scrubber.statistics().last_pass_ended_ms
        await group.stop(name)
        note, place = ScrubNote(OsFiles(), path), victim.log.position_of(30)
        assert note.read(1 << 60).ended_ms >= ended_ms
        note.write(ScrubPlace(place, 5_000, ended_ms, 700))
        group._rhythm = SLOW
        group.start(name)
        scrubber = group.replicas[name].scrubber
        await group.until(lambda: scrubber.statistics().pass_total_bytes)
        told = scrubber.statistics()
        assert told.pass_bytes >= place
        assert (told.last_pass_ended_ms, told.last_pass_s, told.passes) == (ended_ms, 0.7, 0)
        await group.stop(name)
        left = note.read(1 << 60)
        assert left.place >= place
        assert left.worked_ms >= 5_000
        assert left.ended_ms == ended_ms


@on_a_loop
async def test_note_that_lies_hides_no_rot(tmp_path: Path) -> None:
    """It says that all was looked at: what has rotted is found by the pass that comes next."""
    async with members(tmp_path, 3, OFTEN) as group:
        victim = follower(group, await fill(group))
        name, path = NodeId(victim.config.node_id), victim.config.data_directory
        end = victim.log.end_offset
        await group.stop(name)
        ScrubNote(OsFiles(), path).write(ScrubPlace(end - 1, 0, 1, 1))
        group.start(name)
        again = group.replicas[name]
        rot(again, 5)
        await group.until(lambda: again.repairs.statistics().repaired)
        (path / NAME).unlink(missing_ok=True)
        await group.stop(name)
        assert (path / NAME).exists()
        (path / NAME).write_bytes(b"nonsense")
        group.start(name)
        again = group.replicas[name]
        await group.until(lambda: again.scrubber.statistics().passes)
        assert again.failure is None


@on_a_loop
async def test_no_full_pass_is_told_of_while_rot_is_passed_over(tmp_path: Path) -> None:
    """Nobody gives what is missing: passes come and go, and what was told of the last full one
    stays; a process that comes next begins anew. Once it is put right, they are full again."""
    rhythm = replace(OFTEN, scrub=replace(OFTEN.scrub, longest_pause_s=0.05))
    async with members(tmp_path, 3, rhythm) as group:
        victim = follower(group, await fill(group))
        scrub, begun = victim.log.scrub, 0
        begin = scrub.begin
        await group.until(lambda: victim.scrubber.statistics().passes > 1)
        tap = Wiretap(group)
        tap.change = without_answers
        rot(victim, 5)
        await group.until(lambda: victim.repairs.is_at_work)

        def count(through: int, place: int = 0) -> None:
            nonlocal begun
            begun += 1
            begin(through, place)

        scrub.begin = count  # type: ignore[method-assign]
        await group.until(lambda: begun > 1)
        before = victim.scrubber.statistics()
        noted: list[ScrubPlace] = []
        victim.scrubber._note.write = noted.append  # type: ignore[method-assign, union-attr]
        await group.until(lambda: begun > 5)
        told = victim.scrubber.statistics()
        assert (told.passes, told.last_pass_ended_ms) == (before.passes, before.last_pass_ended_ms)
        assert {each.ended_ms for each in noted} == {before.last_pass_ended_ms}
        assert {each.place for each in noted} == {0}
        tap.change = lambda _, message: message
        await group.until(lambda: victim.scrubber.statistics().passes > told.passes)
        assert not victim.repairs.is_at_work


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENOSPC, errno.EIO])
def test_note_that_cant_be_had_ends_nobody_but_a_disk_that_fails_does(code: int) -> None:
    """It orders work: without it the pass begins anew. Whoever may not read or write it, or has
    nothing left for that, goes on; what says that the disk has failed ends the member (ADR 8)."""
    world = World(count=1)
    node = world.serving()
    world.run_for(200)
    refused = 0
    find = node.disk._look

    def look(operation: str, path: Path) -> None:
        nonlocal refused
        if path.name.startswith(NAME):
            refused += 1
            raise OSError(code, os.strerror(code), str(path))
        find(operation, path)

    world.crash(node.name)
    node.disk._look = look  # type: ignore[method-assign]
    world.restart(node.name)
    for _ in range(8_000):
        world.tick()
        if node.replica.scrubber.statistics().passes > 1 or node.failure is not None:
            break
    assert refused
    assert (node.failure is not None) == (code == errno.EIO)
