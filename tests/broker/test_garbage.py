"""What has lasted is walked once, and what comes to nothing goes as ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from broker.garbage import lasting_put_away


class Lease:
    """Something that the collector knows of."""


@pytest.fixture(autouse=True)
def _no_other_collections() -> Iterator[None]:
    """But those that a test asks for; what the tests' own process has frozen is frozen again."""
    had = gc.get_freeze_count()
    gc.disable()
    yield
    gc.enable()
    if had:
        gc.freeze()


def test_what_lasted_through_a_long_collection_is_walked_no_more() -> None:
    """From the next one on: this one has walked it."""
    with lasting_put_away(long_s=0.0):
        leases = [Lease() for _ in range(100)]
        gc.collect(1)
        assert any(each is leases[0] for each in gc.get_objects())
        gc.collect()
        assert not any(isinstance(each, Lease) for each in gc.get_objects())
        gone = [weakref.ref(each) for each in leases]
        leases.clear()
        assert not any(each() for each in gone)


def test_what_lasted_through_a_short_one_is_walked_again() -> None:
    """So that circles of a day are found, as long as that costs nothing."""
    with lasting_put_away(long_s=60.0):
        before = gc.get_freeze_count()
        lease, other = Lease(), Lease()
        gc.collect()
        assert gc.get_freeze_count() <= before
        lease.other, other.other = other, lease  # type: ignore[attr-defined]
        gone = weakref.ref(lease)
        del lease, other
        gc.collect()
        assert gone() is None


def test_nothing_is_left_behind() -> None:
    """A node that is opened anew in the same process begins with all of it."""
    callbacks = list(gc.callbacks)
    with lasting_put_away():
        assert gc.get_freeze_count() > 0
        lease = Lease()
        lease.itself = lease  # type: ignore[attr-defined]
        gc.freeze()
        gone = weakref.ref(lease)
        del lease
        gc.collect()
        assert gone() is not None
    assert gc.callbacks == callbacks
    gc.collect()
    assert gone() is None
