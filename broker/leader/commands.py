"""Commands of the replicated state, proposed by the leader: plain arguments in, a refusal out.

The one place where a caller's wish becomes the bytes that lie in the log for ever
(`proto/dledger/wire/commands.proto`); the services above know neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Protocol

from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
)


class Submitter(Protocol):
    """The appender, as far as commands go."""

    def submit(self, command: Command) -> Awaitable[str]: ...


class Commands:
    """Each call proposes one command; awaiting it gives the state machine's refusal once the
    command is applied, empty when it took effect.

    Raises:
        BrokerError: from the call itself: nothing was proposed.
    """

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter

    def create_topic(self, name: str, queue_count: int) -> Awaitable[str]:
        """Proposes a topic."""
        command = CreateTopicCommand(name=name, queue_count=queue_count)
        return self._submitter.submit(Command(create_topic=command))

    def delete_topic(self, name: str) -> Awaitable[str]:
        """Proposes the end of a topic."""
        return self._submitter.submit(Command(delete_topic=DeleteTopicCommand(name=name)))

    def commit_offsets(
        self, group: str, topic: str, offsets: Iterable[tuple[int, int]], *, reset: bool
    ) -> Awaitable[str]:
        """Proposes a consumer group's (queue id, offset) pairs; back as well if `reset`."""
        wanted = [CommittedOffset(queue_id=queue, offset=offset) for queue, offset in offsets]
        command = CommitOffsetsCommand(group=group, topic=topic, offsets=wanted, reset=reset)
        return self._submitter.submit(Command(commit_offsets=command))
