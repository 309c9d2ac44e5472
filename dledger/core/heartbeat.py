"""The leader's pulse: heartbeat rounds, what their answers prove, and reads that wait for them.

Rounds are numbered. An answer to round n proves three things: the peer lives (CheckQuorum), this
node still led when round n began (ReadIndex), and an append sent well before round n that is not
acknowledged is lost (the window recovers), if enough time has passed as well: reads begin rounds of
their own.

Source: Raft paper §5.2; dissertation §6.2 (CheckQuorum), §6.4 (ReadIndex).
"""

from __future__ import annotations

from dledger.core.errors import ReadRefused
from dledger.core.progress import Moment, PeerState
from dledger.core.quorum import agreed, has_quorum
from dledger.core.replication import become_probe
from dledger.core.roles import become_follower, end_transfer
from dledger.core.state import RaftState
from dledger.core.transfer import hand_over_if_caught_up
from dledger.core.types import (
    HeartbeatRequest,
    HeartbeatResponse,
    Index,
    NodeId,
    ReadReady,
    Role,
)


def on_leader_tick(state: RaftState) -> None:
    """One tick of a leader: a heartbeat when it is time, and a look at the quorum."""
    state.heartbeat_elapsed_ticks += 1
    if state.heartbeat_elapsed_ticks < state.options.heartbeat_ticks:
        return
    state.heartbeat_elapsed_ticks = 0
    if state.options.check_quorum and not _heard_a_quorum(state):
        end_transfer(state, "aborted")
        become_follower(state, state.term, None, reason="no quorum heard")
        return
    start_round(state)


def start_round(state: RaftState) -> None:
    """Send every peer a heartbeat of a new round. What needs nobody's answer is confirmed at once:
    the configuration may have changed since reads were asked, and nobody be left to answer."""
    state.heartbeat_round += 1
    commit_index = state.log.commit_index
    for progress in state.peers.values():
        state.send(
            HeartbeatRequest(
                sender=state.node,
                to=progress.peer,
                term=state.term,
                commit_index=min(commit_index, progress.match_index),
                read_context=state.heartbeat_round,
            )
        )
    _confirm_reads(state)


def on_heartbeat_response(state: RaftState, message: HeartbeatResponse) -> None:
    """Take the answer to a heartbeat of this term."""
    progress = state.peers.get(message.sender)
    if state.role is not Role.LEADER or progress is None:
        return
    progress.last_heard_tick = state.now_tick
    round_number = message.read_context
    if round_number > progress.acked_round:
        progress.acked_round = round_number
        progress.is_short_of_space = message.is_short_of_space
        _confirm_reads(state)
    answered, heartbeat_ticks = Moment(round_number, state.now_tick), state.options.heartbeat_ticks
    if progress.state is PeerState.PROBE:
        progress.note_last_index(message.last_index)
        if progress.has_lost_probe(answered, message.last_index, heartbeat_ticks):
            progress.on_probe_lost(heartbeat_ticks)
            state.appends_due = True
    elif progress.state is PeerState.SNAPSHOT:
        state.appends_due = True
    elif progress.state is PeerState.REPLICATE and progress.has_lost_appends(
        answered, message.last_index, heartbeat_ticks
    ):
        become_probe(state, progress, Index(progress.match_index + 1))
    if state.transfer is not None and state.transfer.target == message.sender:
        hand_over_if_caught_up(state)


def read_index(state: RaftState, context: int) -> None:
    """Begin linearizable read `context`; see `Raft.read_index`."""
    if state.role is not Role.LEADER:
        raise ReadRefused("not the leader", state.leader)
    # Until then the commit index may be behind what an earlier leader acknowledged (58).
    if state.log.commit_index < state.term_start_index:
        raise ReadRefused("no entry of this term is committed yet", state.leader)
    if len(state.reads) >= state.options.max_pending_reads:
        raise ReadRefused("too many reads are pending", state.leader)
    if has_quorum(state.log.configuration, (state.node,)):
        state.read_results.append(ReadReady(context, state.log.commit_index))
        return
    # The round must begin after the read: an answer to one under way proves too little.
    state.reads_round = state.heartbeat_round + 1
    state.reads.add(context, state.log.commit_index, state.reads_round)


def start_round_for_reads(state: RaftState) -> None:
    """Begin the round that reads of this turn wait for, if none has begun since."""
    if state.reads_round > state.heartbeat_round:
        start_round(state)


def _confirm_reads(state: RaftState) -> None:
    if not len(state.reads):
        return

    def answered_round(node: NodeId) -> int:
        if node == state.node:
            return state.heartbeat_round
        progress = state.peers.get(node)
        return progress.acked_round if progress is not None else 0

    confirmed = agreed(state.log.configuration, answered_round)
    state.read_results.extend(state.reads.confirm(confirmed))


def _heard_a_quorum(state: RaftState) -> bool:
    window = state.options.election_timeout_max_ticks
    heard = {
        progress.peer
        for progress in state.peers.values()
        if state.now_tick - progress.last_heard_tick <= window
    }
    return has_quorum(state.log.configuration, heard | {state.node})
