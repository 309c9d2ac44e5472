"""What a client is told of its members on a stream (`broker.services.attendance`): plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker.errors import Failure
from broker.state.groups import Settings


@dataclass(frozen=True, slots=True)
class Joined:
    """The member has a session; times in milliseconds."""

    slot: int
    session: int
    heartbeat_ms: int
    session_ms: int
    release_ms: int
    return_within_ms: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """Heartbeats up to `number` were heard."""

    number: int
    return_within_ms: int
    heartbeat_ms: int


class QueueOf(NamedTuple):
    """A queue of a topic, by its name and its incarnation."""

    topic: str
    incarnation: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class Gained:
    """A queue that the member holds. `finished` as in `broker.state.leases.runs_of`; `failures`: of
    the message at the frontier, None: the log doesn't count them."""

    queue: QueueOf
    epoch: int
    frontier: int
    finished: tuple[int, ...]
    failures: int | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What has changed for a member. `is_whole`: what wasn't named so far isn't held."""

    slot: int
    gained: tuple[Gained, ...]
    asked: tuple[QueueOf, ...]
    lost: tuple[QueueOf, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The member's session is over, or never began; None: it said goodbye."""

    slot: int
    failure: Failure | None


Update = Joined | HeartbeatAnswered | Assignment | Ended
