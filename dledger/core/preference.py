"""Handing over to the member that the configuration prefers as the leader.

A leader that isn't it hands over to it once it has been well for a while: it votes, is streamed to,
has every committed entry on its disk, was heard lately and has room, by its own recent word (what
has rotted, or is full, is no room, ADR 17, ADR 39). It is a transfer like an operator's. The wait
begins with each leadership and with each moment in which the member isn't well, and doubles with
each try of this node's until the member has led, so a member that comes and goes moves leadership
no oftener than it has been well for so long, and one that can't take it costs ever less. It must
never keep anybody from leading: who is preferred and isn't well is a voter like any
(docs/adr/0045-a-preferred-leader.md).
"""

from __future__ import annotations

from dledger.core.sick_disk import has_room, is_caught_up
from dledger.core.state import RaftState
from dledger.core.transfer import transfer_leadership
from dledger.core.types import HandOverBegun, NodeId

MOST_DOUBLINGS = 6  # of the wait: some ten minutes, where it begins with ten seconds


def hand_over_to_preferred(state: RaftState) -> None:
    """One tick of a leader."""
    preferred, seen = state.log.configuration.preferred, state.preference
    if preferred != seen.target:
        seen.prefer(preferred)
    if preferred is None or preferred == state.node:
        return
    if not _is_well(state, preferred):
        seen.well_since_tick = None
        return
    if seen.well_since_tick is None:
        seen.well_since_tick = state.now_tick
    wait_ticks = state.options.preferred_after_ticks << min(seen.tries, MOST_DOUBLINGS)
    if state.now_tick - seen.well_since_tick < wait_ticks or not _is_settled(state):
        return
    seen.tries += 1
    seen.well_since_tick = state.now_tick
    state.emit(HandOverBegun(preferred, "it is preferred"))
    transfer_leadership(state, preferred)


def _is_settled(state: RaftState) -> bool:
    """Whether nothing is under way that a hand-over would be in the way of."""
    log = state.log
    is_ready = log.commit_index >= state.term_start_index and state.transfer is None
    is_joint = bool(log.configuration.voters_outgoing)
    return is_ready and not is_joint and not log.has_uncommitted_configuration()


def _is_well(state: RaftState, node: NodeId) -> bool:
    """Whether it could lead at once, and commit."""
    progress = state.peers.get(node)
    if progress is None or node not in state.log.configuration.voters:
        return False
    return has_room(state, progress) and is_caught_up(state, progress)
