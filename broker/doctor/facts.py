"""What the members of a group said of themselves, as plain values; made of answers, judged by
nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dledger.wire import cluster_pb2 as cpb

Node = tuple[str, str, bytes, str]  # group, id, disk and directory


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """A peer, as one member sees it. `state` is empty unless that member leads."""

    id: str
    address: str
    is_connected: bool = True
    state: str = ""
    match_index: int = 0
    is_recently_active: bool = True
    is_older_copy: bool = False


@dataclass(frozen=True, slots=True)
class NamedMember:
    """A member that the log names.

    Attributes:
        votes: if the configuration is joint: of those that it leads to.
        clock_off_ms: None unless who says so leads and knows.
        observes: it learns, and isn't to vote.
        votes_until_left: of those that a joint configuration comes from; of them, too, a majority
            is needed.
        address: where the log says that it is found; empty: it doesn't.
    """

    id: str
    votes: bool
    disk_id: bytes = b""
    clock_off_ms: float | None = None
    observes: bool = False
    votes_until_left: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class FillFacts:
    """Of what has a bound, `limit`, how much is in use."""

    what: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """What a member says of its own health; `free_bytes` None: it can't tell."""

    disk_id: bytes = b""
    members: tuple[NamedMember, ...] = ()
    is_log_full: bool = False
    is_apply_paused: bool = False
    is_short_of_space: bool = False
    free_bytes: int | None = None
    reserve_bytes: int = 0
    queues_wrong: int = 0
    contradictions: int = 0
    last_fsync_ms: float = 0.0
    certificate_expires_ms: int = 0
    suspected_index: int = 0
    differing: tuple[str, ...] = ()
    front_held: str = ""
    log_behind_ms: float = 0.0
    fills: tuple[FillFacts, ...] = ()
    certificate_begins_ms: int = 0
    next_certificate_ms: int = 0
    now_ms: int = 0  # by its clock; 0: its program is older than that


@dataclass(frozen=True, slots=True)
class DivergenceFacts:
    """How the log of a member that is out of service differs from a majority's; see
    `store.out_of_service.Divergence`."""

    compared_index: int = 0
    own_digest: int = 0
    peers_digest: int = 0
    peers: tuple[str, ...] = ()
    agreed_index: int = 0
    differing_index: int = 0
    own_term: int = 0
    peers_term: int = 0
    recoveries: int = 0  # not 0: it was given up, and nothing was compared


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """One that answered. `health` None: its program is older than that question. `directory`: of
    its data, as it names it itself."""

    id: str
    address: str
    group: str
    role: str
    term: int = 0
    last_index: int = 0
    commit_index: int = 0
    applied_index: int = 0
    committed_digest: int = 0
    is_serving: bool = False
    apply_stopped: str = ""
    level: int = 0
    known_level: int = 0
    segment_size_bytes: int = 0
    log_damages: int = 0
    peers: tuple[PeerFacts, ...] = ()
    health: HealthFacts | None = None
    directory: str = ""
    divergence: DivergenceFacts | None = None  # it is out of service
    epoch: int = 0
    newer_epoch: int = 0  # that it has heard of: it serves nobody

    @property
    def node(self) -> Node:
        """Whose answer it is: an id alone is what anybody can call himself."""
        disk = self.health.disk_id if self.health else b""
        return self.group, self.id, disk, self.directory


@dataclass(frozen=True, slots=True)
class Silence:
    """An address that gave no answer; `id` is empty where nobody says whose it is."""

    id: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group, looked at twice. `committed_before`: what somebody knew to be committed at the first
    look, a second before all else here; `fsyncs_before`: how long each member's last sync had taken
    then, in milliseconds; `apart_before`: who didn't hear whom then; `led_before`: who led at any
    look before the last. `now_ms`: by the clock of who asks. `group`: which one was asked for;
    empty: that of most members. `contradictions_before`: what each node that answered then had
    counted at the first look."""

    members: tuple[MemberFacts, ...]
    silent: tuple[Silence, ...]
    committed_before: int
    now_ms: int
    fsyncs_before: tuple[tuple[str, float], ...] = ()
    apart_before: frozenset[tuple[str, str]] = frozenset()
    led_before: tuple[MemberFacts, ...] = ()
    group: str = ""
    contradictions_before: tuple[tuple[Node, int], ...] = ()


def group_of(members: Iterable[MemberFacts]) -> str:
    """The group of most of them, each id counted once; of as many each the one whose name comes
    first: the other is told by name all the same."""
    ids = Counter(group for group, _ in {(each.group, each.id) for each in members})
    return min(ids, key=lambda name: (-ids[name], name), default="")


def each_node_once(members: Iterable[MemberFacts]) -> tuple[MemberFacts, ...]:
    """One answer of each node, whatever the order in which they came. A node can answer at two
    addresses, its clients' and its administration's: those are of one group, id, disk and
    directory, and have committed the same log. All others are nodes of their own."""
    nodes: defaultdict[Node, list[MemberFacts]] = defaultdict(list)
    for member in sorted(members, key=lambda each: each.address):
        seen = nodes[member.node]
        if all(_differ(member, each) for each in seen):
            seen.append(member)
    once = [each for seen in nodes.values() for each in seen]
    return tuple(sorted(once, key=lambda each: (each.id, each.address)))


def _differ(one: MemberFacts, other: MemberFacts) -> bool:
    is_same_place = one.commit_index == other.commit_index
    return is_same_place and one.committed_digest != other.committed_digest


def committed_by(members: Iterable[MemberFacts], group: str) -> int:
    """The last entry that is committed by what members of the group say. Who claims to have
    committed what it doesn't have, or isn't the only one of its id, isn't believed."""
    own = [each for each in members if each.group == group]
    answers = Counter(each.id for each in own)
    alone = [each for each in own if answers[each.id] == 1]
    return max((each.commit_index for each in alone if has_possible_indices(each)), default=0)


def has_possible_indices(member: MemberFacts) -> bool:
    """Whether its log holds what it has committed, and that what it has applied."""
    return member.applied_index <= member.commit_index <= member.last_index


def apart(members: Iterable[MemberFacts]) -> frozenset[tuple[str, str]]:
    """Who doesn't hear whom, by its own word: its stream is down, or it leads and nothing comes."""
    return frozenset(
        (member.id, peer.id)
        for member in members
        for peer in member.peers
        if not peer.is_connected or (peer.state and not peer.is_recently_active)
    )


def member_facts(address: str, answer: cpb.NodeStatus) -> MemberFacts:
    """What the node at that address says."""
    return MemberFacts(
        id=answer.node_id,
        address=address,
        group=answer.broker_group,
        role=answer.role,
        term=answer.term,
        last_index=answer.last_index,
        commit_index=answer.commit_index,
        applied_index=answer.applied_index,
        committed_digest=answer.committed_digest,
        is_serving=answer.serving,
        apply_stopped=answer.apply_stopped,
        level=answer.level,
        known_level=answer.known_level,
        segment_size_bytes=answer.segment_size_bytes,
        log_damages=answer.log_damages,
        peers=tuple(_peer_facts(each) for each in answer.peers),
        health=_health_facts(answer.health) if answer.HasField("health") else None,
        directory=answer.data_directory,
        divergence=_divergence(answer.divergence) if answer.HasField("divergence") else None,
        epoch=answer.epoch.number,
        newer_epoch=answer.newer_epoch,
    )


def _divergence(told: cpb.Divergence) -> DivergenceFacts:
    return DivergenceFacts(
        compared_index=told.compared_index,
        own_digest=told.own_digest,
        peers_digest=told.peers_digest,
        peers=tuple(told.peers),
        agreed_index=told.agreed_index,
        differing_index=told.differing_index,
        own_term=told.own_term,
        peers_term=told.peers_term,
        recoveries=len(told.recoveries),
    )


def _peer_facts(peer: cpb.PeerStatus) -> PeerFacts:
    return PeerFacts(
        id=peer.node_id,
        address=peer.address,
        is_connected=peer.connected,
        state=peer.state,
        match_index=peer.match_index,
        is_recently_active=peer.recently_active,
        is_older_copy=peer.older_copy,
    )


def _health_facts(health: cpb.NodeHealth) -> HealthFacts:
    has_space = health.HasField("space")
    return HealthFacts(
        disk_id=health.disk_id,
        members=tuple(
            NamedMember(
                each.node_id,
                each.votes,
                each.disk_id,
                each.clock_off_ms if each.has_clock else None,
                observes=each.observes,
                votes_until_left=each.votes_until_left,
                address=each.address,
            )
            for each in health.members
        ),
        is_log_full=health.log_full,
        is_apply_paused=health.apply_paused,
        is_short_of_space=health.short_of_space,
        free_bytes=health.space.free_bytes if has_space else None,
        reserve_bytes=health.space.reserve_bytes if has_space else 0,
        queues_wrong=health.queues_wrong,
        contradictions=health.contradictions,
        last_fsync_ms=health.last_fsync_ms,
        certificate_expires_ms=health.certificate_expires_ms,
        suspected_index=health.suspected_index,
        differing=tuple(health.differing),
        front_held=health.front_held,
        log_behind_ms=health.log_behind_ms,
        fills=tuple(FillFacts(each.what, each.used, each.limit) for each in health.fills),
        certificate_begins_ms=health.certificate_begins_ms,
        next_certificate_ms=health.next_certificate_ms,
        now_ms=health.now_ms,
    )
