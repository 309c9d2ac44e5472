"""Nodes whose starts are among the figures are started as ever; others are forked (`tests.warm`):
no figure is judged here, and what stands beside them is taken shortly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.local_group.process import spawn_detached, use_spawner
from dledger_cli.bench import rounds
from dledger_cli.bench.yardsticks import Echo, EchoSample, sample_echo
from tests.warm import spawn

ECHO_S = 0.1
SETTLE_S = 0.05


@pytest.fixture(autouse=True)
def _yardsticks_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what no figure is judged, a tenth tells as much."""

    async def sampled(echo: Echo, _seconds: float) -> EchoSample:
        return await sample_echo(echo, ECHO_S)

    monkeypatch.setattr(rounds, "SETTLE_S", SETTLE_S)
    monkeypatch.setattr(rounds, "sample_echo", sampled)


@pytest.fixture
def _nodes_are_started() -> Iterator[None]:
    use_spawner(spawn_detached)
    yield
    use_spawner(spawn)
