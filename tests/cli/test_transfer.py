"""`dledger group transfer` ends when the one that leads takes messages, and not for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from broker.local_group.status import GroupStatus, NodeView
from dledger_cli import transfer
from dledger_cli.app import app
from dledger_cli.transfer import Transferred

AT = "127.0.0.1:7001"


def group_that_serves(*looks: bool) -> list[GroupStatus]:
    """What a group says that serves or doesn't, each time that it is asked."""
    nodes = [
        NodeView("n1", AT, alive=True, role="leader", term=3, serving=serves) for serves in looks
    ]
    return [GroupStatus.of("g", [node]) for node in nodes]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[GroupStatus]:
    """What the group is going to say; the last of it again and again."""
    still: list[GroupStatus] = []

    async def handed_over(addresses: Sequence[str], target: str) -> str:
        return target

    async def group_status(addresses: Sequence[str], tls: object) -> GroupStatus:
        return still.pop(0) if len(still) > 1 else still[0]

    monkeypatch.setattr(transfer, "_handed_over", handed_over)
    monkeypatch.setattr(transfer, "group_status", group_status)
    return still


def test_it_ends_when_the_leader_serves(said: list[GroupStatus]) -> None:
    """Who won an election doesn't at once: an entry of its term is to be committed."""
    said += group_that_serves(False, False, True)
    assert asyncio.run(transfer.transferred([AT], "n1")) == Transferred("n1", "n1", serves=True)
    assert len(said) == 1


def test_it_ends_when_the_leader_does_not_serve_in_time(
    said: list[GroupStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so: it leads."""
    monkeypatch.setattr(transfer, "SERVES_WITHIN_S", 0.2)
    said += group_that_serves(False)
    done = asyncio.run(transfer.transferred([AT], "n1"))
    assert done == Transferred("n1", "n1", serves=False)
    assert done.complaint == "n1 leads, and doesn't take messages yet: ask dledger group status"


def test_it_tells_of_another_one_that_leads_by_then(said: list[GroupStatus]) -> None:
    """n1 served, after n2 had been elected: that isn't what n2 does."""
    said += group_that_serves(False, True)
    done = asyncio.run(transfer.transferred([AT], "n2"))
    assert done == Transferred("n2", "n1", serves=True)
    assert done.complaint == "n2 was elected, and by now it is n1 that leads"


def test_the_command_prints_who_leads_by_then(said: list[GroupStatus]) -> None:
    """And ends with 0, as leadership was handed over."""
    said += group_that_serves(True)
    asked = ["group", "transfer", "n2", "--bootstrap", AT]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stdout) == (0, "n1 leads\n")
    assert result.stderr == "dledger: n2 was elected, and by now it is n1 that leads\n"
    result = CliRunner().invoke(app, [*asked, "--json"])
    assert json.loads(result.stdout) == {"leader": "n1"}


def test_it_tells_that_nobody_leads_any_more(
    said: list[GroupStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was elected is gone again."""
    monkeypatch.setattr(transfer, "SERVES_WITHIN_S", 0.0)
    said.append(GroupStatus.of("g", [NodeView("n1", AT, alive=True, role="follower", term=3)]))
    done = asyncio.run(transfer.transferred([AT], "n2"))
    assert done.leader is None
    assert done.complaint.startswith("n2 was elected, and nobody leads by now: ")
