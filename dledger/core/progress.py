"""What a leader knows of one peer, and how fast it may send to it.

A peer is in one of three states (of etcd-io/raft's): PROBE finds out where its log agrees, one
append at a time; REPLICATE streams appends ahead of their acknowledgements, up to a window;
SNAPSHOT offers it the log's base, as it needs entries that are gone (ADR 43). This
module owns the window and the transitions; it neither sends nor looks at the log.

Rounds of heartbeats prove, and ticks are patience: reads begin rounds as fast as they come, so of a
peer that is merely busy a hundred rounds may be answered in one tick.

Bounds: the window holds at most `max_inflight_appends` messages, and no append is added once
`max_inflight_bytes` are under way.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from dledger.core.types import NO_INDEX, DiskId, Index, NodeId, RaftOptions

# An append is taken for lost when this many heartbeats after it have been answered...
_BEATS_UNTIL_LOST = 2  # ... while the peer's log shows that it never arrived,
_BEATS_UNTIL_ACK_LOST = 8  # ... or that it arrived: then its disk may just be slow.
_BEATS_UNTIL_OFFERED = 4  # heartbeats from one offer of the base to the next
_MOST_BEATS_PER_PROBE = 20  # from one probe that isn't taken to the next: a second, as a rule


class Moment(NamedTuple):
    """When something was sent, or its answer came: the heartbeat round that was under way then, or
    that was answered, and the tick."""

    round: int
    tick: int

    def is_past(self, sent: Moment, beats: int, heartbeat_ticks: int) -> bool:
        """Whether this is the answer to a round that began after what was `sent`, by so many rounds
        more, and so many heartbeats' time has passed."""
        is_proof = self.round > sent.round + beats
        return is_proof and self.tick - sent.tick >= beats * heartbeat_ticks


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
        "offer_due_tick",
        "peer",
        "probe_last_index",
        "probe_paused",
        "probe_sent",
        "probe_wait_ticks",
        "progressed",
        "seen_last_index",
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
        self.progressed = Moment(0, now_tick)  # when the window last moved
        self.probe_paused = False
        self.probe_sent = Moment(0, now_tick)  # the outstanding one
        self.probe_wait_ticks = 0  # at least, until the outstanding one is taken for lost
        self.seen_last_index = NO_INDEX  # of the peer's log, while it is probed
        self.probe_last_index: Index | None = None  # its last entry; None: it had none
        self.offer_due_tick = 0  # when the base is offered next
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
        self.probe_wait_ticks = 0
        self._clear_window()

    def become_snapshot(self) -> None:
        """Send no entries: what this peer needs next is gone."""
        self.state = PeerState.SNAPSHOT
        self.offer_due_tick = 0
        self.probe_paused = False
        self._clear_window()

    def become_replicate(self) -> None:
        """Stream from the entry after the matching one."""
        self.state = PeerState.REPLICATE
        self.next_index = Index(self.match_index + 1)
        self._clear_window()

    def take_offer(self, now_tick: int, heartbeat_ticks: int) -> bool:
        """Tell whether the base is to be offered now; then it isn't again for a few heartbeats."""
        if now_tick < self.offer_due_tick:
            return False
        self.offer_due_tick = now_tick + _BEATS_UNTIL_OFFERED * heartbeat_ticks
        return True

    def on_probe_sent(self, last: Index | None, sent: Moment) -> None:
        """One probe is out: wait for its answer, or for proof that it was lost."""
        self.probe_paused = True
        self.probe_sent = sent
        self.probe_last_index = last

    def on_probe_refused(self, next_index: Index) -> None:
        """It arrived, and another one is wanted at once."""
        self.next_index = next_index
        self.probe_paused = False
        self.probe_wait_ticks = 0

    def on_probe_lost(self, heartbeat_ticks: int) -> None:
        """Send another one. The next is waited for twice as long: a peer that can't take entries
        loses each, and all that it lacks would be sent to it again and again."""
        self.probe_paused = False
        wait_ticks = max(heartbeat_ticks, 2 * self.probe_wait_ticks)
        self.probe_wait_ticks = min(wait_ticks, _MOST_BEATS_PER_PROBE * heartbeat_ticks)

    def note_last_index(self, peer_last_index: Index) -> None:
        """Where its log ends now. Where that is another place it takes entries, or began anew."""
        if peer_last_index != self.seen_last_index:
            self.seen_last_index = peer_last_index
            self.probe_wait_ticks = 0

    def has_lost_probe(
        self, answered: Moment, peer_last_index: Index, heartbeat_ticks: int
    ) -> bool:
        """Tell whether the answer to a heartbeat says that the probe is gone.

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
        if answered.tick - self.probe_sent.tick < self.probe_wait_ticks:
            return False
        patience = _BEATS_UNTIL_ACK_LOST if arrived else 0
        return answered.is_past(self.probe_sent, patience, heartbeat_ticks)

    def on_append_sent(self, last: Index, size_bytes: int, sent: Moment) -> None:
        """Entries up to `last` are under way; the next append follows them."""
        if not self._inflight:
            self.progressed = sent
        self._inflight.append((last, size_bytes))
        self._inflight_bytes += size_bytes
        self.next_index = Index(last + 1)

    def advance_match(self, match_index: Index, now: Moment) -> bool:
        """The peer has `[1, match_index]` on disk. Tell whether that is news."""
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        self.next_index = max(self.next_index, Index(match_index + 1))
        self.progressed = now
        inflight = self._inflight
        while inflight and inflight[0][0] <= match_index:
            self._inflight_bytes -= inflight.popleft()[1]
        return True

    def has_lost_appends(
        self, answered: Moment, peer_last_index: Index, heartbeat_ticks: int
    ) -> bool:
        """Tell whether the answer to a heartbeat proves the window stuck.

        The answer is to a heartbeat sent well after the oldest append under way, so with one
        ordered stream per peer that append, or its acknowledgement, is gone. The tail of the
        stream would never be missed otherwise: nothing follows it that could be refused.
        """
        if not self._inflight:
            return False
        arrived = peer_last_index >= self._inflight[-1][0]
        patience = _BEATS_UNTIL_ACK_LOST if arrived else _BEATS_UNTIL_LOST
        return answered.is_past(self.progressed, patience, heartbeat_ticks)

    def _clear_window(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0
