"""Nodes whose starts are among the figures are started as ever; others are forked (`tests.warm`):
no figure is judged here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.local_group.process import spawn_detached, use_spawner
from tests.warm import spawn


@pytest.fixture
def _nodes_are_started() -> Iterator[None]:
    use_spawner(spawn_detached)
    yield
    use_spawner(spawn)
