"""Commands about what is wished of a topic: what each does to the owners of that state (ADR 62).

A topic that is made with wishes is made with all of them, or not at all: no failover can part what
one entry does. This holds no state itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.state.refusals import (
    Malformed,
    PermissionUnknown,
    Refusal,
    RetentionOutOfRange,
    TopicNotFound,
    TopicReplaced,
)
from broker.state.topic_permissions import KNOWN, TopicPermissions
from broker.state.topic_retention import MAX_RETENTION_MS, TopicRetentions
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.records.reserved import is_reserved
from dledger.wire.commands_pb2 import MakeTopicCommand, PermitTopicCommand

Meant = Callable[[TopicRef], TopicState | TopicNotFound | TopicReplaced]


class Owners(Protocol):
    """The owners of state that these commands are about."""

    @property
    def topics(self) -> Topics: ...
    @property
    def topic_retention(self) -> TopicRetentions: ...
    @property
    def topic_permissions(self) -> TopicPermissions: ...


def permit(owners: Owners, meant: Meant, command: PermitTopicCommand) -> TopicState | Refusal:
    """The topic, with which that may be done now; or why it isn't so. The brokers' own topics take
    what the brokers write, whoever asked for what."""
    topic = meant(TopicRef(command.name, command.incarnation))
    if not isinstance(topic, TopicState):
        return topic
    if is_reserved(topic.name):
        return Malformed("the brokers' own topics are written and read")
    return owners.topic_permissions.permit(topic.incarnation, command.permission) or topic


def make(
    owners: Owners, command: MakeTopicCommand, index: int, append_time_ms: int
) -> Refusal | None:
    """The topic is there, with all that is wished of it; or why nothing of it is."""
    if not 0 <= command.retention_ms <= MAX_RETENTION_MS:
        return RetentionOutOfRange(command.retention_ms, MAX_RETENTION_MS)
    if command.permission not in KNOWN:
        return PermissionUnknown(command.permission)
    refusal = owners.topics.create(
        command.name,
        command.queue_count,
        incarnation=index,
        created_time_ms=append_time_ms,
    )
    if refusal is None:
        owners.topic_retention.wish(index, command.retention_ms)
        owners.topic_permissions.permit(index, command.permission)
    return refusal
