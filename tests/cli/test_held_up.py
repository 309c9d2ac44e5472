"""What a command that waited for a member in vain says of it, beside its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.forming.replacing import Replaced
from broker.local_group.status import GroupStatus, NodeView
from dledger.credentials.tls import TlsMaterial
from dledger.wire.cluster_pb2 import Members, NodeHealth, NodeStatus
from dledger_cli import group, held_up, member
from tests.cli.called import command

WAITING = 3
HEALTHS = {
    "n1": NodeHealth(),
    "n2": NodeHealth(log_full=True),
    "n3": NodeHealth(apply_paused=True),
    "n4": NodeHealth(short_of_space=True),
}


def seen(names: Sequence[str]) -> GroupStatus:
    nodes = [
        NodeView.of(name, f"{name}:1", NodeStatus(node_id=name, role="x", health=HEALTHS[name]))
        for name in names
    ]
    return GroupStatus.of("orders", nodes)


@pytest.mark.parametrize("words", [("group", "replace", "n2"), ("member", "add", "n2", "n2:1")])
@pytest.mark.parametrize("names", [("n1",), ("n1", "n2"), tuple(HEALTHS)])
def test_full_disks_are_named_and_otherwise_the_doctor(
    names: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever's they are: the group may wait for the member's, or for another one's."""

    async def status(addresses: Sequence[str], tls: TlsMaterial | None) -> GroupStatus:
        return seen(names)

    async def waits(*_: object) -> object:
        await asyncio.sleep(0)
        return replaced if words[0] == "group" else (members, False)

    replaced, members = Replaced("n2", b"x" * 16, votes=False), Members(committed=True)
    monkeypatch.setattr(held_up, "group_status", status)
    monkeypatch.setattr(group, "_replace", waits)
    monkeypatch.setattr(member, "_change", waits)
    ended = command(*words, "--wait", "0", "--bootstrap", "n1:1")
    assert ended.returncode == WAITING
    full = [
        f"dledger: the disk of {name} is full: give it room, and it goes on by itself"
        for name in names[1:]
    ]
    assert ended.stderr.splitlines() == (
        full or ["dledger: `dledger group doctor` says what holds it up"]
    )
