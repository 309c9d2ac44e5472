"""What a strategy of one's own is written with: who is to have which queue of a consumer group.

A package brings one by the entry point group *dledger.strategies*, installed beside every node: a
function that is given a `Share` and answers with the session of each queue that is to have one. It
is called on the leader's event loop at each change of members or queues, so it is short, keeps
nothing, and says the same for the same `Share`, whichever node leads. docs/consumers.md has one.
"""

from __future__ import annotations

from broker.leader.groups.strategies import Given, Member, QueueName, Share, Strategy

__all__ = ["Given", "Member", "QueueName", "Share", "Strategy"]
