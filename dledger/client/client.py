"""The client: one broker group's public face. Topics, offsets, single reads, administration.

This owns which verbs there are, what each promises, and from when to when the client is open. What
a verb does is beside it (`topics`, `offsets`, `single_reads`, `nodes`, `dead_letters`), and
producers and consumers, which are made here, are closed with it at the latest (`workers`). It owns
no retry or leader logic: see `dledger.client.broker_group`. It is longer than a module should be,
as nearly all of it is what the verbs promise, which users read in one place.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, TypedDict

from dledger.addresses import parse_addresses
from dledger.client import nodes, single_reads, topics
from dledger.client import offsets as offsets_of
from dledger.client.arguments import i64, seconds, text, u32
from dledger.client.broker_group import BrokerGroup
from dledger.client.consumer import PullConsumer, Reading, check_group
from dledger.client.dead_letters import DeadLetters, Resent, dead_letters, resend
from dledger.client.errors import ClientClosed, ClientError, InvalidArgument, SendsFailed
from dledger.client.groups import ConsumerGroups
from dledger.client.leaving import is_hurried, tell
from dledger.client.members.attendance import Attendance
from dledger.client.members.push import PushConsumer
from dledger.client.members.reading import MemberReading
from dledger.client.options import (
    AllQueues,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    PushOptions,
    StartFrom,
)
from dledger.client.own_address import own_ipv4
from dledger.client.owner import Owner
from dledger.client.producer import Producer
from dledger.client.results import (
    LeaderInfo,
    Message,
    NodeState,
    Permission,
    PullResult,
    QueueOffsets,
    TopicDescription,
    TopicInfo,
    TopicStats,
)
from dledger.client.simple_consumer import SimpleConsumer
from dledger.client.topic_reading import TopicReading
from dledger.client.workers import Workers, forget
from dledger.wire import broker_pb2 as pb


class _Reading(TypedDict):
    """What members and readers of a topic are told alike."""

    tags: Collection[str] | None
    start: StartFrom | datetime | None
    idle_timeout_s: float | None
    options: ConsumerOptions


class Client:
    """A connection to a broker group: `async with Client.connect("host:port,...") as client`."""

    def __init__(
        self, addresses: Sequence[str], broker_group: str | None, options: ClientOptions
    ) -> None:
        self._addresses = addresses
        self._name = broker_group
        self._options = options
        self._opened: BrokerGroup | None = None
        self._owner = Owner()
        self._born_host = (own_ipv4(addresses[0]), 0)
        self._workers = Workers()
        self._attendance: Attendance | None = None
        self._is_closing = False

    @classmethod
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        broker_group: str | None = None,
        options: ClientOptions | None = None,
    ) -> Self:
        """A client of the broker group to which the nodes at these addresses belong; enter it as
        an async context manager. It dials at once and waits for nothing: calls wait.

        Args:
            bootstrap: `host:port,...`, or a sequence of `host:port`; one living node is enough.
            broker_group: its name, where a mix-up must show itself.

        Raises:
            InvalidArgument: an address is not `host:port`.
        """
        try:
            addresses = parse_addresses(bootstrap)
        except ValueError as error:
            raise InvalidArgument(f"bootstrap: {error}") from error
        return cls(addresses, broker_group, options or ClientOptions())

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            self._owner.check()
            raise InvalidArgument("the client is open already: enter it once, share it after that")
        self._owner = Owner()
        self._is_closing = False
        self._opened = BrokerGroup(self._addresses, self._name, self._options)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is being cancelled or interrupted does not wait for producers to flush."""
        if self._owner.is_of_another_process:
            return  # the connections are its parent's
        if self._opened is not None:
            self._owner.check()
        self._workers.check_outside()
        self._is_closing = True
        try:
            async with AsyncExitStack() as closing:  # each of them, even if another one fails
                closing.push_async_callback(self._hang_up)
                if self._attendance is not None:
                    closing.push_async_callback(self._attendance.close)
                self._workers.end_with(closing)
                if not is_hurried(kind):
                    await self._stop_work()
                    await self._workers.flush()
        except SendsFailed as failed:
            tell(failed, error)

    async def _stop_work(self) -> None:
        await self._workers.stop_work()

    async def _hang_up(self) -> None:
        opened, self._opened, self._attendance = self._opened, None, None
        if opened is not None:
            await opened.close()

    async def close(self) -> None:
        """Flushes and closes the producers, all at the same time, closes the consumers and every
        connection.

        Raises:
            SendsFailed: messages failed, and nobody has looked at their futures.
            InvalidArgument: in a handler of one of its push consumers.
        """
        await self.__aexit__(None, None, None)

    def __del__(self) -> None:
        # What was refused while it was made has neither.
        if getattr(self, "_opened", None) is not None and not self._owner.is_of_another_process:
            warn_unclosed(self)

    @property
    def _broker_group(self) -> BrokerGroup:
        self._owner.check()
        if self._opened is None:
            raise ClientClosed("the client is not open: use it as an async context manager")
        return self._opened

    @property
    def _lasting_group(self) -> BrokerGroup:
        """For what is closed with the client: nothing new is made once that has begun."""
        group = self._broker_group
        if self._is_closing:
            raise ClientClosed("the client is being closed")
        return group

    def _total_s(self, deadline_s: float | None) -> float:
        return self._options.deadline_s if deadline_s is None else seconds("deadline_s", deadline_s)

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 4,
        write_queues: int | None = None,
        if_not_exists: bool = False,
        retention_hours: float | None = None,
        permission: Permission | None = None,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """The topic exists, with all that is wished of it: it is made with that, or not at all, but
        for `write_queues`.

        Args:
            queues: that are read, 1 to 1,024.
            write_queues: how many of them take messages, also of a topic that existed; None: all
                of a new one. It is a call of its own: if that fails, the topic is there without.
            if_not_exists: a topic that exists with as many queues is a success.
            retention_hours: how long its messages are wanted (`retain_topic`), also of one that
                existed; None: nothing is said of it.
            permission: what may be done with it (`permit_topic`); as for `retention_hours`.

        Raises:
            TopicExists: it existed, or with another number of queues.
            InvalidArgument: name or number of queues is not allowed.
            NotReady: not every member of the broker group knows such wishes yet.
        """
        if write_queues is not None:
            topics.check_written(write_queues, queues)  # before there is a topic
        made = await topics.create(
            self._broker_group,
            name,
            queues,
            if_not_exists=if_not_exists,
            retention_hours=retention_hours,
            permission=permission,
            deadline_s=deadline_s,
        )
        if write_queues in (None, made.write_queues):
            return made
        try:
            return await self.update_topic(
                name,
                write_queues=write_queues,
                incarnation=made.incarnation,
                deadline_s=deadline_s,
            )
        except ClientError as error:
            raise error.halfway(
                f"topic {name!r} is there, and {made.write_queues} of its queues take messages"
            ) from error

    async def retain_topic(
        self,
        name: str,
        hours: float,
        *,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """The topic's messages are wanted for so long, and no message is deleted for it at once.
        Wanted shorter than the broker group keeps messages, older ones may soon be read no more;
        wanted longer, whole segments are kept for it, unless the group's bounds in bytes say
        otherwise.

        Args:
            hours: 0: as long as the broker group keeps messages.
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            TopicNotFound, TopicReplaced: there is no such topic.
            NotReady: not every member of the broker group knows how yet.
        """
        return await topics.retain(self._broker_group, name, hours, incarnation, deadline_s)

    async def permit_topic(
        self,
        name: str,
        permission: Permission,
        *,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """That may be done with the topic from now on, and nothing else. What was stored stays. No
        message that is sent later is stored while it isn't written; while it isn't read, consumers
        get no more of it, and go on from where they were when it is read again.

        Args:
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            TopicNotFound, TopicReplaced: there is no such topic.
            NotReady: not every member of the broker group knows how yet.
        """
        return await topics.permit(self._broker_group, name, permission, incarnation, deadline_s)

    async def topic_stats(self, name: str, *, deadline_s: float | None = None) -> TopicStats:
        """What is in the topic's queues now, and when the last message came to each. Nodes answer
        in pages of 128 queues; the deadline is each page's.

        Raises:
            TopicNotFound, TopicReplaced: there is no such topic, or none any more.
        """
        return await topics.stats(self._broker_group, name, deadline_s)

    async def update_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        drop: bool = False,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """The topic is read in so many queues, of which the first so many take messages. Nothing is
        lost; producers choose anew, and groups that read in order still get each key's messages in
        order, which others may not across the change (docs/consumers.md).

        Args:
            read_queues: None: as many as now. Fewer: only when every group has read the queues that
                go to their ends, and, if they hold messages, there is one.
            write_queues: None: as many as now; at most `read_queues`.
            drop: queues go also if groups haven't read them. It is never asked for twice: where the
                answer got lost the error says that it may have happened.
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            QueuesUnread: a group hasn't read a queue that would go, or there is none.
            InvalidArgument: there can't be such numbers.
            LimitReached: too many queues, or too many changes since the log begins.
            TopicNotFound, TopicReplaced: there is no such topic.
            NotReady: not every member of the broker group knows how yet.
        """
        numbers = topics.QueueNumbers(read_queues, write_queues, drop)
        return await topics.update(self._broker_group, name, numbers, incarnation, deadline_s)

    async def delete_topic(
        self, name: str, *, incarnation: int = 0, deadline_s: float | None = None
    ) -> None:
        """The topic and all its messages are gone. Of the brokers' own `%RETRY%group` and
        `%DLQ%group` can go once the group is forgotten.

        Args:
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            InvalidArgument: it is the brokers' own, and no group's.
            GroupExists: it is a group's that is known.
            QueuesUnread: messages wait to come to it.
            TopicNotFound: no topic has this name.
            TopicReplaced: the one that is meant is gone, and another one has its name.
        """
        await topics.delete(self._broker_group, name, incarnation, deadline_s)

    async def topics(self, *, deadline_s: float | None = None) -> list[TopicInfo]:
        """Every topic, by name. Nodes answer in pages: a topic that is made or deleted while they
        are fetched may be in the list or not. The deadline is each page's."""
        return await topics.listed(self._broker_group, deadline_s)

    async def describe_topic(
        self, name: str, *, deadline_s: float | None = None
    ) -> TopicDescription:
        """The topic, its queues' bounds and its consumer groups' progress.

        Raises:
            TopicNotFound: no topic has this name.
        """
        return await topics.describe(self._broker_group, name, deadline_s)

    # --- offsets ------------------------------------------------------------------------------

    async def queue_offsets(
        self, topic: str, queue_id: int, *, deadline_s: float | None = None
    ) -> QueueOffsets:
        """The queue's bounds; linearizable.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
        """
        return await offsets_of.bounds(self._broker_group, topic, queue_id, deadline_s)

    async def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, *, deadline_s: float | None = None
    ) -> int:
        """The offset of the first message stored at or after `time_ms` (since the epoch), or
        one past the last message.

        Raises:
            TopicNotFound, QueueNotFound: there is no such queue.
        """
        return await offsets_of.by_time(self._broker_group, topic, queue_id, time_ms, deadline_s)

    async def dead_letters(self, group: str, *, deadline_s: float | None = None) -> DeadLetters:
        """What there is of a consumer group's dead letters: messages that its members rejected, or
        that have failed too often."""
        return await dead_letters(self._broker_group, group, deadline_s)

    async def resend(
        self, group: str, offset: int, *, queue_id: int = 0, deadline_s: float | None = None
    ) -> Resent:
        """The dead letter at that offset of %DLQ%group is a message of the topic that it came from
        again, for every consumer group of it; done again nothing is sent.

        Raises:
            TopicNotFound, QueueNotFound, OffsetOutOfRange: there is none, or its topic is gone.
        """
        return await resend(self._broker_group, group, offset, queue_id, deadline_s)

    async def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        reset: bool = False,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> dict[int, int]:
        """The consumer group's offsets as they stand afterwards, by queue. What members of the
        group had finished above is forgotten, also where its offset stays what it was: it comes
        again, should the group have members again.

        Args:
            offsets: by queue id, the next offset to consume.
            reset: offsets may move back; otherwise the higher one stays.
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            TopicNotFound, TopicReplaced, QueueNotFound, OffsetOutOfRange: nothing was committed.
            GroupHasMembers: offsets of a group with members are what these commit.
            LimitReached: the brokers remember no more groups.
        """
        claim = offsets_of.Claim(group, topic, incarnation)
        return await offsets_of.commit(
            self._broker_group, claim, offsets, reset=reset, deadline_s=deadline_s
        )

    async def fetch_offsets(
        self, group: str, topic: str, *, incarnation: int = 0, deadline_s: float | None = None
    ) -> dict[int, int]:
        """The consumer group's committed offsets by queue, for queues that have one; linearizable.

        Args:
            incarnation: of the topic that is meant (`TopicInfo`); 0: whichever has the name.

        Raises:
            TopicNotFound: no topic has this name.
            TopicReplaced: the one that is meant is gone, and another one has its name.
        """
        claim = offsets_of.Claim(group, topic, incarnation)
        return await offsets_of.fetch(self._broker_group, claim, deadline_s)

    # --- messages -----------------------------------------------------------------------------

    async def get_message(
        self,
        *,
        message_id: str | None = None,
        topic: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        deadline_s: float | None = None,
    ) -> Message:
        """The message with this id, or at this place.

        Raises:
            MessageNotFound: there is none.
            InvalidArgument: neither an id nor a whole place is given, or both.
        """
        request = single_reads.named(message_id, (topic, queue_id, offset))
        return await single_reads.get(self._broker_group, request, deadline_s)

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 << 10,
        hold_ms: int = 0,
        deadline_s: float | None = None,
    ) -> PullResult:
        """The messages from `offset` on, none when there are none yet.

        Args:
            max_bytes: of records; one message is given even if it is longer.
            hold_ms: waits this long for a message, 20,000 at most.

        Raises:
            OffsetOutOfRange: not between the queue's bounds.
            TopicNotFound, QueueNotFound: there is no such queue.
        """
        request = pb.PullRequest(
            topic=text("topic name", topic),
            queue_id=u32("queue id", queue_id),
            offset=i64("offset", offset),
            max_messages=u32("max_messages", max_messages),
            max_bytes=u32("max_bytes", max_bytes),
            hold_ms=u32("hold_ms", hold_ms),
        )
        total_s = self._total_s(deadline_s) + hold_ms / 1000
        return await single_reads.pull(self._broker_group, request, total_s)

    # --- producers and consumers --------------------------------------------------------------

    def producer(self, options: ProducerOptions | None = None) -> Producer:
        """A producer, closed with the client at the latest."""
        producers = self._workers.producers
        producer = Producer(
            self._lasting_group, options or ProducerOptions(), self._born_host, producers.remove
        )
        producers.append(producer)
        return producer

    def pull_consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: Collection[str] | None = None,
        start: StartFrom | datetime | None = None,
        queues: Sequence[int] | AllQueues | None = None,
        idle_timeout_s: float | None = None,
        options: ConsumerOptions | None = None,
    ) -> PullConsumer:
        """A consumer of a topic's queues, closed with the client at the latest.

        Args:
            group: of consumers; at whose offsets it begins, and which it commits. Without
                `queues` the consumer is a member of it, and members share the topic's queues. With
                them it reads those alone, and commits as if nobody else did: refused while the
                group has members.
            tags: hands over only messages that carry one of these; None: all. The brokers choose
                them, and the group's offsets cover the others. Members of a group name the same
                ones, unless with a higher `ConsumerOptions.version`; whoever else reads for a
                group should.
            start: an end of the queues, the group's committed offsets, or the first message
                stored at or after a time (with a time zone). None: committed offsets with a
                group, else the first message. Of a member: where the group starts in the topic, if
                it never read that; all members say the same.
            queues: the ids to read, or `ALL`; None: all, or with a group what it holds as a member.
            idle_timeout_s: the iteration ends when all queues were empty together for so long, as
                far as the brokers were asked: time in which this process stood still isn't silence.

        Raises:
            InvalidArgument: the arguments make no sense together.
        """
        chosen = options or ConsumerOptions()
        check_group(group, start)
        if idle_timeout_s is not None and seconds("idle_timeout_s", idle_timeout_s) < 0:
            raise InvalidArgument(f"idle_timeout_s is {idle_timeout_s:g}; wanted: 0 or more")
        lasting, name = self._lasting_group, text("topic name", topic)
        common = _Reading(tags=tags, start=start, idle_timeout_s=idle_timeout_s, options=chosen)
        reading: Reading
        if group is not None and queues is None:
            reading = MemberReading(lasting, self._attending, name, group, **common)
        else:
            if chosen.commit_every_s is not None or chosen.on_revoke is not None:
                raise InvalidArgument(
                    "commit_every_s and on_revoke are for members: give a group, and no queues"
                )
            reading = TopicReading(
                self, lasting, name, consumer_group=group, queues=queues, **common
            )
        consumer = PullConsumer(reading, chosen, partial(forget, self._workers.consumers))
        self._workers.consumers.append(consumer)
        return consumer

    consumer = pull_consumer  # its name until 0.2

    def push_consumer(self, group: str, options: PushOptions | None = None) -> PushConsumer:
        """A member of a consumer group that hands messages to functions; closed with the client at
        the latest.

        Args:
            group: 1 to 119 of A-Z a-z 0-9 _ % -. Its members share the queues of its topics.

        Raises:
            InvalidArgument: no group can be called so.
        """
        worker = PushConsumer(
            self._lasting_group,
            self._attending,
            group,
            options or PushOptions(),
            partial(forget, self._workers.push_consumers),
        )
        self._workers.push_consumers.append(worker)
        return worker

    def simple_consumer(
        self,
        topic: str,
        group: str,
        *,
        invisible_s: float = 30,
        in_order: bool = False,
        start: StartFrom | datetime | None = None,
        max_attempts: int | None = None,
    ) -> SimpleConsumer:
        """A worker of a group that is handed single messages; closed with the client at the latest.

        Args:
            topic: any worker gets any message of it.
            group: of workers; it isn't used in any other way.
            invisible_s: for so long nobody else is given what a worker has; renewed within
                `async with`.
            in_order: of each queue one worker has something at a time, in order. All must agree.
            start: of a group that is new in the topic: its first message (None), its last, or the
                first one stored at or after a time (with a time zone).
            max_attempts: so often a message is handed out before it is a dead letter, of the topic
                %DLQ%group; None: 16 times, and with `in_order` for ever. All name the same.

        Raises:
            InvalidArgument: the arguments make no sense.
            ClientClosed: the client is being closed: nobody would close this.
        """
        if self._is_closing:
            raise ClientClosed("the client is being closed")
        consumer = SimpleConsumer(
            lambda: self._broker_group,  # what is in hand as the client closes is given back
            lambda: self._lasting_group,
            topic,
            group,
            invisible_s=invisible_s,
            in_order=in_order,
            start=start,
            max_attempts=max_attempts,
            forget=partial(forget, self._workers.simple_consumers),
        )
        self._workers.simple_consumers.append(consumer)
        return consumer

    def _attending(self) -> Attendance:
        """The one stream of all members."""
        group = self._lasting_group
        if self._attendance is None:
            self._attendance = Attendance(group)
        return self._attendance

    # --- administration -----------------------------------------------------------------------

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """Which consumer groups there are, how far they are, where they go on."""
        return ConsumerGroups(lambda: self._broker_group)

    async def leader(self, *, deadline_s: float | None = None) -> LeaderInfo:
        """The leader, once one serves.

        Raises:
            BrokerGroupUnreachable, NotReady: none does within the deadline.
        """
        return await nodes.leader(self._broker_group, self._total_s(deadline_s))

    async def status(self) -> list[NodeState]:
        """Each known member; one that does not answer in time is marked as not alive."""
        return await nodes.states(self._broker_group, self._options.status_timeout_s)

    async def transfer_leadership(
        self, target: str | None = None, *, deadline_s: float | None = None
    ) -> LeaderInfo:
        """The new leader, as the old one sees it.

        Args:
            target: a node id; None: the best caught-up voter.

        Raises:
            TransferFailed: whom it was to go to can't lead now; nothing was tried.
            InvalidArgument: the target doesn't vote.
            ClientError: with `Outcome.MAY_HAVE_HAPPENED` when it wasn't done in time, or the
                answer was lost; not tried again.
        """
        return await nodes.hand_over(self._broker_group, target, deadline_s)


def warn_unclosed(client: object) -> None:
    """`client` is being forgotten and was never closed: its connections stay as they are."""
    warnings.warn(f"{client!r} was never closed", ResourceWarning, stacklevel=3, source=client)
