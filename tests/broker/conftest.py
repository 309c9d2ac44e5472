"""What the broker's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.machine import end_machines


@pytest.fixture(autouse=True)
def machines_end() -> Iterator[None]:
    """What a test has left running ends with it."""
    yield
    end_machines()
