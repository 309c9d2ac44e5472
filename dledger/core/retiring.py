"""A leader that the configuration took out of the voters: it leads until that is committed, hands
over to a voter that has everything, and stops.

Until then it counts without itself, as any leader counts the voters. It must never stop before the
entry is committed: who hasn't that entry may still need it to vote. Handing over, and not only
stopping, spares the group an election timeout.

    leads ──its removal is committed──▶ hands over ──time is up, another leads──▶ follows

Source: Ongaro's dissertation, §4.2.2 (removing the current leader), §3.10 (handing over).
"""

from __future__ import annotations

from dledger.core.roles import become_follower
from dledger.core.state import RaftState
from dledger.core.transfer import transfer_leadership


def retire_if_voter_no_more(state: RaftState) -> None:
    """One tick of a leader."""
    log = state.log
    if log.configuration.is_voter(state.node):
        state.is_retiring = False
        return
    if log.has_uncommitted_configuration() or state.transfer is not None:
        return
    if state.is_retiring:
        become_follower(state, state.term, None, reason="a voter no more")
        return
    state.is_retiring = True
    transfer_leadership(state, None)
