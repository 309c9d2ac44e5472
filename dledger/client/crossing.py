"""A message on its way to the loop's thread: what it is, whatever its sender does meanwhile.

Its sender goes on at once, and may use its buffer, or its dict, for the next message. So what can
change is copied in the sender's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from dledger.client.arguments import body_bytes
from dledger.client.errors import ClientError, InvalidArgument, Subject
from dledger.client.packing import Packed
from dledger.client.results import NewMessage
from dledger.client.sent import Sent


class _Sent(NamedTuple):
    message: NewMessage
    packed: Packed | ClientError | None
    future: Sent | None
    due_at: float | None


class Crossing(_Sent):
    """A send on its way to the loop's thread. `packed`: what has become of it already, if that was
    asked for; `future`: None, if nobody wants to know; `due_at`: when its own deadline is over, by
    `time.monotonic`."""

    __slots__ = ()

    # Each is one of its own: what is taken back is never another thread's, of an equal message. And
    # no step of Python's is between two comparisons, so that no thread has its turn there.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


def is_taken_back(crossing: Crossing, way: deque[Any]) -> bool:
    """Whether it was on its way, and isn't any more: nobody else has it, nor ever will."""
    while True:
        try:
            way.remove(crossing)
        except ValueError:
            return False
        except IndexError:  # another thread has taken a step of its own meanwhile
            continue
        return True


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
