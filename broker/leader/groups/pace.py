"""Times of sessions and hand-overs, as a leader keeps them and members are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARTBEATS_A_SECOND: Final = 180  # of all members together, beyond which each is heard less often


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of sessions, in milliseconds."""

    tick_ms: int = 10
    heartbeat_ms: int = 3_000
    session_ms: int = 10_000
    away_ms: int = 500  # after a stream broke: until the session of a concurrent group ends
    return_ms: int = 7_000  # for which a new leader counts everybody as present
    keep_ms: int = 1_000  # for which what is free waits for a member whose stream isn't there
    release_ms: int = 3_000
    orderly_release_ms: int = 30_000
    late_ms: int = 1_000  # between two ticks: then what was said meanwhile is read first
    look_ms: int = 100  # from one look at a group to the next
    retry_ms: int = 1_000  # after a proposal that failed
    forget_ms: int = 60_000  # from one look at who may be forgotten to the next
    unused_ms: int = 7 * 24 * 3_600_000  # of lived time, until a group may be

    def __post_init__(self) -> None:
        # Who doesn't come back begins messages for two thirds of a session from what the leader
        # before has answered, which may have gone on doing so for a moment. Nobody has them before.
        assert self.return_ms * 10 >= self.session_ms * 7, "queues are granted too early"

    def ticks(self, ms: int) -> int:
        return max(1, -(-ms // self.tick_ms))

    def release_of(self, *, is_orderly: bool) -> int:
        """How long a hand-over may take, in ms."""
        return self.orderly_release_ms if is_orderly else self.release_ms

    def heartbeat_of(self, sessions: int) -> int:
        """How often each of so many members is to be heard, in ms: the more there are the less
        often, as what all of them together say is bound by what a leader hears. Never so seldom
        that an answer in time came too late for who begins nothing new after two thirds of a
        session."""
        wanted = max(self.heartbeat_ms, sessions * 1_000 // HEARTBEATS_A_SECOND)
        return min(wanted, max(self.heartbeat_ms, self.session_ms * 11 // 20))


USUAL_PACE: Final = Pace()
