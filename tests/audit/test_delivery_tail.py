"""Who knows whether a log's end is the end: a leader that is ready, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.delivery.tail import open_tail
from audit.engines.engine import LocalEngine
from audit.reading.leading import leader_among
from audit.reading.live import replicas_of_group
from audit.reading.replica import Replica, Seat
from dledger.reading.survey import Position
from dledger.wire.cluster_pb2 import MemberHealth, NodeHealth, NodeStatus
from tests.audit.test_delivery import log_of, lose_the_tail, told, written
from tests.chaos.histories import Story

THREE = (frozenset(("n1", "n2", "n3")),)
AT_100 = Position(100, 0, 3, 1)
SILENT = Replica("n1", "/n1")


def led(name: str, term: int = 2, voters: tuple[frozenset[str], ...] = THREE) -> Replica:
    """The node leads, and is ready."""
    return Replica(name, f"/{name}", position=AT_100, seat=Seat(term, serves=True, voters=voters))


def following(name: str, term: int = 2) -> Replica:
    return Replica(name, f"/{name}", position=AT_100, seat=Seat(term, voters=THREE))


@pytest.mark.parametrize(
    ("replicas", "leader"),
    [
        ([SILENT, following("n2"), led("n3")], "n3"),
        ([led("n1"), following("n2", 1), replace(SILENT, id="n3")], "n1"),
        ([SILENT, following("n2"), following("n3")], None),  # the leader was killed
        ([following("n1"), following("n2"), following("n3")], None),  # all were, and are back
        ([led("n1"), replace(SILENT, id="n2"), replace(SILENT, id="n3")], None),
        ([led("n1"), following("n2", 3), following("n3", 3)], None),  # it was deposed
        ([led("n1"), led("n2", 3), following("n3", 3)], "n2"),
        ([led("n1"), following("o1"), following("o2")], None),  # observers
        ([led("n1"), replace(following("n2"), standing="another log")], None),
        ([led("n1"), replace(following("n2"), is_member=False)], None),
        ([replace(led("n1"), standing="another log"), following("n2"), following("n3")], None),
        ([led("n1", voters=(*THREE, frozenset(("n4", "n5")))), following("n2")], None),
        ([led("n1", voters=(*THREE, frozenset(("n1",)))), following("n2")], "n1"),
        ([led("n1", voters=()), following("n2"), SILENT], "n1"),  # an older release
        ([led("n1", voters=()), replace(SILENT, id="n2")], None),
    ],
)
def test_a_leader_is_believed_with_a_majority_of_those_that_vote(
    replicas: list[Replica], leader: str | None
) -> None:
    """In the newest term that any of them knows."""
    found = leader_among(replicas)
    assert (found.id if found else None) == leader


def test_a_log_that_is_behind_the_leaders_is_open() -> None:
    """The leader's own can't be read, as it lies on another machine."""
    replicas = [led("n1"), following("n2"), following("n3")]
    assert open_tail(replicas, 100) == ""
    assert "n1 leads, and is committed up to byte 100" in open_tail(replicas, 99)


@pytest.mark.parametrize("answers", [True, False])
def test_only_a_leader_knows_that_the_tail_is_lost(tmp_path: Path, *, answers: bool) -> None:
    """Two of three say where the log ends. Without a leader among them, the one that is gone may
    have committed more, and acknowledged it."""
    story = Story()
    lose_the_tail(story)
    first = log_of(tmp_path, "a")
    second = replace(first, id="n2", seat=Seat(1, voters=THREE))
    first = replace(first, seat=Seat(1, serves=answers, voters=THREE))
    replicas = [first, second, Replica("n3", "/n3")]
    report = audit_delivery(replicas, [written(tmp_path, story)], LocalEngine())
    kind, code = ("lost", 1) if answers else ("undecided", 3)
    assert (told(report), int(report.exit_code)) == ([(kind, 1, "b")], code)
    assert any("no leader that is ready" in note for note in report.notes) != answers


def test_nodes_say_where_they_sit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who votes, by its log; of a joint configuration both."""
    members = [
        MemberHealth(node_id="n1", votes=True, votes_until_left=True),
        MemberHealth(node_id="n2", votes_until_left=True),
        MemberHealth(node_id="o1", observes=True),
    ]

    def answer(address: str) -> NodeStatus:
        return NodeStatus(
            broker_group="g",
            node_id=address,
            term=7,
            serving=address == "n1",
            data_directory=f"/nowhere/{address}",
            health=NodeHealth(members=members),
        )

    monkeypatch.setattr("audit.reading.live._ask", answer)
    one, other = replicas_of_group(["n1", "n2"], on_hosts=False)[:2]
    voters = (frozenset(("n1",)), frozenset(("n1", "n2")))
    assert (one.seat, other.seat) == (Seat(7, serves=True, voters=voters), Seat(7, voters=voters))
