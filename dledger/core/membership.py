"""Which configuration may follow which, and which change is due without anybody asking (ADR 41).

One voter at a time changes in one entry: any majority of one configuration meets any majority of
the next. Several at once change through a *joint* configuration, in which both sets of voters have
to agree; whoever leads leaves it once its entry is committed. Who is to vote is a learner first, so
that nobody waits for one who has nothing. A disk is replaced in two entries (ADR 22): its member
becomes a learner with the new disk, and a voter again once that has caught up. Pure functions; who
proposes what they give is the driver's matter.

    simple ──several voters change──▶ joint ──its entry is committed──▶ simple
       └──────one voter changes──────────────────────────────────────────▲

Source: Ongaro's dissertation, §4.1 (one server at a time), §4.2 (catching up, removing the leader),
§4.3 (joint consensus); etcd-io/raft `confchange` for leaving by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dledger.core.errors import ProposalRefused
from dledger.core.progress import Progress
from dledger.core.quorum import has_quorum
from dledger.core.state import RaftState
from dledger.core.transfer import is_nearly_level
from dledger.core.types import NO_DISK, Configuration, DiskId, NodeId, Role


def with_disk(configuration: Configuration, node: NodeId, disk: DiskId) -> Configuration:
    """`node` is a learner on `disk`, and a voter once that has caught up: till then it neither
    counts nor campaigns. A member that is there to learn stays so."""
    disks = {**dict(configuration.disks), node: disk}
    return replace(
        configuration,
        voters=configuration.voters - {node},
        learners=configuration.learners | {node},
        disks=tuple(sorted(disks.items())),
    )


def with_learner(
    configuration: Configuration, node: NodeId, disk: DiskId, address: str, *, observes: bool
) -> Configuration:
    """`node` is a member on `disk`, found at `address`, that takes entries.

    Args:
        observes: whether it stays so; else it is a voter once it has caught up.
    """
    disks = {**dict(configuration.disks), node: disk}
    addresses = {**dict(configuration.addresses), node: address}
    return replace(
        configuration,
        learners=configuration.learners | {node},
        observers=configuration.observers | ({node} if observes else frozenset()),
        disks=tuple(sorted((each, named) for each, named in disks.items() if named)),
        addresses=tuple(sorted((each, at) for each, at in addresses.items() if at)),
    )


def with_voter(configuration: Configuration, node: NodeId) -> Configuration:
    """The learner `node` votes."""
    return with_voters(configuration, configuration.voters | {node})


def with_voters(configuration: Configuration, voters: Iterable[NodeId]) -> Configuration:
    """Exactly `voters` vote; who votes no more stays, to observe."""
    return reshaped(configuration, voters, gone=())


def without(configuration: Configuration, nodes: Collection[NodeId]) -> Configuration:
    """`nodes` are members no more, or not once the joint configuration is left in which they
    still vote."""
    return reshaped(configuration, configuration.voters - frozenset(nodes), gone=nodes)


def reshaped(
    configuration: Configuration, voters: Iterable[NodeId], *, gone: Collection[NodeId]
) -> Configuration:
    """Exactly `voters` vote: at once where one of them is another, jointly with those that vote
    now where more are. Of the others, `gone` are members no more, and whoever voted observes."""
    wanted, dropped = frozenset(voters), frozenset(gone)
    demoted = configuration.voters - wanted
    return _only_members(
        replace(
            configuration,
            voters=wanted,
            voters_outgoing=(
                configuration.voters if len(wanted ^ configuration.voters) > 1 else frozenset()
            ),
            learners=(configuration.learners | demoted) - wanted - dropped,
            observers=(configuration.observers | demoted) - wanted - dropped,
        )
    )


def left(configuration: Configuration) -> Configuration:
    """What follows a joint configuration: its incoming voters decide alone."""
    return _only_members(replace(configuration, voters_outgoing=frozenset()))


def _only_members(configuration: Configuration) -> Configuration:
    members = configuration.members()
    preferred = configuration.preferred
    return replace(
        configuration,
        preferred=preferred if preferred in members else None,
        disks=tuple(pair for pair in configuration.disks if pair[0] in members),
        addresses=tuple(pair for pair in configuration.addresses if pair[0] in members),
    )


# --- what may follow what -----------------------------------------------------------------------


def check_change(state: RaftState, wanted: Configuration) -> None:
    """Returns if `wanted` may follow the configuration in force.

    Raises:
        ProposalRefused: majorities of the two need not meet, a voter would have nothing yet, or
            what a disk has promised would be taken for another's.
    """
    present = state.log.configuration
    if wanted.epoch != present.epoch:
        raise ProposalRefused("the group's epoch isn't changed by its members")
    _check_form(wanted)
    _check_sets(present, wanted)
    _check_disks(state, present, wanted)
    for node in sorted(wanted.voters - present.voters):
        progress = state.peers.get(node)
        if node not in present.learners:
            raise ProposalRefused(f"{node} is no learner yet: whoever votes has learned before")
        if progress is None or not _has_caught_up(state, progress):
            raise ProposalRefused(f"{node} hasn't caught up yet, or doesn't answer now: retry")


def _check_form(wanted: Configuration) -> None:
    if not wanted.voters:
        raise ProposalRefused("nobody would vote")
    if wanted.learners & wanted.voters or wanted.observers - wanted.learners:
        raise ProposalRefused("a member is a voter, a learner, or a learner that stays one")


def _check_sets(present: Configuration, wanted: Configuration) -> None:
    """Any majority under `present` meets any majority under `wanted`."""
    if present.voters_outgoing:
        if wanted != left(present):
            raise ProposalRefused("a change of several voters is under way: retry")
    elif wanted.voters_outgoing:
        if wanted.voters_outgoing != present.voters:
            raise ProposalRefused("a joint configuration begins with those that vote now")
    elif len(wanted.voters ^ present.voters) > 1:
        changed = len(wanted.voters ^ present.voters)
        raise ProposalRefused(f"{changed} voters would change at once without being joint")


def _check_disks(state: RaftState, present: Configuration, wanted: Configuration) -> None:
    before, after = dict(present.disks), dict(wanted.disks)
    for node in sorted(present.members() & wanted.members()):
        # What the other disk acknowledged and voted counts for `node`, as long as that votes.
        is_other = before.get(node, NO_DISK) != after.get(node, NO_DISK)
        if is_other and wanted.is_voter(node):
            raise ProposalRefused(f"{node} votes: its disk can't be another one meanwhile")
    if state.node in wanted.members() and wanted.disk_of(state.node) != state.own_disk:
        raise ProposalRefused("the leader has to stay on its own disk")


# --- what is due by itself ----------------------------------------------------------------------


def due_change(state: RaftState) -> Configuration | None:
    """What the leader has to propose without being asked: the joint configuration, once committed,
    is left; learners that have caught up and aren't there to observe vote, if those that answer are
    a majority with them. None: nothing is due, or this node can't change the configuration now."""
    log, configuration = state.log, state.log.configuration
    if state.role is not Role.LEADER or state.transfer is not None:
        return None
    is_joint = bool(configuration.voters_outgoing)
    candidates = configuration.learners - configuration.observers
    if not (is_joint or candidates):
        return None
    if log.commit_index < state.term_start_index or log.has_uncommitted_configuration():
        return None
    if is_joint:
        return left(configuration)
    ready = _ready(state, state.peers, candidates)
    if not ready:
        return None
    wanted = with_voters(configuration, configuration.voters | ready)
    answering = {peer for peer, each in state.peers.items() if _is_heard(state, each)}
    return wanted if has_quorum(wanted, answering | {state.node}) else None


def _ready(
    state: RaftState, peers: Mapping[NodeId, Progress], candidates: frozenset[NodeId]
) -> frozenset[NodeId]:
    return frozenset(
        node for node in candidates if node in peers and _has_caught_up(state, peers[node])
    )


def _has_caught_up(state: RaftState, progress: Progress) -> bool:
    """It is there, holds the entry that named its disk, lacks no more than one append, and has room
    for what follows: as a voter it won't hold up commits."""
    if progress.is_short_of_space:
        return False
    if not _is_heard(state, progress):
        return False
    if progress.match_index < state.log.configuration_place.at:
        return False
    return is_nearly_level(state, progress)


def _is_heard(state: RaftState, progress: Progress) -> bool:
    """Whether it has answered a heartbeat of this leadership, so that it is known to have room or
    not, and said something lately: who leads anew has only supposed that anybody is there."""
    silent_ticks = state.now_tick - progress.last_heard_tick
    return progress.acked_round > 0 and silent_ticks < state.options.election_timeout_min_ticks
