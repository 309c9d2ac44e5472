"""`dledger group transfer` ends when the one that leads takes messages, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.local_group.status import GroupStatus, NodeView
from dledger_cli import transfer

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
    assert asyncio.run(transfer.transferred([AT], "n1")) == ("n1", True)
    assert len(said) == 1


def test_it_ends_when_the_leader_does_not_serve_in_time(
    said: list[GroupStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so: it leads."""
    monkeypatch.setattr(transfer, "SERVES_WITHIN_S", 0.2)
    said += group_that_serves(False)
    assert asyncio.run(transfer.transferred([AT], "n1")) == ("n1", False)
