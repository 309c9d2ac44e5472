"""What the broker's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.machine import machines_of_a_test


@pytest.fixture(autouse=True)
def machines_end() -> Iterator[None]:
    """What a test has left running ends with it."""
    with machines_of_a_test():
        yield
