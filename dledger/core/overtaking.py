"""A follower takes over from a leader that can't serve, and doesn't see it.

A leader that can't apply what is committed hands over by itself (`dledger/core/sick_disk.py`). One
of an older release may know no such rule, or apply it only with a majority beside itself: with one
member of three away it would lead for ever, and nobody would be served. So a voter that knows of
its leader, by what that said of its program, that it can't read the log campaigns as if it had been
handed over to: once it holds everything that it has heard of, after a while that gives the leader
the time to do it by itself, and again after as long. It is an election like any other: who lacks
something loses it.

    state     on                                                       becomes
    loyal     the leader is known not to be able                       waiting, for a random time
    waiting   it is; another leader, another term, this one campaigns  loyal
    waiting   its time is over, and it holds what it heard of          candidate
"""

from __future__ import annotations

from dledger.core.election import campaign_at_once
from dledger.core.state import RaftState
from dledger.core.types import Role


def note_leader(state: RaftState, *, can_serve: bool) -> None:
    """What is known of the leader's program; see `Raft.report_fitness`."""
    overtaking, options = state.overtaking, state.options
    follows = state.role is Role.FOLLOWER and state.leader is not None
    if can_serve or not follows:
        overtaking.due_tick = None
    elif overtaking.due_tick is None or overtaking.term != state.term:
        overtaking.term = state.term
        wait = state.rng.randint(0, options.election_timeout_max_ticks)
        overtaking.due_tick = state.now_tick + options.hand_over_interval_ticks + wait


def overtake_if_due(state: RaftState) -> None:
    """One tick of a follower."""
    overtaking, log = state.overtaking, state.log
    if overtaking.due_tick is None or state.now_tick < overtaking.due_tick:
        return
    if overtaking.term != state.term or state.leader is None:
        overtaking.due_tick = None
        return
    holds_all = overtaking.heard_commit_index <= log.commit_index
    is_durable = log.durable_index == log.last_index <= max(state.verified_index, log.commit_index)
    if holds_all and is_durable and not state.disk.is_unfit:
        overtaking.due_tick = None
        campaign_at_once(state)
