"""What a node does when a leader speaks: check, truncate, append, acknowledge.

Every message that can change the log is fenced by its term and by the entry before it, and what
reaches this module has been admitted (`dledger/core/admission.py`): its entries follow each other,
and nothing that is settled here is disputed. The commit index is clamped to what this leader has
shown to be in its own log (`verified_index`), nothing below the commit index is ever touched, and
an acknowledgement names durable entries only.

Source: Raft paper figure 2 (AppendEntries), §5.3; DLedger #278, #316 for what the clamps prevent.
"""

from __future__ import annotations

from dledger.core.errors import InvariantViolation
from dledger.core.roles import become_follower
from dledger.core.state import RaftState
from dledger.core.types import (
    NO_INDEX,
    NO_TERM,
    AppendRequest,
    AppendResponse,
    EntryMeta,
    HeartbeatRequest,
    HeartbeatResponse,
    Index,
    LogTruncated,
    NodeId,
    Role,
    SnapshotOffer,
)


def on_append_request(state: RaftState, message: AppendRequest) -> None:
    """Make the log agree with the leader's, as far as the message shows it."""
    on_leader_heard(state, message.sender)
    log = state.log
    previous, entries = message.prev_index, message.entries
    last_new = Index(previous + len(entries))
    if previous < log.commit_index:
        if last_new <= log.commit_index:
            _acknowledge(state, message.sender, log.commit_index)
            return
        entries = entries[log.commit_index - previous :]
    elif not log.matches(previous, message.prev_term):
        _refuse(state, message)
        return
    _take_entries(state, entries)
    state.verified_index = max(state.verified_index, last_new)
    _commit_to(state, message.commit_index)
    _acknowledge(state, message.sender, last_new)


def on_snapshot_offer(state: RaftState, message: SnapshotOffer) -> None:
    """Acknowledge the base of the leader's log if it is here; else it is to be got."""
    on_leader_heard(state, message.sender)
    log, base = state.log, message.base
    if base.index <= log.commit_index:
        # It is older than what is here (`test_s47`).
        _acknowledge(state, message.sender, log.commit_index)
    elif log.matches(base.index, base.term):
        state.verified_index = max(state.verified_index, base.index)
        _commit_to(state, base.index)
        _acknowledge(state, message.sender, base.index)
    else:
        state.offer = message


def on_heartbeat_request(state: RaftState, message: HeartbeatRequest) -> None:
    """Stay loyal, learn the commit index, say where the log ends."""
    on_leader_heard(state, message.sender)
    _commit_to(state, message.commit_index)
    log = state.log
    state.overtaking.heard_commit_index = message.commit_index
    state.send(
        HeartbeatResponse(
            state.node,
            message.sender,
            state.term,
            message.read_context,
            log.last_index,
            state.disk.is_unfit or state.is_in_doubt,
        )
    )
    if message.commit_index > max(log.commit_index, state.verified_index):
        # The leader believes that this node has entries which it hasn't seen verified: it was
        # restarted, or its disk was wiped (`test_s43`). Ask to be probed.
        state.send(
            AppendResponse(
                state.node,
                message.sender,
                state.term,
                accepted=False,
                conflict_first_index=Index(log.last_index + 1),
                last_index=log.last_index,
            )
        )


def on_entries_durable(state: RaftState) -> None:
    """The disk made progress: give the acknowledgement that is owed, as far as it goes (ADR 3)."""
    if state.ack_wanted_index == NO_INDEX or state.term_leader is None or state.is_in_doubt:
        return
    _send_acknowledgement(state, state.term_leader)
    if state.ack_wanted_index <= state.log.durable_index:
        state.ack_wanted_index = NO_INDEX


def on_leader_heard(state: RaftState, sender: NodeId) -> None:
    """A message of this term's leader came: follow it, and start the clock again."""
    if state.role is not Role.FOLLOWER:
        become_follower(state, state.term, sender, reason="heard the leader")
    state.leader_heard_tick = state.now_tick
    if state.leader is None:
        state.set_leader(sender)
    if state.suspicion_attempt or state.campaigns or state.election_elapsed_ticks:
        state.suspicion_attempt = state.campaigns = 0
        state.reset_election_timer()


def _take_entries(state: RaftState, entries: tuple[EntryMeta, ...]) -> None:
    """Append what is new; truncate only where a term really differs (`test_s29`)."""
    log = state.log
    first_new = len(entries)
    for position, entry in enumerate(entries):
        if entry.index > log.last_index:
            first_new = position
            break
        if log.term_at(entry.index) != entry.term:
            _truncate(state, entry.index)
            first_new = position
            break
    if first_new == len(entries):
        return
    for entry in entries[first_new:] if first_new else entries:
        log.append(entry.term, entry.size, entry.configuration)
    state.persists.want_append(entries[first_new].index, log.last_index)


def _truncate(state: RaftState, index: Index) -> None:
    if index <= state.verified_index:
        raise InvariantViolation(f"the leader of term {state.term} contradicts itself at {index}")
    state.log.truncate_from(index)
    state.persists.want_truncation(index)
    state.emit(LogTruncated(index, state.term))


def _commit_to(state: RaftState, leader_commit: Index) -> None:
    """Never beyond what this leader has verified (`test_s41`)."""
    index = min(leader_commit, state.verified_index)
    if index > state.log.commit_index:
        state.log.commit_to(index)


def _acknowledge(state: RaftState, leader: NodeId, last: Index) -> None:
    """Acknowledge `last` now if it is durable here; owe the answer until then otherwise. It says
    that everything before is held, too, so it is owed while that isn't so."""
    if last <= state.log.durable_index and not state.is_in_doubt:
        _send_acknowledgement(state, leader)
    else:
        state.ack_wanted_index = max(state.ack_wanted_index, last)


def _send_acknowledgement(state: RaftState, leader: NodeId) -> None:
    """Name what is both durable here and known to be in this leader's log."""
    state.send(
        AppendResponse(state.node, leader, state.term, accepted=True, match_index=state.held_index)
    )


def _refuse(state: RaftState, message: AppendRequest) -> None:
    log = state.log
    conflict_term, conflict_first = NO_TERM, Index(log.last_index + 1)
    if message.prev_index <= log.last_index:
        conflict_term = log.term_at(message.prev_index)
        conflict_first = log.first_of_run(message.prev_index)
    state.send(
        AppendResponse(
            state.node,
            message.sender,
            state.term,
            accepted=False,
            rejected_prev_index=message.prev_index,
            conflict_term=conflict_term,
            conflict_first_index=conflict_first,
            last_index=log.last_index,
        )
    )
