"""Who leads, concluded from what every node of a broker group says. Pure: no clock, no connection.

This owns the latest view of each node that is being watched and answers three questions: which
node may be sent to now, which one to try where nobody has given word, and which nodes are known
to have been deposed. It must never send a caller to a node of an older term once another is
named leader of a newer one: a leader that is stopped or cut off goes on believing in itself. Nor to
one of an older epoch of the group, whatever its term: it was given up.

A node of a higher term that names no leader does not count against a leader that serves: it may
be a candidate that was cut off from the others in the middle of an election, for good.

Source: `proto/dledger/wire/cluster.proto` (WatchLeader).
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.client.group_epoch import FIRST_EPOCH, RECOVERY_ID_BYTES, EpochName
from dledger.wire.cluster_pb2 import LeaderView


@dataclass(frozen=True, slots=True)
class Member:
    """A node and the address (`host:port`) at which it wants to be reached."""

    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class View:
    """What one node says. `serving` is true only from a leader, of itself."""

    broker_group: str
    node_id: str
    term: int
    leader: Member | None
    serving: bool
    members: tuple[Member, ...]
    epoch: EpochName = FIRST_EPOCH


def from_wire(view: LeaderView) -> View:
    """The wire's view as a value."""
    named = view.HasField("leader") and view.leader.address
    return View(
        broker_group=view.broker_group,
        node_id=view.node_id,
        term=view.term,
        leader=Member(view.leader.node_id, view.leader.address) if named else None,
        serving=view.serving,
        members=tuple(Member(member.node_id, member.address) for member in view.members),
        epoch=_epoch_of(view),
    )


def _epoch_of(view: LeaderView) -> EpochName:
    told = view.epoch
    if not told.number or len(told.recovery_id) != RECOVERY_ID_BYTES:
        return FIRST_EPOCH
    earlier = tuple(told.earlier)
    is_all = len(earlier) == told.number - 1
    is_all = is_all and all(len(each) == RECOVERY_ID_BYTES for each in earlier)
    return EpochName(told.number, told.recovery_id, earlier if is_all else ())


class LeaderBoard:
    """The latest view from each watched address."""

    def __init__(self) -> None:
        self._views: dict[str, View] = {}
        self._hint: tuple[int, Member] | None = None
        self.epoch = FIRST_EPOCH  # the newest that a node told of

    def on_view(self, address: str, view: View) -> bool:
        """The node at `address` says `view`; whether that counts: what was said in an epoch before
        the newest doesn't, nor what is said in another one of the same number."""
        self.on_epoch(view.epoch)
        if view.epoch != self.epoch:
            self.on_lost(address)
            return False
        self._views[address] = view
        if self._hint is not None and view.term >= self._hint[0]:
            self._hint = None
        return True

    def on_epoch(self, epoch: EpochName) -> bool:
        """A node is of `epoch`; whether nobody had told of it: then all that was said before is
        forgotten."""
        if epoch.number <= self.epoch.number:
            if epoch == self.epoch and epoch.earlier:
                self.epoch = epoch  # it may have been told of by who tells less
            return False
        self.epoch = epoch
        self._views.clear()
        self._hint = None
        return True

    def on_lost(self, address: str) -> None:
        """The node at `address` is no longer heard; what it said may be over."""
        self._views.pop(address, None)

    def on_hint(self, term: int, leader: Member) -> None:
        """A node refused a call and named `leader`."""
        newest = self._newest_named()
        if newest is None or term >= newest.term:
            self._hint = (term, leader)

    def serving_address(self) -> str | None:
        """The address of the node that serves; None while there is no word of one."""
        serving = [(view.term, address) for address, view in self._views.items() if view.serving]
        if not serving:
            return None
        term, address = max(serving)
        newest = self._newest_named()
        if newest is not None and newest.term > term and not self._names(newest, address):
            return None
        return address

    def presumed(self) -> Member | None:
        """The leader by hearsay: of the newest term in which one is named."""
        if self._hint is not None:
            return self._hint[1]
        newest = self._newest_named()
        return newest.leader if newest is not None else None

    def is_deposed(self, address: str) -> bool:
        """Whether another node is known to lead in a newer term than the node at `address` has
        spoken of: what was asked of it may never be answered."""
        newest = self._newest_named()
        if newest is None or self._names(newest, address):
            return False
        own = self._views.get(address)
        return own is None or newest.term > own.term

    def leader(self) -> tuple[Member, int] | None:
        """The leader and its term, as the newest view or a later hint has it."""
        newest = self._newest_named()
        if self._hint is not None:
            return self._hint[1], self._hint[0]
        if newest is None or newest.leader is None:
            return None
        return newest.leader, newest.term

    def members(self) -> dict[str, Member]:
        """Every member that any node names, by node id."""
        return {member.node_id: member for view in self._views.values() for member in view.members}

    @property
    def is_anybody_heard(self) -> bool:
        """Whether a node says anything at present."""
        return bool(self._views)

    def node_id(self, address: str) -> str:
        """The id of the node at `address`, empty while it has not spoken."""
        view = self._views.get(address)
        return view.node_id if view is not None else ""

    def _newest_named(self) -> View | None:
        named = [view for view in self._views.values() if view.leader is not None]
        return max(named, key=lambda view: view.term, default=None)

    def _names(self, view: View, address: str) -> bool:
        """Whether `view`'s leader is the node at `address`, which may have several addresses."""
        leader = view.leader
        if leader is None:
            return False
        return leader.address == address or leader.node_id == self.node_id(address)
