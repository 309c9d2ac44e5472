"""A topic that is deleted while its replicas are audited: no queue of it is missed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from audit.engines.engine import Engine, LocalEngine
from audit.proof.findings import Cause, Verdict
from audit.proof.reading import read_chains
from audit.reading.replica import Replica
from dledger.reading.entry import EntryKind
from dledger.reading.survey import Position
from dledger.wire.commands_pb2 import Command, DeleteTopicCommand
from tests.audit.replicas import Entry, LogBuilder, ReplicaSet, build, usual_entries
from tests.audit.test_scope import NAMES, audit, found, zero_units

AUDITED = 40  # entries


def deletion(name: str, incarnation: int = 1) -> Entry:
    body = Command(delete_topic=DeleteTopicCommand(name=name, incarnation=incarnation))
    return Entry(4, EntryKind.COMMAND, body=body.SerializeToString())


def running(builder: LogBuilder, three: ReplicaSet) -> list[Replica]:
    """Nodes that said that they are committed up to entry `AUDITED`."""
    last = builder.headers[AUDITED - 1]
    end = builder.headers[AUDITED].physical_offset
    position = Position(end, last.digest, last.index, 1)
    return [replace(each, position=position) for each in three.replicas]


def group(tmp_path: Path, later: Sequence[Entry]) -> tuple[ReplicaSet, list[Replica]]:
    """Nodes that run; `later` came behind what they said to be committed."""
    builder = build(tmp_path / "made", [*usual_entries(AUDITED), *later])
    three = ReplicaSet(tmp_path, builder)
    return three, running(builder, three)


def remove(three: ReplicaSet, name: str, folder: str = "orders@1") -> None:
    """The topic's folder is put aside, as the node that applies its deletion does."""
    queues = three.paths[name] / "consumequeue"
    (queues / folder).rename(queues / ".deleted-1")
    shutil.rmtree(queues / ".deleted-1")


MORE = (Entry(4, topic="events", count=2), Entry(4, EntryKind.NOOP))
FULL = tuple(Entry(4, topic="events", count=2, size=3000) for _ in range(6))  # a segment and more


@pytest.mark.parametrize("between", [(), MORE, FULL], ids=["next", "later", "in the next segment"])
@pytest.mark.parametrize("incarnation", [1, 0], ids=["by incarnation", "by an older release"])
def test_topic_deleted_behind_what_is_audited_is_no_fault(
    tmp_path: Path, between: Sequence[Entry], incarnation: int, engine: Engine
) -> None:
    """Nodes apply it while they are read: the folder goes at once. A note tells it."""
    three, replicas = group(tmp_path, [*between, deletion("orders", incarnation), *MORE])
    for name in NAMES[:2]:  # The third hasn't applied it yet.
        remove(three, name)
    report = audit(replicas, engine)
    assert (report.verdict, found(report)) == (Verdict.IDENTICAL, set())
    notes = [each for each in report.notes if "deleted" in each]
    assert [each.partition(":")[0] for each in notes] == ["n1", "n2"]
    assert all("'orders@1'" in each for each in notes)


def test_topic_deleted_while_its_queues_are_read_is_no_fault(tmp_path: Path) -> None:
    """Behind the first segments, whose units were still there."""
    three, replicas = group(tmp_path, [deletion("orders")])

    class Deleting(LocalEngine):
        """Applies the deletion as soon as one segment is read."""

        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            if work is not read_chains:
                return super().run(work, tasks, progress)
            results = super().run(work, tasks[:1], progress)
            for name in NAMES:
                remove(three, name)
            return results + super().run(work, tasks[1:], progress)

    assert audit(replicas, Deleting(processes=1)).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    "later",
    [
        MORE,
        (deletion("orders", 7),),
        (deletion("events"),),
        (deletion("order"),),
    ],
    ids=["none", "of another incarnation", "of another topic", "of another name"],
)
def test_queues_that_vanish_without_their_deletion_are_missed(
    tmp_path: Path, later: Sequence[Entry]
) -> None:
    """Whatever else was deleted."""
    three, replicas = group(tmp_path, later)
    remove(three, "n2")
    assert found(audit(replicas)) == {(Cause.QUEUE_MISSING, ("n2",))}


def test_units_missing_in_a_folder_that_is_there_are_missed(tmp_path: Path) -> None:
    """A deletion takes the folder as one: what lacks units in a folder lacks them."""
    three, replicas = group(tmp_path, [deletion("orders")])
    zero_units(three.paths["n3"], "orders@1/0", 0, 4)
    assert found(audit(replicas)) == {(Cause.QUEUE_MISSING, ("n3",))}


def test_a_damaged_deletion_excuses_nothing(tmp_path: Path) -> None:
    """Nor what lies behind it."""
    three, replicas = group(tmp_path, [deletion("orders")])
    remove(three, "n1")
    at = three.headers[AUDITED]
    assert at.kind == EntryKind.COMMAND
    three.flip("n1", at.physical_offset + at.total_size - 1)
    assert found(audit(replicas)) == {(Cause.QUEUE_MISSING, ("n1",))}


def test_other_queues_are_missed_beside_a_deleted_topics(tmp_path: Path) -> None:
    """Only what was deleted is excused."""
    three, replicas = group(tmp_path, [deletion("orders")])
    remove(three, "n1")
    remove(three, "n1", "events@1")
    report = audit(replicas)
    assert found(report) == {(Cause.QUEUE_MISSING, ("n1",))}
    assert all("events@1/" in each.detail for each in report.findings)
