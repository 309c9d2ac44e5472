"""Handing leadership over: catch the target up, tell it to campaign, give up after a while.

While a transfer is under way the leader takes no proposals, so that the target can catch up;
the timeout bounds that silence (DLedger #39: a transfer to a dead node blocked writes for good).
A named target that surely can't be level by then, or would hand over again, is refused before it.

Source: dissertation §3.10.
"""

from __future__ import annotations

from dledger.core.errors import NotLeader, ProposalRefused, TargetUnfit, TransferInProgress
from dledger.core.progress import PeerState, Progress
from dledger.core.roles import end_transfer
from dledger.core.state import RaftState, Transfer
from dledger.core.types import NO_INDEX, Index, NodeId, Role, TimeoutNow


def transfer_leadership(state: RaftState, target: NodeId | None) -> None:
    """Begin to hand over to `target`; see `Raft.transfer_leadership`."""
    if state.role is not Role.LEADER:
        raise NotLeader(state.leader)
    if state.transfer is not None:
        if target in (None, state.transfer.target):
            return
        raise TransferInProgress(state.transfer.target)
    state.transfer = Transfer(_choose(state, target))
    state.appends_due = True
    hand_over_if_caught_up(state)


def hand_over_if_caught_up(state: RaftState) -> None:
    """Send TimeoutNow once the target has the whole log; sending it again is harmless."""
    if state.transfer is None or state.role is not Role.LEADER:
        return
    target = state.transfer.target
    if state.match_of(target) == state.log.last_index:
        state.send(TimeoutNow(state.node, target, state.term))


def on_transfer_tick(state: RaftState) -> None:
    """One tick of a handover; it is aborted when its time is up, and proposals resume."""
    transfer = state.transfer
    if transfer is None:
        return
    if state.role is not Role.LEADER and state.leader is not None:
        end_transfer(state, "done" if state.leader == transfer.target else "aborted")
        return
    transfer.elapsed_ticks += 1
    if transfer.elapsed_ticks >= state.options.transfer_timeout_ticks:
        end_transfer(state, "aborted")


def _choose(state: RaftState, target: NodeId | None) -> NodeId:
    if target is None:
        voters = state.other_voters()
        if not voters:
            raise ProposalRefused("there is no other voter to transfer leadership to")
        # First those that are fit and have all that is committed, of them the one that is
        # preferred; then those that are fit and lack so little that it is sent within the
        # transfer. Of equals the best caught-up one, the one heard last, the first by name.
        return max(voters, key=lambda peer: _fitness(state, state.peers[peer]))
    if target == state.node:
        raise ProposalRefused(f"{target} already leads")
    if target not in state.other_voters():
        names = ", ".join(sorted(state.log.configuration.voters))
        raise ProposalRefused(f"{target} doesn't vote, and only who votes can lead: {names}")
    reason = _unfitness(state, state.peers[target])
    if reason:
        raise TargetUnfit(target, reason)
    return target


def _unfitness(state: RaftState, progress: Progress) -> str:
    """Why nothing good would come of handing over to that voter now; empty if nothing speaks
    against it. What isn't known yet doesn't: the timeout bounds what it costs."""
    if state.now_tick - progress.last_heard_tick > state.options.election_timeout_max_ticks:
        return "wasn't heard for an election timeout"
    is_level = progress.match_index >= state.log.last_index
    is_better = not (state.disk.is_unfit or state.is_in_doubt)
    if progress.is_short_of_space and (is_better or not is_level):
        return "is unfit by its own word: its disk is full or rotten, or its program too old"
    if progress.state is PeerState.SNAPSHOT:
        return "is being given a whole state, as the entries that it lacks are gone"
    if _lacks_too_much(state, progress):
        return f"lacks {state.log.commit_index - progress.match_index} entries"
    return ""


def _lacks_too_much(state: RaftState, progress: Progress) -> bool:
    """Whether it lacks more of what is committed than may be under way to it at a time: a voter
    that keeps up never does."""
    log, match, options = state.log, progress.match_index, state.options
    is_known = match > NO_INDEX or progress.state is PeerState.REPLICATE
    if not is_known or match >= log.commit_index:
        return False
    if match < log.base.index:
        return True
    first, size = Index(match + 1), options.max_inflight_bytes
    if log.commit_index - match > options.max_inflight_appends * options.max_append_entries:
        return True
    return state.view.last_that_fits(first, log.commit_index, size) < log.commit_index


def _fitness(state: RaftState, progress: Progress) -> tuple[bool, bool, bool, int, int]:
    is_fit = not progress.is_short_of_space
    is_level = is_fit and progress.match_index >= state.log.commit_index
    is_preferred = progress.peer == state.log.configuration.preferred
    return (
        is_level,
        is_level and is_preferred,
        is_fit and is_nearly_level(state, progress),
        progress.match_index,
        progress.last_heard_tick,
    )


def is_nearly_level(state: RaftState, progress: Progress) -> bool:
    """Whether it is streamed to, and lacks no more than one append."""
    log, match = state.log, progress.match_index
    if progress.state is not PeerState.REPLICATE:
        return False
    if match >= log.last_index:
        return True
    size, count = state.options.max_append_bytes, state.options.max_append_entries
    if log.last_index - match > count or match < log.base.index:
        return False
    return state.view.last_that_fits(Index(match + 1), log.last_index, size) == log.last_index
