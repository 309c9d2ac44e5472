"""Units about failed messages: a copy and the command that goes with it, as they will lie in the
log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.leader.batches import Batch
from broker.leader.units import ProposedUnit
from broker.state.refusals import Refusal
from broker.state.topics import TopicRef
from dledger.wire.commands_pb2 import (
    Command,
    FailMessageCommand,
    ResendCommand,
    SendBackCommand,
)

Condition = Callable[[], Refusal | None]


class Failed(NamedTuple):
    """A message that a session can't work on; by which lease it has it."""

    group: str
    session: int
    topic: TopicRef
    queue_id: int
    epoch: int
    offset: int


def sent_back(copy: Batch, failed: Failed, condition: Condition) -> ProposedUnit:
    """The message is finished for its group, and the copy takes its place."""
    command = SendBackCommand(
        group=failed.group,
        session=failed.session,
        topic=failed.topic.name,
        incarnation=failed.topic.incarnation,
        queue_id=failed.queue_id,
        epoch=failed.epoch,
        offset=failed.offset,
    )
    return ProposedUnit((copy,), (Command(send_back=command),), condition)


def failed_in_place(failed: Failed, failures: int, condition: Condition) -> ProposedUnit:
    """The message stays in front of its queue, and has failed so often."""
    command = FailMessageCommand(
        group=failed.group,
        session=failed.session,
        topic=failed.topic.name,
        incarnation=failed.topic.incarnation,
        queue_id=failed.queue_id,
        epoch=failed.epoch,
        offset=failed.offset,
        failures=failures,
    )
    return ProposedUnit((), (Command(fail_message=command),), condition)


def sent_again(
    copy: Batch, dead: TopicRef, queue_id: int, offset: int, condition: Condition
) -> ProposedUnit:
    """The dead letter of that place is a message again."""
    command = ResendCommand(
        topic=dead.name, incarnation=dead.incarnation, queue_id=queue_id, offset=offset
    )
    return ProposedUnit((copy,), (Command(resend=command),), condition)
