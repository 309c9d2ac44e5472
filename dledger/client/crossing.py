"""A message on its way to the loop's thread: what it is, whatever its sender does meanwhile.

Its sender goes on at once, and may use its buffer, or its dict, for the next message. So what can
change is copied in the sender's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger.client.arguments import body_bytes
from dledger.client.errors import ClientError, InvalidArgument, Subject
from dledger.client.packing import Packed
from dledger.client.results import NewMessage
from dledger.client.sent import Sent


class Crossing(NamedTuple):
    """A send on its way to the loop's thread. `packed`: what has become of it already, if that was
    asked for; `future`: None, if nobody wants to know; `due_at`: when its own deadline is over, by
    `time.monotonic`."""

    message: NewMessage
    packed: Packed | ClientError | None
    future: Sent | None
    due_at: float | None

    def __eq__(self, other: object) -> bool:
        """Each is one of its own: what is taken back is never another thread's, of an equal
        message."""
        return self is other

    def __hash__(self) -> int:
        return id(self)


def owned(message: NewMessage) -> NewMessage:
    """The message, of which its sender can change nothing any more. What is of a wrong kind stays
    as it is: it is told where all arguments are looked at.

    Raises:
        InvalidArgument: the body, or the properties, can't be read.
    """
    topic, body, key, tag, properties, queue_id, deadline_s = message
    if type(body) is bytes and properties is None:
        return message
    given: object = body
    if isinstance(given, bytearray | memoryview):
        body = body_bytes(given)
    if isinstance(properties, Mapping):
        try:
            properties = dict(properties.items())
        except Exception as error:  # a mapping of the sender's own may raise anything
            raise InvalidArgument(
                f"properties can't be read: {type(error).__name__}: {error}",
                subject=Subject.MESSAGE,
            ) from error
    return NewMessage(topic, body, key, tag, properties, queue_id, deadline_s)
