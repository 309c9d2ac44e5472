"""Errors of the Raft core.

CoreError
├── ProposalRefused        nothing was appended; `retriable` says where to go next
│   ├── NotLeader          another node leads, or none is known
│   ├── TooMuchUncommitted the cap on uncommitted bytes is reached: retry here, later
│   ├── TargetUnfit        whom leadership was to be handed to can't take it now
│   └── TransferInProgress leadership is being handed over: retry, likely elsewhere
├── ReadRefused            a linearizable read can't start here now
├── UnknownEntry           the log holds no such entry
├── MessageRefused         a peer said what can't be: nothing changed, end its stream
│   └── Contradiction      or what can't be beside what is settled here: raise the alarm as well
└── InvariantViolation     our own fault: stop the node, never continue
"""

from __future__ import annotations

from dledger.core.types import Index, NodeId


class CoreError(Exception):
    """Root of the core's errors."""


class ProposalRefused(CoreError):
    """The proposal was not appended: it did not happen."""


class NotLeader(ProposalRefused):
    """This node does not lead. `leader` is whom it believes to lead, if anyone."""

    def __init__(self, leader: NodeId | None) -> None:
        super().__init__(f"not the leader; leader is {leader or 'unknown'}")
        self.leader = leader


class TooMuchUncommitted(ProposalRefused):
    """The uncommitted bytes have reached their cap."""

    def __init__(self, uncommitted_bytes: int, limit: int) -> None:
        super().__init__(f"{uncommitted_bytes} bytes are uncommitted, the limit is {limit}")
        self.uncommitted_bytes = uncommitted_bytes
        self.limit = limit


class TargetUnfit(ProposalRefused):
    """`target` votes, and couldn't lead now; nothing was fenced."""

    def __init__(self, target: NodeId, reason: str) -> None:
        super().__init__(f"{target} {reason}")
        self.target = target


class TransferInProgress(ProposalRefused):
    """Leadership is on its way to `target`; proposals are fenced until it ends."""

    def __init__(self, target: NodeId) -> None:
        super().__init__(f"leadership is being transferred to {target}")
        self.target = target


class ReadRefused(CoreError):
    """A linearizable read can't be served: not the leader, no entry of its term committed, or what
    is committed can't be applied."""

    def __init__(self, reason: str, leader: NodeId | None) -> None:
        super().__init__(reason)
        self.leader = leader


class UnknownEntry(CoreError):
    """The log doesn't hold entry `index`."""

    def __init__(self, index: Index, last_index: Index) -> None:
        super().__init__(f"entry {index} is not in the log [1, {last_index}]")
        self.index = index
        self.last_index = last_index


class MessageRefused(CoreError):
    """No working peer says this; nothing has changed. `peer` is who said it."""

    def __init__(self, peer: NodeId, reason: str) -> None:
        super().__init__(reason)
        self.peer = peer


class Contradiction(MessageRefused):
    """It contradicts what is settled on this node, up to entry `index`: one of the two is wrong,
    and nothing that a peer says decides which."""

    def __init__(self, peer: NodeId, reason: str, index: Index) -> None:
        super().__init__(peer, reason)
        self.index = index


class InvariantViolation(CoreError):
    """An assertion that guards data failed. It survives `python -O`; nobody may catch it but
    the process boundary, which stops the node."""
