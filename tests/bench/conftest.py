"""Nodes that are measured are started as ever: how long that takes is among the figures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.local_group.process import spawn_detached, use_spawner
from tests.warm import spawn


@pytest.fixture(autouse=True, scope="module")
def _nodes_are_started() -> Iterator[None]:
    use_spawner(spawn_detached)
    yield
    use_spawner(spawn)
