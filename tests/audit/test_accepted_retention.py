"""What `--accept-retention` lets pass, and what it doesn't: who was compared with nobody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from audit.engines.engine import LocalEngine
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Position
from tests.audit.replicas import (
    BLOCK,
    SEGMENT,
    LogBuilder,
    build,
    copy_sparse,
    dropping,
    on_own_disk,
    start_of,
    usual_entries,
)
from tests.audit.test_beginnings import Dropping

ACCEPTS = Options(block_size=BLOCK, derived=False, accept_retention=True)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> LogBuilder:
    return build(tmp_path_factory.mktemp("long") / "data", usual_entries(160))


def copies(long: LogBuilder, root: Path, names: tuple[str, ...]) -> dict[str, Path]:
    for name in names:
        shutil.copytree(long.path, root / name, copy_function=copy_sparse)
        on_own_disk(root / name, name)
    return {name: root / name for name in names}


def said_at(long: LogBuilder, count: int) -> Position:
    """By a node that has committed so many entries."""
    last = long.headers[count - 1]
    return Position(last.physical_offset + last.total_size, last.digest, last.index, 1)


def start_behind(long: LogBuilder, segments: int) -> LogStart:
    return start_of(
        long.path,
        next(each.index for each in long.headers if each.physical_offset == segments * SEGMENT),
    )


def compared(report: Report) -> Mapping[str, int]:
    return {each.replica: each.compared_bytes for each in report.coverage}


@pytest.mark.parametrize("names", [("n1", "n2", "n3"), ("n1", "n2")])
def test_who_is_behind_where_the_others_begin_was_compared_with_nobody(
    long: LogBuilder, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """It waits for a snapshot: the front that the others let go is all it has."""
    paths = copies(long, tmp_path, names)
    for name in names[1:]:
        for _ in dropping(paths[name], start_behind(long, 2)):
            pass
    positions = dict.fromkeys(names, said_at(long, len(long.headers)))
    positions["n1"] = said_at(long, 20)
    assert positions["n1"].committed < SEGMENT
    replicas = [Replica(name, str(paths[name]), position=positions[name]) for name in names]
    report = audit_replicas(replicas, LocalEngine(), ACCEPTS).report
    assert report.exit_code is ExitCode.INCOMPLETE
    alone = {name for name, size in compared(report).items() if not size}
    assert "n1" in alone
    assert {(each.cause, *each.replicas) for each in report.findings} == {
        (Cause.ALONE, name) for name in alone
    }


def test_scope_begins_where_two_hold_the_log_by_the_end(long: LogBuilder, tmp_path: Path) -> None:
    """Two of three let their first segment go before it is hashed: nobody was compared with n1
    there, and the verdict doesn't speak of it."""
    names = ("n1", "n2", "n3")
    paths, position = copies(long, tmp_path, names), said_at(long, len(long.headers))
    start = start_behind(long, 1)

    def both() -> Iterator[None]:
        for name in names[1:]:
            yield from dropping(paths[name], start)

    replicas = [Replica(name, str(paths[name]), position=position) for name in names]
    engine = Dropping(both(), [len(names)] * 20)  # when all were surveyed
    report = audit_replicas(replicas, engine, ACCEPTS).report
    assert (report.verdict, report.scope.start) == (Verdict.IDENTICAL, SEGMENT)


def test_who_begins_later_and_was_compared_is_let_be(long: LogBuilder, tmp_path: Path) -> None:
    """Though its start note says nothing any more."""
    names = ("n1", "n2")
    paths, position = copies(long, tmp_path, names), said_at(long, len(long.headers))
    for _ in dropping(paths["n2"], start_behind(long, 1)):
        pass
    (paths["n2"] / "log_start").unlink()
    replicas = [Replica(name, str(paths[name]), position=position) for name in names]
    report = audit_replicas(replicas, LocalEngine(), ACCEPTS).report
    assert (report.verdict, report.scope.start) == (Verdict.IDENTICAL, SEGMENT)
    strict = replace(ACCEPTS, accept_retention=False)
    found = audit_replicas(replicas, LocalEngine(), strict).report.findings
    assert {each.cause for each in found} == {Cause.RETAINED_LATER}
