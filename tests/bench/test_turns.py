"""`dledger bench turns`: it serves, and every load of it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dledger_cli.bench.inside import serving_node
from dledger_cli.bench.turn_loop import TurnLoop
from dledger_cli.bench.turns import Loads


def test_the_node_of_the_benchmark_leads_and_is_measured(tmp_path: Path) -> None:
    """A group of one is formed and led; the loads of consumer groups and topics are asked of it."""
    found: dict[str, list[float]] = {}
    loop = TurnLoop()

    async def measure() -> None:
        async with serving_node(tmp_path / "n1") as node:
            loads = Loads(node, loop.turns, found)
            await loads.topics(200)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(measure())
    assert {"create 200 topics", "ListTopics, 200 topics", "metrics"} <= found.keys()
    assert all(values and values[0] > 0 for values in found.values())
