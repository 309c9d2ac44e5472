"""Who is being filled holds the log's front: while it is there, for so long, and not on a full
disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from structlog.testing import capture_logs

from broker.filling import AWAY_S, HOLD_S, NEAR_ENTRIES, Filling, Giving, Missing
from dledger.core.types import Index, NodeId, PeerStatistics

PEER = NodeId("n2")
LONG = 1_000_000


def told(match_index: int, state: str = "replicate", *, is_there: bool = True) -> PeerStatistics:
    index = Index(match_index)
    return PeerStatistics(state, index, Index(index + 1), 0, is_there, False, True)


@dataclass
class Leader:
    """What a leader knows, set by the test."""

    peers: dict[NodeId, PeerStatistics] = field(default_factory=dict)
    first_index: int = 500
    now: float = 0.0
    is_short: bool = False
    entries_a_segment: int = LONG
    segment_size: int = 1 << 30

    def missing(self, index: int) -> Missing:
        segments = LONG // self.entries_a_segment - index // self.entries_a_segment + 1
        return Missing(LONG - index, segments, segments * self.segment_size)

    def filling(self) -> Filling:
        return Filling(
            lambda: self.peers,
            lambda: self.first_index,
            self.missing,
            lambda: self.is_short,
            lambda: self.now,
        )


def test_nobody_who_is_near_the_end_holds_anything() -> None:
    leader = Leader({PEER: told(LONG - NEAR_ENTRIES)})
    assert leader.filling().first_needed() is None


def test_few_entries_that_are_many_bytes_are_not_near() -> None:
    """Who has installed the base lacks the whole log, which may be 8,000 large entries: it needs
    them until they lie in the last two segments, or it would begin anew with the next base."""
    base = LONG - 8_000
    leader = Leader({PEER: told(base)}, first_index=base + 1, entries_a_segment=800)
    filling = leader.filling()
    assert filling.first_needed() == base + 1
    leader.peers[PEER] = told(LONG - 801)
    assert filling.first_needed() == LONG - 800
    leader.peers[PEER] = told(LONG - 799)
    assert filling.first_needed() is None
    leader.peers[PEER] = told(base)
    leader.segment_size = 1 << 20  # all of it is copied in seconds
    assert filling.first_needed() is None


def test_front_stays_where_a_peer_goes_on() -> None:
    """The furthest behind decides; who is offered the base needs all that there is."""
    leader = Leader({PEER: told(700), NodeId("n3"): told(9_000)})
    filling = leader.filling()
    assert filling.first_needed() == 701
    leader.peers[NodeId("n3")] = told(0, "snapshot")
    assert filling.first_needed() == 500
    leader.peers = {PEER: told(LONG)}
    assert filling.first_needed() is None


def test_who_isnt_there_holds_nothing_but_for_a_moment() -> None:
    """It may be opening itself again with the base; who was never there isn't waited for."""
    leader = Leader({PEER: told(700, is_there=False)})
    filling = leader.filling()
    assert filling.first_needed() is None
    leader.peers = {PEER: told(700)}
    assert filling.first_needed() == 701
    leader.peers = {PEER: told(700, is_there=False)}
    leader.now = AWAY_S - 1
    assert filling.first_needed() == 701
    leader.now = AWAY_S + 1
    assert filling.first_needed() is None


def test_hold_ends_in_time_and_begins_anew_only_behind_a_filling() -> None:
    """Whoever copies slower than everybody writes doesn't keep it for ever; it is told."""
    leader = Leader({PEER: told(700)})
    filling = leader.filling()
    with capture_logs() as logged:
        assert filling.first_needed() == 701
        for step in range(1, 20):
            leader.now = HOLD_S * step / 10
            leader.peers[PEER] = told(700 + step)
            assert (filling.first_needed() is None) == (step > 10)
        leader.peers[PEER] = told(LONG)
        assert filling.first_needed() is None
        leader.peers[PEER] = told(800)
        assert filling.first_needed() == 801
    assert [each["event"] for each in logged] == [
        "log_start_held",
        "log_start_held_no_longer",
        "log_start_held",
    ]


def test_full_disk_wins() -> None:
    leader = Leader({PEER: told(700)}, is_short=True)
    filling = leader.filling()
    assert filling.first_needed() is None
    leader.is_short = False
    assert filling.first_needed() == 701


def test_who_is_no_member_any_more_is_forgotten() -> None:
    leader = Leader({PEER: told(700)})
    filling = leader.filling()
    assert filling.first_needed() == 701
    leader.peers = {}
    assert filling.first_needed() is None
    leader.peers = {PEER: replace(told(700), recently_active=False)}
    assert filling.first_needed() is None


def test_a_state_is_kept_for_the_member_that_pulls_it() -> None:
    """From piece to piece, for as long as it goes on asking, but an hour at most; and once."""
    now, steps = 0.0, int(HOLD_S / AWAY_S)
    giving = Giving(lambda: now)
    assert not giving.is_awaited([PEER])
    for step in range(steps + 10):
        now = step * AWAY_S
        giving.gave(PEER, 5, is_first=False, is_last=False)
        assert giving.is_awaited([PEER]) == (step <= steps)
    now += AWAY_S + 1
    giving.gave(NodeId("n3"), 5, is_first=False, is_last=False)
    assert not giving.is_awaited([PEER])
    giving.gave(PEER, 5, is_first=False, is_last=False)
    assert giving.is_awaited([PEER])
    now += AWAY_S + 1
    assert not giving.is_awaited([PEER])


def test_a_state_is_kept_for_nobody_who_only_looks_at_it() -> None:
    """Who has no room asks for the first piece every second: that is no pull, and one that comes
    when there is room is kept for as long as any. So is one of another state."""
    now = 0.0
    giving = Giving(lambda: now)
    while now < 2 * HOLD_S:
        giving.gave(PEER, 5, is_first=True, is_last=False)
        assert giving.is_awaited([PEER]) == (now <= AWAY_S)
        now += 1
    begun = now
    while now <= begun + HOLD_S + AWAY_S:
        giving.gave(PEER, 5, is_first=False, is_last=False)
        assert giving.is_awaited([PEER]) == (now <= begun + HOLD_S)
        now += AWAY_S
    giving.gave(PEER, 9, is_first=True, is_last=False)
    assert giving.is_awaited([PEER])


def test_a_state_that_was_given_is_kept_for_nobody() -> None:
    giving = Giving(lambda: 0.0)
    giving.gave(PEER, 5, is_first=False, is_last=False)
    giving.gave(PEER, 5, is_first=False, is_last=True)
    assert not giving.is_awaited([PEER])


def test_a_state_is_kept_for_no_stranger() -> None:
    giving = Giving(lambda: 0.0)
    giving.gave(PEER, 5, is_first=False, is_last=False)
    assert not giving.is_awaited([NodeId("n1"), NodeId("n3")])
