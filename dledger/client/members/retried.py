"""Messages that come again, as their handlers see them, and what says that one never should."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.client.results import Message
from dledger.records.reserved import ORIGIN_TOPIC, RETRY_PREFIX


class Reject(Exception):
    """Raised by a handler of a push consumer: nobody will ever be able to work on this message. It
    goes to the group's dead letters, %DLQ%group, at once; in a broadcast group, which has none, it
    counts as finished at this member, and the log says so, as an error. So does what a handler's
    group of tasks ends with, if one of them has raised this."""


def is_rejection(error: BaseException) -> bool:
    """Whether a handler has rejected its message."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Reject) is not None
    return isinstance(error, Reject)


def as_sent(topic: str, messages: Sequence[Message]) -> Sequence[Message]:
    """Messages of that topic; those of a retry topic with the name of the one that they were sent
    to. Queue and offset stay those of the retry topic, by which they are finished."""
    if not topic.startswith(RETRY_PREFIX):
        return messages
    return [each._replace(topic=each.properties.get(ORIGIN_TOPIC, topic)) for each in messages]
