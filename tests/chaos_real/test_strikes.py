"""Strikes that hit nobody: skipped, and taken down as that."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.errors import NothingStruck
from chaos.real.blow import Blow
from chaos.real.nemeses import NEMESES
from chaos.real.runner import Run
from chaos.real.scenario import Strike
from dledger.client import ClientError, Outcome
from dledger.client.errors import DeadlineExceeded, NotLeader
from tests.chaos_real.finished_run import finished_run


class Watched:
    """A group that has a leader, or none."""

    def __init__(self, leader: str | None) -> None:
        self._leader = leader

    async def found_leader(self, _: float) -> str | None:
        return self._leader


def test_watch_that_fails_is_a_problem() -> None:
    """Nodes that ended since would be seen by nobody; the last look is at them all the same."""
    run = run_of("n1", crew=SimpleNamespace(ended_by_themselves=list))
    told: list[str] = []

    def bad_ends() -> list[str]:
        told.append("")
        if len(told) == 1:
            raise OSError("no more files")
        return ["n2 was asked to stop and ended with 4"]

    run.arena = cast("Any", SimpleNamespace(bad_ends=bad_ends, ended_by_themselves=list))

    async def watched() -> None:
        async with run._guarded():
            await asyncio.sleep(0)

    asyncio.run(watched())
    first, second = run.finished.problems
    assert "no more files" in first
    assert second == "n2 was asked to stop and ended with 4"


class Refusing:
    """A client whose hand-overs end with an error."""

    def __init__(self, error: ClientError) -> None:
        self._error = error

    async def transfer_leadership(self, **_: object) -> None:
        raise self._error


def run_of(leader: str | None, crew: Any = None) -> Run:
    """A run before its first strike."""
    finished = finished_run()
    finished.bands = []
    arena: Any = SimpleNamespace(node_ids=("n1", "n2", "n3"))
    watch: Any = Watched(leader)
    unused: Any = None
    clock: Any = partial(int, 0)
    return Run(finished.options, arena, watch, unused, crew, unused, finished, clock, print)


async def strike(run: Run, nemesis: str, *targets: str) -> None:
    await run._strike(Strike(nemesis, targets, {}, nemesis))


def test_strike_at_a_leader_that_is_not_there_is_no_fault() -> None:
    """It is counted by itself, with the reason."""
    run = run_of(None)
    asyncio.run(strike(run, "pause", "leader"))
    assert (run.finished.bands, run.finished.skipped) == ([], [("pause", "nobody leads")])


def test_strike_that_finds_nobody_is_no_fault() -> None:
    """Nor is anything there to be healed."""
    run = run_of("n1", crew=SimpleNamespace(draw=lambda _: None))
    for nemesis in ("kill-member", "dismiss-member", "pause-member"):
        asyncio.run(strike(run, nemesis))
    assert run.finished.bands == []
    assert [name for name, _ in run.finished.skipped] == [
        "kill-member",
        "dismiss-member",
        "pause-member",
    ]
    assert {why for _, why in run.finished.skipped} == {"no member is at work"}
    asyncio.run(run._heal_all())


@pytest.mark.parametrize("error", [NotLeader("no"), DeadlineExceeded("late")])
def test_hand_over_that_was_refused_is_no_fault(error: ClientError) -> None:
    """One of which nobody knows is."""
    error.outcome = Outcome.DID_NOT_HAPPEN
    blow: Any = SimpleNamespace(client=Refusing(error))
    with pytest.raises(NothingStruck):
        asyncio.run(transferred(blow))
    error.outcome = Outcome.MAY_HAVE_HAPPENED
    assert "perhaps" in asyncio.run(transferred(blow))


async def transferred(blow: Blow) -> str:
    return await NEMESES["transfer"].strike(blow)
