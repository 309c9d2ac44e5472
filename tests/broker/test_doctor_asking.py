"""The doctor's asking: what members say of others is taken up, and bounded; who answers is known by
more than its id, and nothing depends on who is asked first."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest

from broker.doctor import asking
from broker.doctor.finding import Kind
from broker.doctor.judging import judge
from dledger.wire.cluster_pb2 import (
    MemberHealth,
    NodeHealth,
    NodeStatus,
    PeerStatus,
    SpaceHealth,
)


@pytest.mark.parametrize("given", [1, asking.MAX_ADDRESSES, asking.MAX_ADDRESSES + 6])
def test_member_that_names_ever_new_peers_is_not_followed_for_ever(
    given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many addresses were named to begin with."""
    asked: list[str] = []
    numbers = itertools.count()

    async def ask(address: str, *, tls: None) -> NodeStatus:
        asked.append(address)
        assert len(asked) < 10 * asking.MAX_ADDRESSES, "it goes on"
        peers = [PeerStatus(node_id=f"p{at}", address=f"h{at}:1") for at in range(2)]
        new = [PeerStatus(node_id=f"q{at}", address=f"q{at}:1") for at in [next(numbers)]]
        return NodeStatus(node_id=address, broker_group="g", peers=peers + new)

    monkeypatch.setattr(asking, "ask", ask)
    monkeypatch.setattr(asking, "PAUSE_S", 0.0)
    monkeypatch.setattr(asking, "LOOKS", 2)
    facts = asyncio.run(asking.ask_group([f"n{at}:1" for at in range(given)], None))
    assert len(facts.members) >= given
    assert len(asked) <= 4 * max(given, asking.MAX_ADDRESSES)


# --- who is who -----------------------------------------------------------------------------------

MEMBERS = ("n1", "n2", "n3")


def at(name: str) -> str:
    return f"h{name}:1"


def status(name: str, group: str = "g", *, leads: bool = False, commit: int = 100) -> NodeStatus:
    """What a member says of itself when it is well."""
    health = NodeHealth(
        disk_id=f"{group}{name}".encode(),
        members=[
            MemberHealth(node_id=each, votes=True, disk_id=f"{group}{each}".encode())
            for each in MEMBERS
        ],
        space=SpaceHealth(free_bytes=1 << 40),
    )
    peers = [
        PeerStatus(
            node_id=each,
            address=at(each),
            connected=True,
            state="replicate" if leads else "",
            match_index=commit,
            recently_active=True,
        )
        for each in MEMBERS
        if each != name
    ]
    return NodeStatus(
        broker_group=group,
        node_id=name,
        role="leader" if leads else "follower",
        term=5,
        last_index=commit,
        commit_index=commit,
        applied_index=commit,
        committed_digest=7,
        serving=leads,
        segment_size_bytes=1 << 20,
        data_directory="/data",
        peers=peers,
        health=health,
    )


Answers = dict[str, NodeStatus | None]  # by address; None: it is silent


def well() -> Answers:
    return {at(each): status(each, leads=each == "n1") for each in MEMBERS}


def changed(answer: NodeStatus, **changes: object) -> NodeStatus:
    copy = NodeStatus()
    copy.CopyFrom(answer)
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


def clone(name: str, disk: bytes, **changes: object) -> NodeStatus:
    copy = changed(status(name), **changes)
    copy.health.disk_id = disk
    return copy


def contradicted(name: str) -> NodeStatus:
    """Long ago: its counter doesn't move."""
    copy = status(name)
    copy.health.contradictions = 3
    return copy


# What the doctor must say of each, whatever is asked first.
STRANGE: dict[str, tuple[Answers, set[Kind]]] = {
    "well": (well(), set()),
    "one node at two addresses": ({**well(), "admin:2": status("n2")}, set()),
    "another group's n1, leading": (
        {**well(), "x:1": status("n1", "other", leads=True)},
        {Kind.OTHER_GROUP},
    ),
    "another group far ahead": (
        {**well(), "x:1": status("n2", "other", commit=10**15)},
        {Kind.OTHER_GROUP},
    ),
    "silent behind another group's n2": (
        {**well(), at("n2"): None, "x:1": status("n2", "other")},
        {Kind.OTHER_GROUP, Kind.UNREACHABLE, Kind.NO_MARGIN},
    ),
    "another member where n2 should be": (
        {**well(), at("n2"): status("n3")},
        {Kind.UNREACHABLE, Kind.NO_MARGIN},
    ),
    "clone on another disk": (
        {**well(), "x:1": clone("n2", b"copy")},
        {Kind.SAME_ID, Kind.OTHER_DISK},
    ),
    "clone far ahead": (
        {**well(), "x:1": clone("n2", b"copy", commit_index=10**9, last_index=10**9)},
        {Kind.SAME_ID, Kind.OTHER_DISK},
    ),
    "clone of the disk in another directory": (
        {**well(), "x:1": changed(status("n2"), data_directory="/copy")},
        {Kind.SAME_ID},
    ),
    "clone of the disk that has committed something else": (
        {**well(), "x:1": changed(status("n2"), committed_digest=8)},
        {Kind.SAME_ID, Kind.REPLICAS_DIFFER},
    ),
    "clone that leads": (
        {**well(), "x:1": clone("n2", b"copy", role="leader", serving=True)},
        {Kind.TWO_LEADERS, Kind.SAME_ID, Kind.OTHER_DISK},
    ),
    "committed beyond its log": (
        {**well(), at("n3"): changed(status("n3"), commit_index=500)},
        {Kind.IMPOSSIBLE},
    ),
    "contradicted until somebody was replaced": ({**well(), at("n2"): contradicted("n2")}, set()),
    "alone at a newer term": (
        {**well(), at("n3"): changed(status("n3"), role="candidate", term=9)},
        set(),
    ),
}


@pytest.mark.parametrize("what", STRANGE)
def test_order_of_addresses_never_changes_the_verdict(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or only some of them named and the others learned."""
    answers, expected = STRANGE[what]

    async def ask(address: str, *, tls: None) -> NodeStatus:
        answer = answers[address]
        if answer is None:
            code, none = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, none, none, "connection refused", "")
        return answer

    monkeypatch.setattr(asking, "ask", ask)
    monkeypatch.setattr(asking, "PAUSE_S", 0.0)
    strangers = [each for each in answers if each not in well()]
    for named in (list(answers), [at("n1"), at("n3"), *strangers]):
        verdicts = [
            judge(asyncio.run(asking.ask_group(order, None)))
            for order in itertools.permutations(named)
        ]
        assert {each.kind for each in verdicts[0]} == expected
        assert all(each == verdicts[0] for each in verdicts)


@pytest.mark.parametrize("said", ["failed to connect to all addresses", "x" * 10_000])
def test_reason_of_a_silence_is_told_to_its_end(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runbook goes by it: *refused*, *deadline exceeded*, a certificate. It is in a line, and
    bounded."""

    async def ask(address: str, *, tls: None) -> NodeStatus:
        if address != at("n2"):
            return well()[address] or NodeStatus()
        code, none = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        where = "ipv6:%5B2001:db8:0:1:2:3:4:5%5D:7001"
        details = (
            f"{said}; last error:\nUNKNOWN: {where}: Failed to connect to remote host: "
            "Connection refused"
        )
        raise grpc.aio.AioRpcError(code, none, none, details, "")

    monkeypatch.setattr(asking, "ask", ask)
    monkeypatch.setattr(asking, "PAUSE_S", 0.0)
    (finding,) = [
        each
        for each in judge(asyncio.run(asking.ask_group(list(well()), None)))
        if each.kind is Kind.UNREACHABLE
    ]
    assert finding.detail.endswith("remote host: Connection refused")
    assert "unavailable: " in finding.detail
    assert "\n" not in finding.detail
    assert len(finding.detail) < 300


def test_what_a_member_contradicted_long_ago_is_no_news_where_it_missed_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was silent for the second of the first look: nothing is known of what it had counted."""
    asked: list[str] = []

    async def ask(address: str, *, tls: None) -> NodeStatus:
        asked.append(address)
        if address == at("n2") and asked.count(address) > 1:
            return contradicted("n2")
        answer = None if address == at("n2") else well()[address]
        if answer is None:
            code, none = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, none, none, "", "")
        return answer

    monkeypatch.setattr(asking, "ask", ask)
    monkeypatch.setattr(asking, "PAUSE_S", 0.0)
    assert judge(asyncio.run(asking.ask_group(list(well()), None))) == ()
