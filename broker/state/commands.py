"""Commands that are entries by themselves: each is taken to its owner, or refused.

What one of them does to several owners is in `broker.state.effects`. A command of a level above the
one in use is void, and so is one that this program can't read; a rise to a level that it doesn't
know stops the machine in front of it (ADR 23).
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from broker.state import topic_rules
from broker.state.compound import commit_of
from broker.state.effects import Effects
from broker.state.level import COMMAND_LEVELS
from broker.state.queue_files import QueueFiles
from broker.state.refusals import Malformed, Refusal
from broker.state.registration import Registration
from broker.state.replicated import ReplicatedState
from broker.state.resizing import resize
from broker.state.topics import TopicRef, TopicState
from dledger.level import FIRST_LEVEL, GROUPS_LEVEL, TOPIC_RULES_LEVEL
from dledger.reading.entry import EntryHeader
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CreateTopicCommand,
    ForgetGroupsCommand,
    JoinGroupCommand,
    MakeTopicCommand,
    MoveQueueStartsCommand,
    PermitTopicCommand,
    RegisterProducerCommand,
    RetainTopicCommand,
    UpdateTopicCommand,
)


class LevelUnknown(Exception):
    """The level would be raised beyond what this program knows: `apply` ends in front of it."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level


class Commands:
    """Applies commands to `state`.

    Args:
        state: what they change.
        effects: what they change in several owners at once.
        queues: whose files go with a topic.
        void: counts and tells that an entry changes nothing; gives the reason back.
        derived_through: up to which entry the files are as they are to be.
        known_level: of formats and commands.
    """

    def __init__(
        self,
        state: ReplicatedState,
        effects: Effects,
        queues: QueueFiles,
        void: Callable[[int, Malformed], Malformed],
        *,
        derived_through: int,
        known_level: int,
    ) -> None:
        self._state = state
        self._effects = effects
        self._queues = queues
        self._void = void
        self._derived_through = derived_through
        self._known_level = known_level

    def apply(self, header: EntryHeader, body: bytes) -> Refusal | None:
        """Applies one command; why it took no effect, or None."""
        try:
            command = Command.FromString(body)
        except DecodeError as error:
            return self._void(header.index, Malformed(f"no command: {error}"))
        name = command.WhichOneof("body")
        if COMMAND_LEVELS.get(name or "", FIRST_LEVEL) > self._state.level.current:
            return self._void(header.index, Malformed(f"{name} is of a level above the one in use"))
        match name:
            case "create_topic":
                return self._create_topic(header, command.create_topic)
            case "delete_topic":
                deleted = command.delete_topic
                return self._delete_topic(header, TopicRef(deleted.name, deleted.incarnation))
            case "commit_offsets":
                return self._commit_offsets(command.commit_offsets)
            case "register_producer":
                return self._register(header, command.register_producer)
            case "forget_producers":
                lived_ms = self._state.lived_time.lived_ms
                self._state.producers.forget(command.forget_producers.producer_ids, lived_ms)
                return None
            case "raise_level":
                return self._raise_level(command.raise_level.level)
            case "move_log_start":
                return self._state.log_start.move(command.move_log_start.first_index, header.index)
            case "retain_topic":
                return self._retain_topic(command.retain_topic)
            case "update_topic":
                return self._update_topic(header, command.update_topic)
            case "move_queue_starts":
                return self._move_queue_starts(command.move_queue_starts)
            case "permit_topic":
                return self._permit_topic(command.permit_topic)
            case "make_topic":
                return self._make_topic(header, command.make_topic)
            case "join_group":
                return self._join(command.join_group)
            case "end_sessions":
                self._effects.consuming.end(command.end_sessions, self._effects.now())
                return None
            case "grant_leases":
                return self._effects.consuming.grant(command.grant_leases, self._effects.now())
            case "commit_leases":
                return self._effects.consuming.commit(command.commit_leases, self._effects.now())
            case "forget_groups":
                self._forget_groups(command.forget_groups)
                return None
            case "move_group":
                refusal = self._effects.delivering.refusal_of_style(command.move_group.group)
                return refusal or self._effects.moving.move(command.move_group, self._effects.now())
            case "clone_group":
                return self._effects.moving.clone(command.clone_group, self._effects.now())
            case _:
                return self._void(header.index, Malformed("an unknown command, or none"))

    def _raise_level(self, wanted: int) -> Refusal | None:
        refusal = self._state.level.refusal_of(wanted)
        if refusal is not None:
            return refusal
        if wanted > self._known_level:
            raise LevelUnknown(wanted)
        self._state.level.raise_by_one()
        if wanted == GROUPS_LEVEL:
            self._effects.consuming.begin(self._effects.now())
        if wanted == TOPIC_RULES_LEVEL:
            self._state.deliveries.recount()
        return None

    def _join(self, command: JoinGroupCommand) -> Refusal | None:
        refusal = self._effects.delivering.refusal_of_style(command.group)
        return refusal or self._effects.consuming.join(command, self._effects.now())

    def _forget_groups(self, command: ForgetGroupsCommand) -> None:
        names = self._effects.delivering.forgettable(command.groups, self._state.append_time_ms)
        wanted = ForgetGroupsCommand(groups=names, unused_ms=command.unused_ms)
        self._effects.consuming.forget(wanted, self._effects.now())
        self._effects.delivering.on_forgotten(names)

    def _create_topic(self, header: EntryHeader, create: CreateTopicCommand) -> Refusal | None:
        refusal = self._state.topics.create(
            create.name,
            create.queue_count,
            incarnation=header.index,
            created_time_ms=self._state.append_time_ms,
        )
        if refusal is None:
            self._effects.listener.topic_created(create.name)
        return refusal

    def _retain_topic(self, command: RetainTopicCommand) -> Refusal | None:
        topic = self._effects.meant(TopicRef(command.name, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        return self._state.topic_retention.wish(topic.incarnation, command.retention_ms)

    def _update_topic(self, header: EntryHeader, command: UpdateTopicCommand) -> Refusal | None:
        topic = self._effects.meant(TopicRef(command.name, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        refusal = resize(self._state, topic, command, header.index)
        if refusal is None:
            self._effects.listener.topic_changed(topic)
        return refusal

    def _move_queue_starts(self, command: MoveQueueStartsCommand) -> Refusal | None:
        topic = self._effects.meant(TopicRef(command.name, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        starts = ((each.queue_id, each.offset) for each in command.starts)
        return self._state.topic_retention.move(topic.incarnation, starts, topic.next_offsets)

    def _permit_topic(self, command: PermitTopicCommand) -> Refusal | None:
        topic = topic_rules.permit(self._state, self._effects.meant, command)
        if not isinstance(topic, TopicState):
            return topic
        self._effects.listener.topic_permitted(topic)
        return None

    def _make_topic(self, header: EntryHeader, command: MakeTopicCommand) -> Refusal | None:
        refusal = topic_rules.make(self._state, command, header.index, self._state.append_time_ms)
        if refusal is None:
            self._effects.listener.topic_created(command.name)
        return refusal

    def _delete_topic(self, header: EntryHeader, meant: TopicRef) -> Refusal | None:
        topic = self._effects.meant(meant)
        if not isinstance(topic, TopicState):
            return topic
        if header.index > self._derived_through:
            self._queues.delete_topic(topic.folder)
        self._effects.end_topic(topic)
        return None

    def _commit_offsets(self, command: CommitOffsetsCommand) -> Refusal | None:
        topic = self._effects.meant(TopicRef(command.topic, command.topic_incarnation))
        if not isinstance(topic, TopicState):
            return topic
        return self._effects.commit(commit_of(command), topic)

    def _register(self, header: EntryHeader, command: RegisterProducerCommand) -> Refusal | None:
        wanted = Registration(command.token, command.name, command.previous)
        return self._state.producers.register(wanted, header.index, self._state.lived_time.lived_ms)
