"""What a leader knows of one peer, and how fast it may send to it.

A peer is in one of three states (of etcd-io/raft's): PROBE finds out where its log agrees, one
append at a time; REPLICATE streams appends ahead of their acknowledgements, up to a window;
SNAPSHOT offers it the log's base, as it needs entries that are gone (ADR 43). This
module owns the window and the transitions; it neither sends nor looks at the log.

Bounds: the window holds at most `max_inflight_appends` messages, and no append is added once
`max_inflight_bytes` are under way.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from dledger.core.types import NO_INDEX, DiskId, Index, NodeId, RaftOptions

# An append is taken for lost when this many heartbeat rounds after it have been answered...
_ROUNDS_UNTIL_LOST = 2  # ... while the peer's log shows that it never arrived,
_ROUNDS_UNTIL_ACK_LOST = 8  # ... or that it arrived: then its disk may just be slow.
ROUNDS_UNTIL_OFFERED = 4  # heartbeat rounds from one offer of the base to the next


class PeerState(Enum):
    """How a leader treats a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One peer as its leader sees it; lives as long as the leadership, and the peer's disk."""

    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "acked_round",
        "commit_sent",
        "disk",
        "is_short_of_space",
        "last_heard_tick",
        "match_index",
        "next_index",
        "offered_round",
        "peer",
        "probe_last_index",
        "probe_paused",
        "probe_round",
        "progress_round",
        "state",
    )

    def __init__(self, peer: NodeId, disk: DiskId, next_index: Index, now_tick: int) -> None:
        self.peer = peer
        self.disk = disk
        self.state = PeerState.PROBE
        self.match_index = NO_INDEX  # durable on the peer, as far as it has said
        self.next_index = next_index
        self.commit_sent = NO_INDEX
        self.last_heard_tick = now_tick
        self.is_short_of_space = False  # as of its newest heartbeat answer
        self.acked_round = 0  # the newest heartbeat round it has answered
        self.progress_round = 0  # the round at which the window last moved
        self.probe_paused = False
        self.probe_round = 0  # the round at which the outstanding probe was sent
        self.probe_last_index: Index | None = None  # its last entry; None: it had none
        self.offered_round = 0  # the heartbeat round at which the base was offered last
        self._inflight: deque[tuple[Index, int]] = deque()  # (last index, bytes) per append
        self._inflight_bytes = 0

    @property
    def inflight_count(self) -> int:
        """Appends sent and not acknowledged."""
        return len(self._inflight)

    def window_is_full(self, options: RaftOptions) -> bool:
        """Whether replication to this peer has to wait for acknowledgements."""
        return (
            len(self._inflight) >= options.max_inflight_appends
            or self._inflight_bytes >= options.max_inflight_bytes
        )

    def become_probe(self, next_index: Index) -> None:
        """Forget what is under way and find the agreeing index from `next_index` down."""
        self.state = PeerState.PROBE
        self.next_index = next_index
        self.probe_paused = False
        self._clear_window()

    def become_snapshot(self) -> None:
        """Send no entries: what this peer needs next is gone."""
        self.state = PeerState.SNAPSHOT
        self.offered_round = -ROUNDS_UNTIL_OFFERED
        self.probe_paused = False
        self._clear_window()

    def become_replicate(self) -> None:
        """Stream from the entry after the matching one."""
        self.state = PeerState.REPLICATE
        self.next_index = Index(self.match_index + 1)
        self._clear_window()

    def on_probe_sent(self, last: Index | None, round_number: int) -> None:
        """One probe is out: wait for its answer, or for proof that it was lost."""
        self.probe_paused = True
        self.probe_round = round_number
        self.probe_last_index = last

    def has_lost_probe(self, round_number: int, peer_last_index: Index) -> bool:
        """Tell whether an answer to heartbeat `round_number` says that the probe is gone.

        A probe whose entries have arrived gets time to become durable: sending a full message
        again with every heartbeat would drown a peer whose disk is slow. A peer that matches
        nothing yet may just have a longer log of its own: its end proves no arrival.
        """
        if not self.probe_paused:
            return False
        arrived = (
            self.match_index > NO_INDEX
            and self.probe_last_index is not None
            and peer_last_index >= self.probe_last_index
        )
        return round_number > self.probe_round + (_ROUNDS_UNTIL_ACK_LOST if arrived else 0)

    def on_append_sent(self, last: Index, size_bytes: int, round_number: int) -> None:
        """Entries up to `last` are under way; the next append follows them."""
        if not self._inflight:
            self.progress_round = round_number
        self._inflight.append((last, size_bytes))
        self._inflight_bytes += size_bytes
        self.next_index = Index(last + 1)

    def advance_match(self, match_index: Index, round_number: int) -> bool:
        """The peer has `[1, match_index]` on disk. Tell whether that is news."""
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        self.next_index = max(self.next_index, Index(match_index + 1))
        self.progress_round = round_number
        inflight = self._inflight
        while inflight and inflight[0][0] <= match_index:
            self._inflight_bytes -= inflight.popleft()[1]
        return True

    def has_lost_appends(self, round_number: int, peer_last_index: Index) -> bool:
        """Tell whether an answer to heartbeat `round_number` proves the window stuck.

        The answer is to a heartbeat sent well after the oldest append under way, so with one
        ordered stream per peer that append, or its acknowledgement, is gone. The tail of the
        stream would never be missed otherwise: nothing follows it that could be refused.
        """
        if not self._inflight:
            return False
        arrived = peer_last_index >= self._inflight[-1][0]
        patience = _ROUNDS_UNTIL_ACK_LOST if arrived else _ROUNDS_UNTIL_LOST
        return round_number > self.progress_round + patience

    def _clear_window(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0
