"""Commands of the replicated state, proposed by the leader: plain arguments in, a refusal out.

The one place where a caller's wish becomes the bytes that lie in the log for ever
(`proto/dledger/wire/commands.proto`); the services above know neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, NamedTuple, Protocol, cast

from google.protobuf.message import DecodeError

from broker.leader.offsets_room import OffsetsRoom
from broker.leader.units import ProposedUnit, UnitResult
from broker.state.filters import wire_filters
from broker.state.groups import JoinWish
from broker.state.moving import Moves
from broker.state.offsets import OffsetCommit
from broker.state.refusals import Refusal
from broker.state.registration import Registration
from broker.state.topics import TopicRef
from dledger.core.types import EntryKind
from dledger.wire.commands_pb2 import (
    CloneGroupCommand,
    Command,
    CommitLeasesCommand,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
    EndSessionsCommand,
    ForgetGroupsCommand,
    GrantLeasesCommand,
    GroupSettings,
    JoinGroupCommand,
    MakeTopicCommand,
    MoveGroupCommand,
    MoveLogStartCommand,
    MoveQueueStartsCommand,
    PermitTopicCommand,
    QueueChoice,
    QueueGrant,
    QueueProgress,
    QueueStart,
    RaiseLevelCommand,
    RegisterProducerCommand,
    RetainTopicCommand,
    StartFrom,
    TopicGrants,
    TopicProgress,
    UpdateTopicCommand,
)

LARGEST_MOVE: Final = 32  # bytes of a command that moves the log's start


def makes_room(kind: int, body: bytes | bytearray | memoryview) -> bool:
    """Whether an entry says that others may go: a full disk takes it, or it would stay full."""
    if kind != EntryKind.COMMAND or len(body) > LARGEST_MOVE:
        return False
    try:
        return Command.FromString(bytes(body)).HasField("move_log_start")
    except DecodeError:
        return False


def _nothing() -> None:
    """Nothing is to be checked."""


class UnitTaker(Protocol):
    """`broker.leader.units.Units`, as far as units of one command go."""

    @property
    def are_taken(self) -> bool: ...

    def propose(self, wanted: ProposedUnit) -> Awaitable[UnitResult]: ...


class Coming(Protocol):
    """`broker.leader.flight.InFlight`, as far as commands on their way go."""

    @property
    def is_moving_start(self) -> bool: ...

    @property
    def is_ending_groups(self) -> bool: ...

    def is_changing(self, topic: str) -> bool: ...
    def is_broadcasting(self, topic: str) -> bool: ...
    def wishing(self) -> Collection[str]: ...
    def is_failing(self, group: str) -> bool: ...


class Submitter(Protocol):
    """The appender, as far as commands go."""

    @property
    def units(self) -> UnitTaker: ...

    def submit(self, command: Command) -> Awaitable[Refusal | None]: ...

    def is_coming(self, incarnation: int, queue_id: int) -> bool: ...

    @property
    def room(self) -> OffsetsRoom: ...

    @property
    def coming(self) -> Coming: ...


class TopicGrant(NamedTuple):
    """Queues of one topic that are to have holders.

    Attributes:
        first_start: `starts` are of the queues from this one on.
        starts: where the group starts there, if it has no start yet.
        queues: (queue id, session or 0 for nobody, epoch of the lease that ends or 0).
    """

    topic: str
    incarnation: int
    first_start: int
    starts: tuple[int, ...]
    queues: tuple[tuple[int, int, int], ...]


class QueueDone(NamedTuple):
    """How far a queue is done; `finished` as in `broker.state.leases.ranges_of`. `is_begun`: the
    message at the frontier is all that its holder is at work on."""

    queue_id: int
    epoch: int
    frontier: int
    finished: tuple[int, ...]
    is_released: bool
    is_begun: bool = False


class GroupMove(NamedTuple):
    """Where a group is to go on in queues of a topic: `offsets` by queue id. `is_forward`: nothing
    that is finished comes again."""

    group: str
    topic: TopicRef
    offsets: tuple[tuple[int, int], ...]
    is_forward: bool


class TopicDone(NamedTuple):
    """How far queues of one topic are done."""

    topic: str
    incarnation: int
    queues: tuple[QueueDone, ...]


class Commands:
    """Each call proposes one command; awaiting it gives the state machine's refusal once the
    command is applied, None when it took effect.

    Raises:
        BrokerError: from the call itself: nothing was proposed.
    """

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter

    def create_topic(self, name: str, queue_count: int) -> Awaitable[Refusal | None]:
        """Proposes a topic."""
        command = CreateTopicCommand(name=name, queue_count=queue_count)
        return self._submitter.submit(Command(create_topic=command))

    def raise_level(self, level: int) -> Awaitable[Refusal | None]:
        """Proposes that the next level of formats and commands is used."""
        return self._submitter.submit(Command(raise_level=RaiseLevelCommand(level=level)))

    def move_log_start(self, first_index: int) -> Awaitable[Refusal | None]:
        """Proposes that entries before `first_index` may go."""
        command = MoveLogStartCommand(first_index=first_index)
        return self._submitter.submit(Command(move_log_start=command))

    def retain_topic(self, topic: TopicRef, retention_ms: int) -> Awaitable[Refusal | None]:
        """Proposes how long a topic's messages are wanted."""
        command = RetainTopicCommand(
            name=topic.name, incarnation=topic.incarnation, retention_ms=retention_ms
        )
        return self._submitter.submit(Command(retain_topic=command))

    def is_coming(self, incarnation: int, queue_id: int) -> bool:
        """Whether messages for that queue are on their way into the log: proposed before whatever
        is proposed now, and applied before it."""
        return self._submitter.is_coming(incarnation, queue_id)

    def check_begun(self, offsets: int) -> None:
        """Groups may begin in so many queues more, by what is proposed now.

        Raises:
            BrokerError: LIMIT_REACHED.
        """
        self._submitter.room.check(offsets)

    @property
    def is_moving_start(self) -> bool:
        """Whether a later start of the log is on its way: what is proposed now is judged by it."""
        return self._submitter.coming.is_moving_start

    @property
    def wishing(self) -> Collection[str]:
        """Topics of whose messages another wish is on its way: whoever wished is told that it is
        so, and what is proposed behind it by the wish before would take them all the same."""
        return self._submitter.coming.wishing()

    @property
    def is_ending_groups(self) -> bool:
        """Whether groups are about to be forgotten, which the applied state still knows."""
        return self._submitter.coming.is_ending_groups

    def is_changing(self, topic: str) -> bool:
        """Whether an update of the topic's queues is on its way: a group that is put into one that
        goes, behind that, would be left before its end."""
        return self._submitter.coming.is_changing(topic)

    def is_broadcasting(self, topic: str) -> bool:
        """Whether a member of a group that broadcasts is about to join for the topic, whom the
        applied state doesn't know."""
        return self._submitter.coming.is_broadcasting(topic)

    def is_failing(self, group: str) -> bool:
        """Whether a message that the group couldn't work on is on its way to where it waits: it
        does, before what is proposed now."""
        return self._submitter.coming.is_failing(group)

    def update_topic(
        self, topic: TopicRef, read_queues: int, write_queues: int, *, drop: bool
    ) -> Awaitable[Refusal | None]:
        """Proposes in how many queues a topic is read and written; 0: as it is."""
        command = UpdateTopicCommand(
            name=topic.name,
            incarnation=topic.incarnation,
            read_queues=read_queues,
            write_queues=write_queues,
            drop=drop,
        )
        return self._submitter.submit(Command(update_topic=command))

    def move_queue_starts(
        self, topic: TopicRef, starts: Iterable[tuple[int, int]]
    ) -> Awaitable[Refusal | None]:
        """Proposes that queues begin later: (queue id, offset)."""
        command = MoveQueueStartsCommand(
            name=topic.name,
            incarnation=topic.incarnation,
            starts=[QueueStart(queue_id=queue_id, offset=offset) for queue_id, offset in starts],
        )
        return self._submitter.submit(Command(move_queue_starts=command))

    def permit_topic(self, topic: TopicRef, permission: int) -> Awaitable[Refusal | None]:
        """Proposes what may be done with a topic."""
        command = PermitTopicCommand(
            name=topic.name, incarnation=topic.incarnation, permission=permission
        )
        return self._submitter.submit(Command(permit_topic=command))

    def make_topic(
        self, name: str, queue_count: int, *, retention_ms: int, permission: int
    ) -> Awaitable[Refusal | None]:
        """Proposes a topic with what is wished of it."""
        command = MakeTopicCommand(
            name=name, queue_count=queue_count, retention_ms=retention_ms, permission=permission
        )
        return self._submitter.submit(Command(make_topic=command))

    def delete_topic(self, topic: TopicRef) -> Awaitable[Refusal | None]:
        """Proposes the end of a topic."""
        command = DeleteTopicCommand(name=topic.name, incarnation=topic.incarnation)
        return self._share(Command(delete_topic=command), is_named=bool(topic.incarnation))

    def commit_offsets(
        self, commit: OffsetCommit, check: Callable[[], None] = _nothing
    ) -> Awaitable[Refusal | None]:
        """Proposes a consumer group's offsets. When its turn has come `check` raises BrokerError if
        it isn't to be proposed."""
        command = CommitOffsetsCommand(
            group=commit.group,
            topic=commit.topic,
            offsets=[CommittedOffset(queue_id=q, offset=o) for q, o in commit.wanted],
            reset=commit.is_reset,
            topic_incarnation=commit.incarnation,
        )
        is_named = bool(commit.incarnation)
        return self._share(Command(commit_offsets=command), is_named=is_named, check=check)

    def register_producer(self, wanted: Registration) -> Awaitable[Refusal | None]:
        """Proposes a producer."""
        command = RegisterProducerCommand(
            token=wanted.token, name=wanted.name, previous=wanted.previous
        )
        return self._submitter.submit(Command(register_producer=command))

    # --- consumer groups ----------------------------------------------------------------------

    def join_group(self, wish: JoinWish) -> Awaitable[Refusal | None]:
        """Proposes a member."""
        settings = wish.settings
        command = JoinGroupCommand(
            group=wish.group,
            member=wish.member,
            token=wish.token,
            settings=GroupSettings(
                version=settings.version,
                broadcast=settings.is_broadcast,
                orderly=settings.is_orderly,
                strategy=settings.strategy,
                start=StartFrom.Name(settings.start),
                start_time_ms=settings.start_time_ms,
                topics=settings.topics,
                max_attempts=settings.max_attempts,
                filters=wire_filters(settings.tags),
            ),
            queues=[QueueChoice(topic=topic, queue_ids=ids) for topic, ids in wish.choices],
        )
        return self._submitter.submit(Command(join_group=command))

    def end_sessions(
        self, sessions: Iterable[int], vanished: Iterable[int] = ()
    ) -> Awaitable[Refusal | None]:
        """Proposes that sessions are over; `vanished`: those of them without a goodbye, as the
        level in use tells them apart."""
        command = EndSessionsCommand(sessions=sessions, vanished=vanished)
        return self._submitter.submit(Command(end_sessions=command))

    def grant_leases(self, group: str, topics: Iterable[TopicGrant]) -> Awaitable[Refusal | None]:
        """Proposes who holds queues of a group."""
        command = GrantLeasesCommand(
            group=group,
            topics=[
                TopicGrants(
                    topic=each.topic,
                    incarnation=each.incarnation,
                    first_start=each.first_start,
                    starts=each.starts,
                    grants=[
                        QueueGrant(queue_id=queue_id, session=session, former_epoch=former)
                        for queue_id, session, former in each.queues
                    ],
                )
                for each in topics
            ],
        )
        return self._submitter.submit(Command(grant_leases=command))

    def commit_leases(
        self, group: str, session: int, topics: Iterable[TopicDone]
    ) -> Awaitable[Refusal | None]:
        """Proposes how far a session is."""
        command = CommitLeasesCommand(
            group=group,
            session=session,
            topics=[
                TopicProgress(
                    topic=each.topic,
                    incarnation=each.incarnation,
                    queues=[
                        QueueProgress(
                            queue_id=done.queue_id,
                            epoch=done.epoch,
                            frontier=done.frontier,
                            finished=done.finished,
                            release=done.is_released,
                            begun=done.is_begun,
                        )
                        for done in each.queues
                    ],
                )
                for each in topics
            ],
        )
        return self._submitter.submit(Command(commit_leases=command))

    def forget_groups(self, names: Iterable[str], unused_ms: int) -> Awaitable[Refusal | None]:
        """Proposes that groups are forgotten that nobody used for so long."""
        command = ForgetGroupsCommand(groups=names, unused_ms=unused_ms)
        return self._submitter.submit(Command(forget_groups=command))

    # --- administration of groups -------------------------------------------------------------

    def move_group(self, wanted: GroupMove) -> Awaitable[Refusal | Moves]:
        """Proposes where a group goes on; what its entry found there, and did."""
        command = MoveGroupCommand(
            group=wanted.group,
            topic=wanted.topic.name,
            incarnation=wanted.topic.incarnation,
            queues=[QueueStart(queue_id=q, offset=o) for q, o in wanted.offsets],
            forward=wanted.is_forward,
        )
        submitted = self._submitter.submit(Command(move_group=command))
        return cast("Awaitable[Refusal | Moves]", submitted)

    def clone_group(self, source: str, target: str) -> Awaitable[Refusal | None]:
        """Proposes that a group that nobody knows has committed what another one has."""
        command = CloneGroupCommand(source=source, target=target)
        return self._submitter.submit(Command(clone_group=command))

    # --- units --------------------------------------------------------------------------------

    def _share(
        self, command: Command, *, is_named: bool, check: Callable[[], None] = _nothing
    ) -> Awaitable[Refusal | None]:
        """Proposes a command as a unit, which shares an entry with others; where the level in use
        has none, or the command doesn't name its topic's incarnation, as an entry of its own."""
        units = self._submitter.units
        if not is_named or not units.are_taken:
            check()
            return self._submitter.submit(command)
        return _refusal_in(units.propose(ProposedUnit(commands=(command,), condition=check)))


async def _refusal_in(result: Awaitable[UnitResult]) -> Refusal | None:
    # A unit without batches is refused as commands are.
    return cast("Refusal | None", (await result).refusal)
