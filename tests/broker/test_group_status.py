"""Who is a group's leader, by what answers at its members' addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.forming.errors import NoLeader, SeveralGroups
from broker.local_group import status
from broker.local_group.status import GroupStatus, group_status
from dledger.credentials.tls import TlsMaterial
from dledger.outcome import ExitCode
from dledger.wire.cluster_pb2 import MemberHealth, NodeHealth, NodeStatus, PeerStatus
from dledger_cli.group import _tell_status
from tests.scale import examples

AT = {f"n{number}": f"10.0.0.{number}:7001" for number in range(1, 4)}


def node(name: str, role: str, term: int, *, group: str = "orders", disk: str = "") -> NodeStatus:
    peers = [PeerStatus(node_id=each, address=at) for each, at in AT.items() if each != name]
    health = NodeHealth(disk_id=(disk or name).encode())
    return NodeStatus(
        broker_group=group, node_id=name, role=role, term=term, peers=peers, health=health
    )


def found(
    monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, NodeStatus], asked: Sequence[str]
) -> GroupStatus:
    async def ask(address: str, timeout_s: float = 0, tls: TlsMaterial | None = None) -> NodeStatus:
        if address in answers:
            return answers[address]
        code, none = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, none, none, "handshake failed", "")

    monkeypatch.setattr(status, "ask", ask)
    return asyncio.run(group_status(asked))


def test_who_has_heard_of_a_newer_epoch_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It serves nobody until it is started again, and looks like any other member."""
    answers = {at: node(each, "follower", 3) for each, at in AT.items()}
    answers[AT["n2"]].newer_epoch = 4
    told = found(monkeypatch, answers, [AT["n1"]])
    assert [(each.id, each.facts()["newer_epoch"]) for each in told.nodes] == [
        ("n1", 0),
        ("n2", 4),
        ("n3", 0),
    ]
    _tell_status(told, as_json=False)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "epoch" in each]
    assert line.startswith("n2 serves nobody until it is started again: ")


@pytest.mark.parametrize("was_told", [True, False])
def test_who_was_taken_out_and_runs_on_is_shown_as_no_member(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], was_told: bool
) -> None:
    """It stands for election for ever, and looks like a member that does; where nobody else answers
    its own word is all that there is."""
    answers = {at: node(each, "follower", 3) for each, at in AT.items()}
    for at, one in answers.items():
        removed = at == AT["n2"]
        one.commit_index = 7 if removed else 9
        one.role = "pre-candidate" if removed else one.role
        named = AT if removed and not was_told else ("n1", "n3")
        one.health.members.extend(MemberHealth(node_id=each, votes=True) for each in named)
    told = found(monkeypatch, answers, [AT["n2"]])
    assert [(each.id, each.is_gone) for each in told.nodes] == [
        ("n2", True),
        ("n1", False),
        ("n3", False),
    ]
    _tell_status(told, as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "n2 runs on, and is no member any more by the group's log. `dledger group doctor` says "
        "what to do"
    )
    alone = found(monkeypatch, {AT["n2"]: answers[AT["n2"]]}, [AT["n2"]])
    assert alone.nodes[0].is_gone is was_told
    waiting = {AT["n1"]: answers[AT["n1"]], AT["n2"]: node("n2", "unformed", 0)}
    assert not any(each.is_gone for each in found(monkeypatch, waiting, [AT["n1"]]).nodes)


def test_a_node_of_another_group_at_a_members_address_leads_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The member's machine is gone and its address another one's: an administrator's command would
    go to that group, as its term is the newer one."""
    answers = {
        AT["n1"]: node("n1", "follower", 3),
        AT["n2"]: node("n2", "leader", 3),
        AT["n3"]: node("n3", "leader", 99, group="billing"),
    }
    told = found(monkeypatch, answers, [AT["n1"]])
    assert told.leading().id == "n2"
    assert (told.group, told.term) == ("orders", 3)
    (stranger,) = [each for each in told.nodes if each.other_group]
    assert (stranger.id, stranger.role, stranger.other_group) == ("n3", "stranger", "billing")
    assert not told.answers_fully


def test_old_process_of_a_member_hides_it_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk was replaced and the old process goes on elsewhere: under its id the member wasn't
    asked, which leads."""
    members = [MemberHealth(node_id=each, disk_id=each.encode()) for each in AT]
    asked = node("n1", "follower", 3)
    asked.health.members.extend(members)
    answers = {
        AT["n1"]: asked,
        AT["n2"]: node("n2", "leader", 3),
        AT["n3"]: node("n3", "follower", 3),
        "10.0.0.9:7001": node("n2", "follower", 1, disk="old"),
    }
    for first in (["10.0.0.9:7001", AT["n1"]], [AT["n1"], "10.0.0.9:7001"]):
        told = found(monkeypatch, answers, first)
        assert told.leading().address == AT["n2"]
        assert sorted(each.id for each in told.nodes) == ["n1", "n2", "n2", "n3"]


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    where=st.dictionaries(
        st.sampled_from(sorted(AT.values())),
        st.builds(
            node,
            st.sampled_from(sorted(AT)),
            st.sampled_from(["leader", "follower", "unformed"]),
            st.integers(0, 3),
            group=st.sampled_from(["orders", "billing"]),
        ),
        min_size=1,
    ),
    data=st.data(),
)
def test_whoever_leads_is_of_the_group_that_was_named(
    monkeypatch: pytest.MonkeyPatch, where: dict[str, NodeStatus], data: st.DataObject
) -> None:
    """Whatever answers wherever, no leader is named that isn't of the group of the addresses that
    were given; if these are of two groups nobody is asked anything."""
    asked = data.draw(st.lists(st.sampled_from(sorted(where)), min_size=1, unique=True))
    groups = {where[at].broker_group for at in asked}
    if len(groups) > 1:
        with pytest.raises(SeveralGroups) as several:
            found(monkeypatch, where, asked)
        assert several.value.exit_code is ExitCode.USAGE
        return
    told = found(monkeypatch, where, asked)
    leaders = [each for each in where.values() if each.role == "leader"]
    own = [each for each in leaders if {each.broker_group} == groups]
    assert (told.leader is None) or any(each.node_id == told.leader for each in own)
    if told.leader is None:
        with pytest.raises(NoLeader):
            told.leading()
    else:
        answering = where[told.leading().address]
        assert ({answering.broker_group}, answering.role) == (groups, "leader")


def test_a_node_with_two_names_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it, on another disk, isn't it."""
    one = node("n1", "leader", 3)
    told = found(monkeypatch, {AT["n1"]: one, "db1:7001": one}, [AT["n1"], "db1:7001"])
    assert [each.id for each in told.nodes if each.alive] == ["n1"]
    copy = node("n1", "follower", 3, disk="another")
    told = found(monkeypatch, {AT["n1"]: one, "db1:7001": copy}, [AT["n1"], "db1:7001"])
    assert [each.id for each in told.nodes if each.alive] == ["n1", "n1"]


def test_where_nobody_answers_nothing_is_said_of_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """But why the first one is silent; where somebody answers it is a leader that is missing."""
    told = found(monkeypatch, {}, [AT["n1"], AT["n2"]])
    reason = f"no node answers ({AT['n1']}: unavailable: handshake failed)"
    with pytest.raises(NoLeader) as nobody:
        told.leading()
    assert (str(nobody.value), nobody.value.exit_code) == (reason, ExitCode.UNREACHABLE)
    told = found(monkeypatch, {AT["n2"]: node("n2", "follower", 3)}, [AT["n1"], AT["n2"]])
    with pytest.raises(NoLeader, match="no node says that it leads"):
        told.leading()
