"""What a sick disk of one's own means for leading: hand over while a better node can take it.

Three things are wrong with a disk that doesn't fail: it has no room, so that proposals are refused
although a majority has space; it is stalled, so that what others made committed piles up here
unwritten; or committed entries have rotted on it and are being got back (ADR 39). A fourth is no
fault of the disk, which goes on taking entries: what is committed can't be applied here, as by a
program that is older than the log (ADR 23), so that nobody would be served. This decides when a
leader hands over because of them and to whom, and how long an unfit node leaves an election to the
others. It must never move leadership to a node that isn't known to be well, or that couldn't commit
without a disk that takes nothing, never faster than `hand_over_interval_ticks` allows, and never
keep the only electable node from leading: where nobody is better everything stays as it is.

Commits don't wait for a slow disk of the leader's (dissertation §10.2.1), so slowness alone is no
reason; see docs/adr/0017-a-leader-with-a-sick-disk.md.

Source: TiKV's evict-slow-store scheduler for the idea; the rules are ours.
"""

from __future__ import annotations

from dledger.core.progress import PeerState, Progress
from dledger.core.quorum import has_quorum
from dledger.core.state import RaftState
from dledger.core.transfer import transfer_leadership
from dledger.core.types import NO_INDEX, HandOverBegun

# What a peer says of itself counts when it answered a heartbeat sent after so many had been due
# since this disk got sick: what filled it may be filling the peer's at the same moment. Reads begin
# rounds of their own, any number in a moment, so time is what counts, and when the round began.
_BEATS_UNTIL_TRUSTED = 2
# After a broken stream candidates follow each other within the suspicion delay; so many of them
# leave the others time to be elected.
_SUSPICION_DELAYS_YIELDED = 4


def report_fitness(state: RaftState, *, is_short: bool, can_serve: bool) -> None:
    """Note whether this node is fit to lead; see `Raft.report_fitness`."""
    disk = state.disk
    was_unfit = disk.is_unfit
    disk.is_short, disk.can_serve = is_short, can_serve
    if disk.is_unfit and not was_unfit:
        disk.doubt_peers(state.now_tick)


def yielded_ticks(state: RaftState) -> int:
    """How much longer than its timeout this node waits before it campaigns: a whole election, if
    it is unfit, so that one that could lead is elected first. It is a delay and no more."""
    if not state.disk.is_unfit:
        return 0
    if state.suspicion_attempt:
        return _SUSPICION_DELAYS_YIELDED * state.options.suspicion_delay_max_ticks
    return state.options.election_timeout_max_ticks


def hand_over_if_disk_is_sick(state: RaftState) -> None:
    """One tick of a leader: hand over if its disk is sick and a voter is known to be well."""
    disk = state.disk
    disk.on_tick(state.moment, _BEATS_UNTIL_TRUSTED * state.options.heartbeat_ticks)
    is_stalled = _is_stalled(state)
    takes_entries = not disk.is_short and not is_stalled and not state.is_in_doubt
    if takes_entries and disk.can_serve:
        return
    if state.now_tick < disk.not_before_tick or state.transfer is not None:
        return
    successor = _successor(state, takes_entries=takes_entries)
    if successor is None:
        return
    disk.not_before_tick = state.now_tick + state.options.hand_over_interval_ticks
    state.emit(HandOverBegun(successor.peer, _reason(state)))
    transfer_leadership(state, successor.peer)


def _reason(state: RaftState) -> str:
    if state.is_in_doubt:
        return "committed entries have rotted"
    if not state.disk.can_serve:
        return "what is committed can't be applied"
    return "the disk is full" if state.disk.is_short else "the disk is stalled"


def _is_stalled(state: RaftState) -> bool:
    """Whether an entry that was committed without this disk has waited for it too long."""
    disk, log = state.disk, state.log
    if disk.behind_index == NO_INDEX or log.durable_index >= disk.behind_index:
        disk.behind_index = log.commit_index if log.durable_index < log.commit_index else NO_INDEX
        disk.behind_since_tick = state.now_tick
    if disk.behind_index == NO_INDEX:
        return False
    return state.now_tick - disk.behind_since_tick >= state.options.stalled_disk_ticks


def _successor(state: RaftState, *, takes_entries: bool) -> Progress | None:
    """The best voter that could lead at once, and whose entries would be committed; None if there
    is none.

    Args:
        takes_entries: this node's disk counts for a majority as before, whoever leads.
    """
    with_room = {peer: each for peer, each in state.peers.items() if has_room(state, each)}
    counting = {*with_room, state.node} if takes_entries else with_room.keys()
    if not has_quorum(state.log.configuration, counting):
        return None
    voters = set(state.other_voters())
    fit = [
        progress
        for peer, progress in with_room.items()
        if peer in voters and is_caught_up(state, progress)
    ]
    preferred = state.log.configuration.preferred
    return max(
        fit,
        key=lambda each: (each.peer == preferred, each.match_index, each.last_heard_tick),
        default=None,
    )


def has_room(state: RaftState, progress: Progress) -> bool:
    """Whether it has room, by its own and recent word."""
    fresh_after = state.disk.fresh_after
    silent_ticks = state.now_tick - progress.last_heard_tick
    return (
        not progress.is_short_of_space
        and fresh_after is not None
        and progress.acked_round > fresh_after
        and silent_ticks < state.options.election_timeout_min_ticks
    )


def is_caught_up(state: RaftState, progress: Progress) -> bool:
    """Whether it has all that is committed on its disk, and is streamed the rest."""
    return progress.state is PeerState.REPLICATE and progress.match_index >= state.log.commit_index
