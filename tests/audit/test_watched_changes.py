"""Any one change between two rounds of a watch gets the verdict of an audit that reads everything.

Or it lies in what the verdict's scope says was believed: then a round that is past the period finds
it. The replicas, the changes and `$AUDIT_DRAWS` are those of `tests.audit.test_any_change`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from audit.proof.findings import Verdict
from audit.reading.replica import Replica
from tests.audit.changes import Change, Kind, Map, apply, copied
from tests.audit.simulated_group import group_plan, make_group
from tests.audit.test_any_change import DRAWS, changes, drawn, said
from tests.audit.test_keeping import (
    PERIOD_S,
    Watching,
    an_hour_later,
    believed_segments,
    found,
    frozen_stamps,
    full,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Healthy replicas, and where changed copies go."""

    replicas: dict[str, Path]
    known: Map
    scratch: Path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Of nodes that were stopped."""
    root = tmp_path_factory.mktemp("stopped")
    replicas = make_group(root, group_plan())
    return Group(replicas, Map(replicas["n2"]), root)


@dataclass(frozen=True, slots=True)
class Watched:
    """A watch that has seen healthy replicas, one of which may be changed."""

    watching: Watching
    replicas: list[Replica]
    target: Path


def watched(group: Group, folder: Path, *, frozen: bool = False) -> Watched:
    target = copied(group.replicas["n2"], folder / "n2")
    replicas = [Replica(n, str(p)) for n, p in {**group.replicas, "n2": target}.items()]
    stamper = frozen_stamps() if frozen else an_hour_later
    watching = Watching(folder / "audits", stamper=stamper)
    assert watching.round(replicas).verdict is Verdict.IDENTICAL
    return Watched(watching, replicas, target)


@pytest.fixture
def folder(stopped: Group) -> Iterator[Path]:
    """For one draw."""
    with tempfile.TemporaryDirectory(dir=stopped.scratch) as made:
        yield Path(made)


def test_watch_says_what_an_audit_would(stopped: Group) -> None:
    """Verdict, causes, and who has them."""

    @drawn(max_examples=DRAWS or 3)
    @given(changes(list(Kind)), st.booleans())
    def holds(change: Change, again: bool) -> None:
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as made:
            it = watched(stopped, Path(made))
            if again:
                assert believed_segments(it.watching.round(it.replicas)) > 0
            apply(change, stopped.known, it.target)
            report, whole = it.watching.round(it.replicas), full(it.replicas)
            it.watching.store.close()
        note(said(report))
        note(said(whole))
        assert report.verdict is whole.verdict
        assert found(report) == found(whole)

    holds()


def test_change_that_no_stamp_tells_lies_in_what_is_believed(stopped: Group) -> None:
    """And no longer than the period: rot below the file system."""

    @drawn(max_examples=DRAWS or 3)
    @given(changes([Kind.FLIP, Kind.ZERO, Kind.SWAP_RANGES]))
    @example(Change(Kind.FLIP, file=400, at=3269, bit=7))  # A start reads what is believed.
    def holds(change: Change) -> None:
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as made:
            it = watched(stopped, Path(made), frozen=True)
            apply(change, stopped.known, it.target)
            report, whole = it.watching.round(it.replicas), full(it.replicas)
            it.watching.now += PERIOD_S
            late = it.watching.round(it.replicas)
            it.watching.store.close()
        note(said(report))
        note(said(whole))
        assert report.verdict in (whole.verdict, Verdict.IDENTICAL)
        if report.verdict is not whole.verdict:
            assert report.scope.believed is not None
        assert late.scope.believed is None
        assert (late.verdict, found(late)) == (whole.verdict, found(whole))

    holds()


def test_start_that_meets_what_is_believed_has_it_read_again(stopped: Group) -> None:
    """A start that is refused has read the log, perhaps where a kept result says that all is well:
    what is wrong there is named, as by an audit that reads everything."""
    refused = 0
    for segment in stopped.known.segments[::2]:
        with tempfile.TemporaryDirectory(dir=stopped.scratch) as made:
            it = watched(stopped, Path(made), frozen=True)
            assert believed_segments(it.watching.round(it.replicas)) > 0
            rotten = it.target / segment
            content = bytearray(rotten.read_bytes())
            content[stopped.known.log_bytes(segment) // 2] ^= 1
            rotten.write_bytes(content)
            report, whole = it.watching.round(it.replicas), full(it.replicas)
            it.watching.store.close()
        if report.verdict is Verdict.IDENTICAL:
            assert report.scope.believed is not None, segment
        else:
            assert found(report) == found(whole), segment
            refused += 1
    assert refused
