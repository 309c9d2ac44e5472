"""Which configuration may follow which, and what becomes of a member whose disk was lost.

A disk is replaced in two entries, each of which changes at most one voter, so that any majority of
one configuration meets any majority of the next: its member becomes a learner with the new disk,
and a voter again once that has caught up. Pure functions; who proposes them is the driver's matter.

Source: Ongaro's dissertation, §4.1 (one server at a time), §4.2.1 (catching up as a non-voter).
"""

from __future__ import annotations

from dataclasses import replace

from dledger.core.errors import ProposalRefused
from dledger.core.progress import PeerState, Progress
from dledger.core.state import RaftState
from dledger.core.types import Configuration, DiskId, Index, NodeId, Role


def with_disk(configuration: Configuration, node: NodeId, disk: DiskId) -> Configuration:
    """`node` is a learner on `disk`: it neither counts nor votes."""
    disks = {**dict(configuration.disks), node: disk}
    return replace(
        configuration,
        voters=configuration.voters - {node},
        learners=configuration.learners | {node},
        disks=tuple(sorted(disks.items())),
    )


def with_voter(configuration: Configuration, node: NodeId) -> Configuration:
    """The learner `node` votes."""
    return replace(
        configuration,
        voters=configuration.voters | {node},
        learners=configuration.learners - {node},
    )


def check_change(state: RaftState, wanted: Configuration) -> None:
    """Returns if `wanted` may follow the configuration in force.

    Raises:
        ProposalRefused: majorities of the two need not meet, or the leader would lead without
            being a voter.
    """
    present = state.log.configuration
    if not wanted.voters_outgoing and not present.voters_outgoing:
        changed = wanted.voters ^ present.voters
        if len(changed) > 1:
            raise ProposalRefused(f"{len(changed)} voters would change at once; one may")
    if not wanted.is_voter(state.node) or wanted.disk_of(state.node) != state.own_disk:
        raise ProposalRefused("the leader has to stay a voter, on its own disk")


def promotion(state: RaftState) -> Configuration | None:
    """The configuration with the first learner that has caught up as a voter; see `Raft`."""
    log, configuration = state.log, state.log.configuration
    if not configuration.learners or state.role is not Role.LEADER or state.transfer is not None:
        return None
    if log.commit_index < state.term_start_index or log.has_uncommitted_configuration():
        return None
    for node in sorted(configuration.learners):
        progress = state.peers.get(node)
        if progress is not None and _has_caught_up(state, progress):
            return with_voter(configuration, node)
    return None


def _has_caught_up(state: RaftState, progress: Progress) -> bool:
    """It holds the entry that named its disk, and lacks no more than one append: as a voter it
    won't hold up commits."""
    log, match = state.log, progress.match_index
    if progress.state is not PeerState.REPLICATE or match < log.configuration_place.at:
        return False
    if match >= log.last_index:
        return True
    size, count = state.options.max_append_bytes, state.options.max_append_entries
    if log.last_index - match > count:
        return False
    return state.view.last_that_fits(Index(match + 1), log.last_index, size) == log.last_index
