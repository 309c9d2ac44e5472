"""The leader's side of replication: proposals, appends, acknowledgements, commit.

A proposal only extends the log; appends are made when effects are taken (`send_appends`), so
that one turn of the event loop becomes one append per peer. What that doesn't hold is sent in turns
to come (`send_more`, ADR 27). The core names ranges, the driver reads the bytes (ADR 4). A peer's
refusal moves it back by whole terms (`test_s32`), and the commit index moves only over entries of
the leader's own term (§5.4.2).

Source: Raft paper §5.3, §5.4.2, figure 2; dissertation §10.2.1 (the leader's disk in parallel).
"""

from __future__ import annotations

from dledger.core.errors import (
    InvariantViolation,
    NotLeader,
    ProposalRefused,
    TooMuchUncommitted,
    TransferInProgress,
)
from dledger.core.membership import check_change
from dledger.core.progress import PeerState, Progress
from dledger.core.quorum import agreed
from dledger.core.roles import track_members
from dledger.core.state import RaftState
from dledger.core.transfer import hand_over_if_caught_up
from dledger.core.types import (
    NO_INDEX,
    NO_TERM,
    AppendRange,
    AppendResponse,
    Configuration,
    EntryKind,
    Index,
    NodeId,
    PeerStateChanged,
    Proposed,
    Role,
    SnapshotOffer,
)


def propose(
    state: RaftState, size: int, kind: EntryKind, configuration: Configuration | None
) -> Proposed:
    """Append one entry of `size` bytes to the leader's log; see `Raft.propose`."""
    if state.role is not Role.LEADER:
        raise NotLeader(state.leader)
    if state.transfer is not None:
        raise TransferInProgress(state.transfer.target)
    if state.noop is not None:
        raise ProposalRefused("just elected: the no-op's frame has to be built first")
    log = state.log
    uncommitted = log.uncommitted_bytes()
    limit = state.options.max_uncommitted_bytes
    # An empty tail takes any size, otherwise a large entry could never be written.
    if uncommitted and uncommitted + size > limit:
        raise TooMuchUncommitted(uncommitted, limit)
    if kind is EntryKind.CONFIGURATION or configuration is not None:
        _check_configuration_proposal(state, kind, configuration)
    index = log.append(state.term, size, configuration)
    state.persists.want_append(index, index)
    state.appends_due = True
    if configuration is not None:
        track_members(state)
    return Proposed(index, state.term)


def send_appends(state: RaftState) -> None:
    """Send every peer one append, if its state and window allow; `has_more_to_send` says whether
    they allow another one."""
    state.appends_due = state.has_more_to_send = False
    for progress in state.peers.values():
        _send_to(state, progress)
        if _is_behind(state, progress):
            state.has_more_to_send = True


def send_more(state: RaftState) -> None:
    """Send every peer another append, if it still is to have one."""
    if state.has_more_to_send:
        state.appends_due = True


def on_append_response(state: RaftState, message: AppendResponse) -> None:
    """Take an acknowledgement or a refusal of this term."""
    progress = state.peers.get(message.sender)
    if state.role is not Role.LEADER or progress is None:
        return
    progress.last_heard_tick = state.now_tick
    if message.accepted:
        _on_accepted(state, progress, message.match_index)
    else:
        _on_refused(state, progress, message)
    state.appends_due = True


def advance_commit(state: RaftState) -> None:
    """Commit what a majority has on disk, if it is of this leader's term.

    An entry of an older term is never committed by counting (figure 8, `test_s27`); the
    leader's log holds only its own term from `term_start_index` on.
    """
    index = agreed(state.log.configuration, state.match_of)
    if index > state.log.commit_index and index >= state.term_start_index:
        state.log.commit_to(Index(index))
        state.appends_due = state.appends_due or state.options.eager_commit


def peer_unreachable(state: RaftState, peer: NodeId) -> None:
    """Stop streaming to `peer`: what was under way may be lost (`test_s35`)."""
    progress = state.peers.get(peer)
    if progress is None or progress.state is PeerState.PROBE:
        return
    # Who was offered the base may come back with it.
    known = max(progress.match_index, state.log.base.index)
    if progress.state is PeerState.REPLICATE:
        known = progress.match_index
    become_probe(state, progress, Index(known + 1))


def become_probe(state: RaftState, progress: Progress, next_index: Index) -> None:
    """Find again where the peer's log agrees, starting at `next_index`."""
    progress.become_probe(next_index)
    state.emit(PeerStateChanged(progress.peer, PeerState.PROBE.value))
    state.appends_due = True


def _check_configuration_proposal(
    state: RaftState, kind: EntryKind, configuration: Configuration | None
) -> None:
    if kind is not EntryKind.CONFIGURATION or configuration is None:
        raise ProposalRefused("a CONFIGURATION entry, and no other, carries a configuration")
    if state.log.commit_index < state.term_start_index:
        raise ProposalRefused("no entry of this term is committed yet: retry")
    if state.log.has_uncommitted_configuration():
        raise ProposalRefused("another configuration change is pending: retry")
    check_change(state, configuration)


def _become_snapshot(state: RaftState, progress: Progress) -> None:
    """What the peer needs next is gone from this log: it can only have the base (`test_s45`)."""
    progress.match_index = min(progress.match_index, Index(progress.next_index - 1))
    progress.become_snapshot()
    state.emit(PeerStateChanged(progress.peer, PeerState.SNAPSHOT.value))


def _offer(state: RaftState, progress: Progress) -> None:
    """Offer the base, and again a few heartbeats later: it may have been lost on the way."""
    if progress.take_offer(state.now_tick, state.options.heartbeat_ticks):
        state.send(SnapshotOffer(state.node, progress.peer, state.term, state.log.base))


def _send_to(state: RaftState, progress: Progress) -> None:
    if progress.state is not PeerState.SNAPSHOT and progress.next_index <= state.log.base.index:
        _become_snapshot(state, progress)
    if progress.state is PeerState.SNAPSHOT:
        _offer(state, progress)
        return
    if progress.state is PeerState.PROBE:
        if not progress.probe_paused:
            _send_one(state, progress)
        return
    log = state.log
    if _is_behind(state, progress):
        _send_one(state, progress)
    if (
        state.options.eager_commit
        and progress.state is PeerState.REPLICATE
        and progress.next_index > log.last_index
        and progress.inflight_count == 0
        and progress.commit_sent < min(log.commit_index, progress.match_index)
    ):
        _send_range(state, progress, Index(progress.next_index - 1), log.last_index)


def _is_behind(state: RaftState, progress: Progress) -> bool:
    """Whether there are entries that may be sent to the peer ahead of its acknowledgements."""
    return (
        progress.state is PeerState.REPLICATE
        and progress.next_index <= state.log.last_index
        and not progress.window_is_full(state.options)
    )


def _send_one(state: RaftState, progress: Progress) -> None:
    """Send the next append: entries that fit, or none when there are none."""
    log = state.log
    previous = Index(progress.next_index - 1)
    last = Index(min(log.last_index, previous + state.options.max_append_entries))
    size = log.bytes_between(progress.next_index, last) if last > previous else 0
    if last > progress.next_index and (size is None or size > state.options.max_append_bytes):
        last = _cut(state, progress.next_index, last)
        size = log.bytes_between(progress.next_index, last)
    _send_range(state, progress, previous, last)
    if progress.state is PeerState.PROBE:
        progress.on_probe_sent(last if last > previous else None, state.moment)
    else:
        # A size that was forgotten at commit counts as a full message.
        known = state.options.max_append_bytes if size is None else size
        progress.on_append_sent(last, known, state.moment)


def _cut(state: RaftState, first: Index, last: Index) -> Index:
    cut = Index(state.view.last_that_fits(first, last, state.options.max_append_bytes))
    if not first <= cut <= last:
        raise InvariantViolation(f"last_that_fits({first}, {last}) answered {cut}")
    return cut


def _send_range(state: RaftState, progress: Progress, previous: Index, last: Index) -> None:
    log = state.log
    progress.commit_sent = log.commit_index
    state.send(
        AppendRange(
            sender=state.node,
            to=progress.peer,
            term=state.term,
            prev_index=previous,
            prev_term=log.term_at(previous),
            first_index=Index(previous + 1),
            last_index=last,
            commit_index=log.commit_index,
        )
    )


def _on_accepted(state: RaftState, progress: Progress, match_index: Index) -> None:
    is_news = progress.advance_match(match_index, state.moment)
    has_base = progress.state is PeerState.SNAPSHOT and match_index >= state.log.base.index
    is_found = progress.state is PeerState.PROBE and match_index >= progress.next_index - 1
    if has_base or is_found:
        progress.become_replicate()
        state.emit(PeerStateChanged(progress.peer, PeerState.REPLICATE.value))
    if is_news:
        advance_commit(state)
        hand_over_if_caught_up(state)


def _on_refused(state: RaftState, progress: Progress, message: AppendResponse) -> None:
    rejected = message.rejected_prev_index
    if progress.state is PeerState.REPLICATE:
        # Below the match: an old refusal, or the peer lost what it had. A probe tells.
        next_index = Index(progress.match_index + 1)
        if rejected > progress.match_index:
            next_index = max(next_index, _next_index_by_hint(state, message))
        become_probe(state, progress, next_index)
    elif progress.state is PeerState.PROBE and rejected == progress.next_index - 1:
        progress.on_probe_refused(_next_index_by_hint(state, message))
        # A peer that refuses what it once acknowledged has lost its disk (`test_s43`). Taking
        # the match back is the cautious side: it can only delay a commit.
        progress.match_index = min(progress.match_index, Index(progress.next_index - 1))


def _next_index_by_hint(state: RaftState, message: AppendResponse) -> Index:
    """Skip a whole term per round: the peer's, or, if this log has it too, what is above it."""
    next_index = message.conflict_first_index
    if message.conflict_term != NO_TERM:
        last_of_term = state.log.last_with_term(message.conflict_term)
        if last_of_term != NO_INDEX:
            next_index = Index(last_of_term + 1)
    return Index(max(1, min(next_index, message.rejected_prev_index)))
