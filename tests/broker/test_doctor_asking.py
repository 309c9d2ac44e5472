"""The doctor's asking: what members say of others is taken up, and bounded."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.doctor import asking
from dledger.wire.cluster_pb2 import NodeStatus, PeerStatus


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
