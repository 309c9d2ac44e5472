"""Whose log names whose disk: who starts, and who was replaced (ADR 22, ADR 41)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dledger.core.types import Configuration, DiskId, Index, LogSummary, NodeId, Term, TermRun
from store.directory import DirectoryState
from store.starting.errors import DiskReplaced
from store.starting.opening import check_own_disk

N1, N2 = NodeId("n1"), NodeId("n2")
OWN, OTHER = DiskId(b"o" * 16), DiskId(b"x" * 16)


def group(**disks: DiskId) -> Configuration:
    named = tuple(sorted((NodeId(name), disk) for name, disk in disks.items()))
    return Configuration(frozenset(name for name, _ in named), disks=named)


def start(*configurations: Configuration) -> None:
    """The start of n1 on its own disk, with these in its log."""
    directory: Any = SimpleNamespace(
        path=Path("/data"),
        identity=SimpleNamespace(node_id="n1"),
        disk=SimpleNamespace(state=DirectoryState.FORMED, disk_id=OWN),
    )
    log = LogSummary(
        Index(len(configurations)),
        (TermRun(Index(1), Term(1)),),
        tuple((Index(at), each) for at, each in enumerate(configurations, start=1)),
    )
    check_own_disk(directory, log, Configuration(frozenset({N2})), None)


def test_whoever_is_named_starts() -> None:
    start(group(n1=OWN, n2=OTHER))


def test_whoever_was_taken_out_starts() -> None:
    """The entry that says so may be cut off yet, and the group may need its vote until then."""
    start(group(n1=OWN, n2=OTHER), group(n2=OTHER))


def test_whose_disk_was_replaced_does_not() -> None:
    with pytest.raises(DiskReplaced):
        start(group(n1=OWN), group(n1=OTHER))


def test_who_was_never_named_does_not() -> None:
    with pytest.raises(DiskReplaced):
        start(group(n2=OTHER))
