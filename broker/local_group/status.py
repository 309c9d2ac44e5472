"""What the nodes of a group say of themselves, put side by side.

This asks each node directly and decides nothing: unlike the client it needs no leader, so it
works on a group that has lost its quorum, which is when one looks. It must not wait longer than
a second for a node that is silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import grpc

from broker.forming.errors import NoLeader, SeveralGroups
from dledger.credentials.tls import TlsMaterial, open_channel
from dledger.wire.cluster_pb2 import GetStatusRequest, NodeStatus

PROBE_TIMEOUT_S = 1.0
# Channels share their connections, and with them a dead node's back-off; a probe must look anew.
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
WAITING_ROLES = ("unformed", "legacy", "prepared")
OUT_OF_SERVICE_ROLE = "out-of-service"  # its log isn't the group's
STRANGER_ROLE = "stranger"  # at a member's address there is a node of another group
REFILLING_ROLE = "refilling"  # its log has gaps, and it asks its peers for what is missing
GET_STATUS = "/dledger.v1.Cluster/GetStatus"

# Characters of what a library says of a silent node.
_DETAILS_BEGIN = 60
_DETAILS_END = 180


async def probe(
    address: str, timeout_s: float = PROBE_TIMEOUT_S, tls: TlsMaterial | None = None
) -> NodeStatus | None:
    """The status that the node at `address` gives; None when it doesn't answer. `tls` None: asked
    in the clear, as the nodes of a local group are."""
    try:
        return await ask(address, timeout_s, tls)
    except grpc.aio.AioRpcError:
        return None


async def ask(
    address: str, timeout_s: float = PROBE_TIMEOUT_S, tls: TlsMaterial | None = None
) -> NodeStatus:
    """As `probe`, for who wants to know why there is no answer.

    Raises:
        grpc.aio.AioRpcError: there is none.
    """
    async with open_channel(address, CHANNEL_OPTIONS, tls) as channel:
        get_status = channel.unary_unary(
            GET_STATUS,
            request_serializer=GetStatusRequest.SerializeToString,
            response_deserializer=NodeStatus.FromString,
        )
        answer: NodeStatus = await get_status(GetStatusRequest(), timeout=timeout_s)
        return answer


def why_silent(error: grpc.aio.AioRpcError) -> str:
    """Why there is no answer, in a line: what libraries say can be pages. They begin with what was
    tried, and the reason is what they end with."""
    details = " ".join((error.details() or "").split())
    if len(details) > _DETAILS_BEGIN + _DETAILS_END:
        details = f"{details[:_DETAILS_BEGIN]} … {details[-_DETAILS_END:]}"
    name = error.code().name.lower().replace("_", " ")
    return f"{name}: {details}" if details else name


async def group_status(addresses: Sequence[str], tls: TlsMaterial | None = None) -> GroupStatus:
    """The status of the group that the nodes at `addresses` belong to.

    Members that aren't among `addresses` are learned from the answers and asked as well. A node of
    another group that answers there (an address that was given to another machine) counts as
    nobody: it may lead, in whatever term.

    Raises:
        SeveralGroups: nodes of more than one are at `addresses`.
    """
    heard_from = partial(_heard_from, tls=tls)
    silent: dict[str, str] = {}  # why, by address
    first = dict(zip(addresses, await _all_of(heard_from, addresses, silent), strict=True))
    groups = {at: one.broker_group for at, one in first.items() if one}
    if len(set(groups.values())) > 1:
        raise SeveralGroups(groups)
    group = next(iter(groups.values()), "")
    heard = _heard_as_named([one for one in first.values() if one])
    known = {
        peer.address: peer.node_id
        for one in first.values()
        if one
        for peer in one.peers
        if peer.address  # else nobody has said where that member is
    }
    # One that was asked at its administration's address needs not be asked at its clients'.
    others = [at for at, node_id in known.items() if at not in first and node_id not in heard]
    second = dict(zip(others, await _all_of(heard_from, others, silent), strict=True))
    answers = first | second
    members = _members_of([one for one in answers.values() if one and one.broker_group == group])
    views, seen = [], set[tuple[str, bytes, str]]()
    for address, one in answers.items():
        if one is not None:  # a node that was found under two names is one
            itself = (one.node_id, one.health.disk_id, one.data_directory)
            if itself in seen:
                continue
            seen.add(itself)
        view = NodeView.seen(group, known.get(address, ""), address, one)
        is_gone = view.takes_part and bool(members) and view.id not in members
        views.append(replace(view, silence=silent.get(address, ""), is_gone=is_gone))
    return GroupStatus.of(group, views)


def _members_of(answers: Sequence[NodeStatus]) -> set[str]:
    """The ids of the members by the log of who has committed most; none if nobody says. Who was
    taken out, and wasn't told, goes by a log that ends before that."""
    saying = [one for one in answers if one.health.members]
    best = max(saying, key=lambda one: (one.commit_index, one.last_index), default=None)
    return {each.node_id for each in best.health.members} if best is not None else set()


def _heard_as_named(answers: Sequence[NodeStatus]) -> set[str]:
    """The ids of those that answered on every disk that some log names for them: where one was
    replaced, an old process may answer under the member's id, and isn't the member."""
    found = {(one.node_id, one.health.disk_id) for one in answers}
    missing = {
        each.node_id
        for one in answers
        for each in one.health.members
        # A program of before disks were told doesn't say on which it is.
        if each.disk_id and found.isdisjoint({(each.node_id, each.disk_id), (each.node_id, b"")})
    }
    return {node_id for node_id, _ in found} - missing


async def _heard_from(address: str, tls: TlsMaterial | None) -> NodeStatus | str:
    """The answer, or why there is none."""
    try:
        return await ask(address, tls=tls)
    except grpc.aio.AioRpcError as error:
        return why_silent(error)


async def _all_of(
    heard_from: Callable[[str], Awaitable[NodeStatus | str]],
    addresses: Sequence[str],
    silent: dict[str, str],
) -> list[NodeStatus | None]:
    """Their answers, asked at once; why there is none goes into `silent`."""
    found = await asyncio.gather(*map(heard_from, addresses))
    silent |= {at: why for at, why in zip(addresses, found, strict=True) if isinstance(why, str)}
    return [None if isinstance(each, str) else each for each in found]


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a group. `alive`: it answered; what a silent node is, is not known.

    `admin_address` is where audits and administration are asked of it.
    """

    id: str
    address: str
    alive: bool
    role: str | None = None
    term: int | None = None
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    serving: bool = False
    apply_stopped: str = ""
    older_copies: tuple[str, ...] = ()  # peers that it refuses as such
    admin_address: str = ""
    log_damages: int = 0  # places that have rotted and aren't repaired yet
    scrub_ended_ms: int | None = None  # when its log was last read to its end
    preferred: str = ""  # the member that is to lead, by its log
    other_group: str = ""  # whose node answers there, and isn't this member
    other_directory: str = ""  # that node's
    silence: str = ""  # why it doesn't answer, if that was asked
    newer_epoch: int = 0  # of the group, that it has heard of: it serves nobody
    is_full: bool = False  # its disk has no room for more of the log, or for what derives from it
    is_gone: bool = False  # it runs, and is no member any more, by what others say or itself

    @classmethod
    def seen(cls, group: str, known_as: str, address: str, answer: NodeStatus | None) -> NodeView:
        """The view that an answer gives, or its absence, of who is to be of `group`.

        Args:
            known_as: who is to be there, as others say; empty: nobody says.
        """
        if answer is not None and answer.broker_group != group:
            return cls.stranger(known_as or answer.node_id, address, answer)
        return cls.of(known_as if answer is None else answer.node_id, address, answer)

    @classmethod
    def stranger(cls, node_id: str, address: str, answer: NodeStatus) -> NodeView:
        """The view of a node in whose place another group's gives the answer."""
        return replace(
            cls.of(node_id, address, None),
            role=STRANGER_ROLE,
            other_group=answer.broker_group,
            other_directory=answer.data_directory,
        )

    @classmethod
    def of(cls, node_id: str, address: str, answer: NodeStatus | None) -> NodeView:
        """The view that an answer gives, or its absence."""
        if answer is None:
            return cls(node_id, address, alive=False, admin_address=address)
        return cls(
            node_id,
            address,
            alive=True,
            role=answer.role,
            term=answer.term,
            last_index=answer.last_index,
            commit_index=answer.commit_index,
            applied_index=answer.applied_index,
            serving=answer.serving,
            apply_stopped=answer.apply_stopped,
            older_copies=tuple(peer.node_id for peer in answer.peers if peer.older_copy),
            admin_address=answer.admin_address or address,
            log_damages=answer.log_damages,
            scrub_ended_ms=answer.scrub_ended_ms or None,
            preferred=answer.preferred,
            newer_epoch=answer.newer_epoch,
            is_full=(
                answer.health.log_full or answer.health.apply_paused or answer.health.short_of_space
            ),
        )

    @property
    def waits(self) -> bool:
        """Whether it runs, and is no member yet."""
        return self.role in WAITING_ROLES

    @property
    def takes_part(self) -> bool:
        """Whether it answered as one that is a member, as far as it knows."""
        apart = (*WAITING_ROLES, OUT_OF_SERVICE_ROLE, STRANGER_ROLE, REFILLING_ROLE)
        return self.alive and self.role not in apart

    def facts(self) -> dict[str, object]:
        """The node's object in the JSON of `group status`."""
        keys = ("id", "role", "term", "last_index", "commit_index", "applied_index")
        more = ("address", "alive", "apply_stopped")
        facts: dict[str, object] = {key: getattr(self, key) for key in (*keys, *more)}
        scrub = {"log_damages": self.log_damages, "scrub_ended_ms": self.scrub_ended_ms}
        heard = {"newer_epoch": self.newer_epoch}
        return facts | {"older_copies": list(self.older_copies)} | scrub | heard


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """All nodes of a group. `leader` is the one that says so in the newest term."""

    group: str
    leader: str | None
    term: int | None
    nodes: tuple[NodeView, ...]

    @classmethod
    def of(cls, group: str, nodes: Sequence[NodeView]) -> GroupStatus:
        """Finds the leader among what the nodes said.

        A leader that was cut off still says that it leads; the newer term is right.
        """
        leaders = [node for node in nodes if node.role == "leader"]
        leader = max(leaders, key=lambda node: node.term or 0, default=None)
        terms = [node.term for node in nodes if node.term is not None]
        return cls(group, leader.id if leader else None, max(terms, default=None), tuple(nodes))

    @property
    def preferred(self) -> str | None:
        """The member that is to lead while it is well, as the leader's log has it."""
        found = next((node.preferred for node in self.nodes if node.id == self.leader), "")
        return found or None

    def leading(self, besides: Collection[str] = ()) -> NodeView:
        """The leader.

        Args:
            besides: nodes that aren't to be believed, as they may be of another group of the same
                name: whose disks are to come in. What such a one leads isn't who takes it in.

        Raises:
            NoLeader: no node says that it leads.
        """
        leaders = [each for each in self.nodes if each.role == "leader" and each.id not in besides]
        if leaders:
            return max(leaders, key=lambda node: node.term or 0)
        if not any(each.alive for each in self.nodes):
            raise NoLeader(self.nobody)
        raise NoLeader("no node says that it leads: a majority has to run")

    @property
    def nobody(self) -> str:
        """What to say where no node answers: why the first one doesn't. It is often the same for
        all, as with certificates that aren't named."""
        reasons = (f" ({each.address}: {each.silence})" for each in self.nodes if each.silence)
        return f"no node answers{next(reasons, '')}"

    @property
    def serves(self) -> bool:
        """Whether the leader takes messages."""
        return any(node.id == self.leader and node.serving for node in self.nodes)

    @property
    def serves_fully(self) -> bool:
        """Whether it does, and every node answers."""
        return self.serves and self.answers_fully and not any(node.waits for node in self.nodes)

    @property
    def answers_fully(self) -> bool:
        """Whether every node answers."""
        return all(node.alive for node in self.nodes)

    def answers(self, node_id: str) -> bool:
        """Whether that node answers."""
        return any(node.id == node_id and node.alive for node in self.nodes)

    def facts(self) -> dict[str, object]:
        """The JSON of `group status`."""
        return {
            "group": self.group,
            "leader": self.leader,
            "term": self.term,
            "nodes": [node.facts() for node in self.nodes],
            "preferred": self.preferred,
        }
