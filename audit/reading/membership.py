"""Which of the nodes that answer are the members of the group that is meant. Pure.

A node's id is what its configuration says, and who answers at an address is whoever listens there:
neither says that it is a member. A group's log names disks. So the nodes of one group are those
whose logs name disks in common, and the newest of these logs (of the highest epoch, committed the
furthest) says who the members are. Under the id of one, an old process may answer beside it (its
disk was replaced), a copy of its disk, or a node of another group of the same name.

    groups that have no disk in common  ─▶ refused: nobody here knows which of them is meant
    a member's id, on another disk      ─▶ a stranger: nothing of it is taken for the member's
    an id that no log names             ─▶ as it says, and no member

Nodes of before health was told say nothing of disks: they are believed by their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from audit.errors import UsageMistake
from dledger.wire.cluster_pb2 import MemberHealth, NodeStatus

Answers = Mapping[str, NodeStatus]  # by the address that was asked


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said, and where.

    Attributes:
        is_member: by the group's log, on that disk.
        stranger: why it isn't the member that has its id; empty if it is, or none has.
    """

    address: str
    status: NodeStatus
    is_member: bool
    stranger: str = ""


@dataclass(frozen=True, slots=True)
class Absent:
    """A member that gave no answer, where it is said to be; empty: nobody says. `instead`: what is
    there, in words."""

    node_id: str
    address: str
    instead: str


class Membership:
    """A group, as it shows itself in what nodes answer.

    Args:
        first: the answers at the addresses by which the group was named; at least one.

    Raises:
        UsageMistake: they are of several groups.
    """

    def __init__(self, first: Answers) -> None:
        self._answers: dict[str, NodeStatus] = {}
        self._group = next(iter(first.values())).broker_group
        self._disks: set[bytes] = set()
        self._others: dict[str, NodeStatus] = {}  # answers of other groups
        _check_one_group(first)
        self.hear(first)

    def hear(self, answers: Answers) -> None:
        """These came as well."""
        for address, status in answers.items():
            if status.broker_group != self._group:
                self._others[address] = status
                continue
            self._answers[address] = status
            disks = _disks_of(status)
            if status.health.members and not (self._disks and self._disks.isdisjoint(disks)):
                self._disks |= disks

    @property
    def addresses(self) -> dict[str, str]:
        """Where members are said to be: their ids by address."""
        told = {
            peer.address: peer.node_id
            for status in self._answers.values()
            for peer in status.peers
            if peer.address
        }
        named = self._named()
        told |= {each.address: each.node_id for each in named.values() if each.address}
        return {at: node_id for at, node_id in told.items() if not named or node_id in named}

    def to_ask(self) -> list[str]:
        """Where members may be that haven't answered anywhere."""
        here = {each.status.node_id for each in self.nodes()}
        return [at for at, node_id in self.addresses.items() if node_id not in here]

    def nodes(self) -> list[Answer]:
        """Those that answered, members and others, each id once."""
        return list(self._told_apart()[0].values())

    def strangers(self) -> list[Answer]:
        """Those that answered beside the one that has their id. In the place of one that didn't
        answer they are what is told of it (`absent`)."""
        nodes, others = self._told_apart()
        return [each for each in others if each.status.node_id in nodes]

    def absent(self) -> list[Absent]:
        """Members that gave no answer."""
        nodes, others = self._told_apart()
        places = {node_id: at for at, node_id in self.addresses.items()}
        return [
            Absent(
                node_id,
                places.get(node_id, ""),
                self._instead(places.get(node_id), node_id, others),
            )
            for node_id in sorted({*places, *self._named()})
            if node_id not in nodes
        ]

    # --- who is who -------------------------------------------------------------------------

    def _named(self) -> dict[str, MemberHealth]:
        """The members by id, as the newest log names them; none where no node says."""
        logs = [
            status
            for status in self._answers.values()
            if status.health.members
            and not (self._disks and self._disks.isdisjoint(_disks_of(status)))
        ]
        newest = max(logs, key=lambda each: (each.epoch.number, each.commit_index), default=None)
        return {} if newest is None else {each.node_id: each for each in newest.health.members}

    def _told_apart(self) -> tuple[dict[str, Answer], list[Answer]]:
        """Who has each id, and who has it as well."""
        named = self._named()
        nodes: dict[str, Answer] = {}
        others: list[Answer] = []
        for address, status in self._each_node():
            node_id, why = status.node_id, self._why_not(status, named)
            if why:
                others.append(Answer(address, status, is_member=False, stranger=why))
                continue
            answer = Answer(address, status, is_member=not named or node_id in named)
            before = nodes.get(node_id)
            if before is None:
                nodes[node_id] = answer
                continue
            it, other = before, answer
            if node_id in named and address == named[node_id].address:
                it, other = answer, before  # it is where the log says that it is
            nodes[node_id] = it
            why = f"{node_id} is another node, which answers at {it.address}"
            others.append(replace(other, is_member=False, stranger=why))
        return nodes, others

    def _each_node(self) -> Iterator[tuple[str, NodeStatus]]:
        """One that was found at two addresses is one; where it was found first."""
        seen: set[tuple[str, bytes, str]] = set()
        for address, status in self._answers.items():
            itself = (status.node_id, status.health.disk_id, status.data_directory)
            if itself not in seen:
                seen.add(itself)
                yield address, status

    @staticmethod
    def _why_not(status: NodeStatus, named: Mapping[str, MemberHealth]) -> str:
        """Why the node isn't the member that has its id; empty if it is, or none has."""
        member = named.get(status.node_id)
        if member is None or not member.disk_id or not status.health.disk_id:
            return ""
        if member.disk_id == status.health.disk_id:
            return ""
        return (
            f"{status.node_id} on {status.data_directory} is on disk "
            f"{status.health.disk_id.hex()}, and the group's log names {member.disk_id.hex()}"
        )

    def _instead(self, address: str | None, node_id: str, others: Sequence[Answer]) -> str:
        """What is there instead, in words."""
        for each in others:
            if node_id == each.status.node_id:
                return f"{each.address} is answered by another one: {each.stranger}"
        if address is None:
            return f"no node says where {node_id} is"
        other = self._answers.get(address) or self._others.get(address)
        if other is None:
            return f"{address} gives no answer"
        return f"{address} is answered by {other.node_id} of broker group {other.broker_group}"


def _disks_of(status: NodeStatus) -> set[bytes]:
    """That its log names; its own, where it tells of no log."""
    named = {each.disk_id for each in status.health.members} or {status.health.disk_id}
    return named - {b""}


def _check_one_group(answers: Answers) -> None:
    """Raises: UsageMistake: they are of several groups."""
    groups = {at: status.broker_group for at, status in answers.items()}
    if len(set(groups.values())) > 1:
        told = ", ".join(f"{at} is of {group!r}" for at, group in groups.items())
        raise UsageMistake(f"the addresses are of several broker groups: {told}")
    parts: list[tuple[set[bytes], list[str]]] = []  # disks that logs name together, and where
    for address, status in answers.items():
        if not status.health.members:
            continue
        disks, places = _disks_of(status), [address]
        if not disks:
            continue
        apart = []
        for other in parts:
            if other[0].isdisjoint(disks):
                apart.append(other)
            else:
                disks |= other[0]
                places = [*other[1], *places]
        parts = [*apart, (disks, places)]
    if len(parts) > 1:
        told = "; ".join(", ".join(places) for _, places in parts)
        raise UsageMistake(
            f"the addresses are of {len(parts)} groups that have one name, as their logs name no "
            f"disk in common: {told}. Name those of one"
        )
