"""The scrub of a member that is restarted: it goes on, and tells of the pass before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker.ports import Rhythm
from broker.scrubbing import ScrubPace
from dledger.core.types import NodeId
from store.files import OsFiles
from store.scrub_note import NAME, ScrubNote, ScrubPlace
from tests.node.members import members
from tests.node.test_repairs import fill, follower, rot
from tests.node.test_replica import on_a_loop

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
