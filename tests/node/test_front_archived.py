"""The front of a log goes as far as the archive lets it, and the rest when it does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from broker.archiving import Released
from tests.node.test_front_flushed import about_to_go
from tests.node.world import WorldNode


def first_path(node: WorldNode) -> Path:
    """The oldest file of its log, which begins with the log."""
    start = node.log.start_before(node.log.last_index)
    assert start is not None
    path = node.log.paths_before(start)[0]
    assert node.log.index_at(int(path.name)) == node.log.first_index
    return path


def test_front_goes_up_to_what_the_archive_holds() -> None:
    """What is due behind may come to be due without an end, and keeps nothing that may go."""
    world, node, front, start = about_to_go()
    keeper = node.replica.log_start
    keeper._front = front
    due = front.log.paths_before(start)
    assert len(due) > 1
    free = 0

    async def release(segments: Iterable[Path]) -> Released:
        asked = list(segments)
        gone = len(due) - len(asked)
        assert asked == due[gone:]
        held = "" if free == len(due) else f"{due[free].name} is held"
        return Released(free - gone, held)

    front.archiver.release = release  # type: ignore[method-assign]
    world.run_for(1_000)
    assert node.log.first_index == 1
    assert keeper.held == f"{due[0].name} is held"
    free = 1
    world.run_for(1_000)
    assert first_path(node) == due[1]
    assert keeper.held == f"{due[1].name} is held"
    free = len(due)
    world.run_for(1_000)
    assert node.log.first_index == start.first_index
    assert not keeper.held
    assert node.failure is None
