"""Consumer groups: their members' streams, and what members commit (ADR 55)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.commands import Commands, TopicDone
from broker.leader.groups.keeper import GroupKeeper, KeeperStatistics
from broker.services.attendance import Attendance
from broker.services.gate import Gate
from broker.services.refused import queue_refused, refused, session_ended
from broker.services.styles import Styles
from broker.services.updates import QueueOf
from broker.state.leases import MAX_RANGES, Place
from broker.state.machine import StateMachine
from broker.state.refusals import PartlyRefused, SessionUnknown, TooManyRanges
from dledger.ports import Turns

MAX_QUEUES_IN_COMMIT: Final = 1_024
MAX_RUNS_IN_COMMIT: Final = 32_768  # numbers, over all queues: some 100 KiB of one entry


@dataclass(frozen=True, slots=True)
class LeaseCommit:
    """How far a session is in the queues that it holds."""

    group: str
    member: str
    session: int
    topics: tuple[TopicDone, ...]


class NotCommitted(NamedTuple):
    """A queue in which nothing was committed, and why."""

    queue: QueueOf
    failure: Failure


class Groups:
    """What members of consumer groups ask for, messages apart."""

    def __init__(
        self,
        gate: Gate,
        commands: Commands,
        state: StateMachine,
        keeper: GroupKeeper,
        turns: Turns,
        styles: Styles,
    ) -> None:
        self._gate = gate
        self._commands = commands
        self._state = state
        self._keeper = keeper
        self._turns = turns
        self._styles = styles

    def attend(self) -> Attendance:
        """A stream for members; it is to be closed.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, BUSY.
        """
        return Attendance(
            self._gate, self._commands, self._state, self._keeper, self._turns, self._styles
        )

    async def commit(self, commit: LeaseCommit) -> tuple[NotCommitted, ...]:
        """The queues in which nothing was committed; in all others everything was.

        Raises:
            BrokerError: SESSION_ENDED, MEMBER_REPLACED, INVALID_ARGUMENT; whatever a command meets
                on its way into the log.
        """
        self._gate.check_writable()
        taken, excessive = _split(commit.topics)
        _check_size(commit.topics, taken)
        await self._gate.surely(lambda: self._check_session(commit))
        return excessive + (await self._commit(replace(commit, topics=taken)) if taken else ())

    async def _commit(self, commit: LeaseCommit) -> tuple[NotCommitted, ...]:
        refusal = await self._commands.commit_leases(commit.group, commit.session, commit.topics)
        self._keeper.tell(commit.session, _released(commit))  # what it gave back it has lost
        match refusal:
            case None:
                return ()
            case PartlyRefused(queues):
                return tuple(
                    NotCommitted(
                        QueueOf(each.topic, each.incarnation, each.queue_id),
                        queue_refused(each.why).failure,
                    )
                    for each in queues
                )
            case SessionUnknown():
                raise self._ended(commit)
            case _:
                raise refused(refusal)

    def _check_session(self, commit: LeaseCommit) -> None:
        """That can't come back once it is gone, so nothing has to be proposed to be sure."""
        found = self._state.groups.session(commit.session)
        if found is None or (found.group, found.member) != (commit.group, commit.member):
            raise self._ended(commit)
        group = self._state.groups.get(found.group)
        if group is not None and group.settings.is_broadcast:
            text = f"group {commit.group!r} broadcasts: its members keep their offsets themselves"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)

    def _ended(self, commit: LeaseCommit) -> BrokerError:
        return session_ended(self._state.groups, commit.group, commit.member, commit.session)

    def statistics(self) -> KeeperStatistics:
        """A frozen picture, as of now."""
        return self._keeper.statistics()


def _released(commit: LeaseCommit) -> list[Place] | None:
    """The queues that it gives back; None: whichever have the names."""
    if not all(topic.incarnation for topic in commit.topics):
        return None
    return [
        Place(commit.group, topic.incarnation, each.queue_id)
        for topic in commit.topics
        for each in topic.queues
        if each.is_released
    ]


def _split(topics: Sequence[TopicDone]) -> tuple[tuple[TopicDone, ...], tuple[NotCommitted, ...]]:
    """What may be proposed; and the queues that have more runs than any may, which are no reason to
    refuse the others."""
    taken: list[TopicDone] = []
    excessive: list[NotCommitted] = []
    why = queue_refused(TooManyRanges(MAX_RANGES)).failure
    for topic in topics:
        queues = [each for each in topic.queues if len(each.finished) <= 2 * MAX_RANGES]
        if queues:
            taken.append(topic._replace(queues=tuple(queues)))
        excessive += (
            NotCommitted(QueueOf(topic.topic, topic.incarnation, each.queue_id), why)
            for each in topic.queues
            if len(each.finished) > 2 * MAX_RANGES
        )
    return tuple(taken), tuple(excessive)


def _check_size(topics: Sequence[TopicDone], taken: Sequence[TopicDone]) -> None:
    """Raises for the whole commit."""
    queues = sum(len(topic.queues) for topic in topics)
    if not 0 < queues <= MAX_QUEUES_IN_COMMIT:
        text = f"a commit holds 1 to {MAX_QUEUES_IN_COMMIT} queues, not {queues}"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
    if sum(len(each.finished) for topic in taken for each in topic.queues) > MAX_RUNS_IN_COMMIT:
        text = f"a commit holds at most {MAX_RUNS_IN_COMMIT // 2:,} finished runs in all"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
