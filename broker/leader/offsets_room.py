"""How many committed offsets there may be, over all groups, topics and queues.

Every state holds as many as the log says: whether a command applies can't depend on a bound that
another release doesn't know. So a leader proposes nothing that would begin more than these: a pair
of a group and a topic counts as one there (`broker.state.offsets`), and may have as many offsets as
its topic has queues. What is there goes on, whatever it is counted at.

A queue in which a group has had single messages has an offset as well, so this bounds those, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode
from broker.state.offsets import Offsets
from broker.state.refusals import PartlyRefused, TooManyGroups, TooMuchProgress
from dledger.wire.commands_pb2 import Command

# With a queue's single messages about 190 bytes of memory and 50 of a snapshot each.
MAX_QUEUE_OFFSETS: Final = 1_000_000


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def offsets(self) -> Offsets: ...


class OffsetsRoom:
    """One leader's look at it, and at what else of consumer groups there is no room for."""

    def __init__(self, state: State, coming: Callable[[], int]) -> None:
        """Args:
        coming: how many are on their way into the log.
        """
        self._state, self._coming = state, coming
        self.times_short = 0

    def check(self, wanted: int, before: int = 0) -> None:
        """As `check_room`, behind what is on its way, and so many that come before.

        Raises:
            BrokerError: LIMIT_REACHED.
        """
        try:
            check_room(self._state, wanted, self._coming() + before)
        except BrokerError:
            self.times_short += 1
            raise

    def heed(self, result: object) -> None:
        """What became of a command: the state may have had no room."""
        if isinstance(result, PartlyRefused):
            is_short = any(isinstance(each.why, TooMuchProgress) for each in result.queues)
        else:
            is_short = isinstance(result, TooMuchProgress | TooManyGroups)
        self.times_short += is_short


def begun_by(state: State, command: Command) -> int:
    """In how many queues, at most, a group gets an offset by the command that has none there."""
    match command.WhichOneof("body"):
        case "commit_offsets":
            commit = command.commit_offsets
            queues = {each.queue_id for each in commit.offsets}
            return _unknown(state, commit.group, commit.topic, queues)
        case "move_group":
            move = command.move_group
            queues = {each.queue_id for each in move.queues}
            return _unknown(state, move.group, move.topic, queues)
        case "deliver":
            body = command.deliver
            queues = set(range(body.first_start, body.first_start + len(body.starts)))
            return _unknown(state, body.group, body.topic, queues)
        case "grant_leases":
            grants = command.grant_leases
            return sum(
                starts_begun(state, grants.group, each.topic, each.first_start, len(each.starts))
                for each in grants.topics
            )
        case "clone_group":
            return state.offsets.queue_count_of(command.clone_group.source)
        case _:
            return 0


def starts_begun(state: State, group: str, topic: str, first: int, count: int) -> int:
    """The same, of a group's starts in so many queues from the first on."""
    return _unknown(state, group, topic, range(first, first + count))


def _unknown(state: State, group: str, topic: str, queues: Iterable[int]) -> int:
    known = state.offsets.of(group, topic)
    return sum(queue_id not in known for queue_id in queues)


def has_room(state: State, wanted: int, coming: int = 0) -> bool:
    """Whether so many more may begin, where `coming` are on their way into the log."""
    return not wanted or state.offsets.queue_count + coming + wanted <= MAX_QUEUE_OFFSETS


def check_room(state: State, wanted: int, coming: int = 0) -> None:
    """As `has_room`.

    Raises:
        BrokerError: LIMIT_REACHED, they may not; nothing happened.
    """
    if not has_room(state, wanted, coming):
        there = state.offsets.queue_count
        text = (
            f"consumer groups have offsets in {there:,} queues, and {coming:,} are on their way: "
            f"no room for {wanted:,} more of {MAX_QUEUE_OFFSETS:,}"
        )
        raise BrokerError(ErrorCode.LIMIT_REACHED, text)
