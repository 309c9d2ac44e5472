"""Whether a leader of before denies anything: it can't know what became so since.

    newest    the highest term in which a node has begun to serve
    before    a call reaches a node of a lower term: that one isn't sure of anything

Who was deposed and hasn't heard of it lacks what others have acknowledged. "There is no such
offset", told by it, is a lie that its caller acts upon: a message that failed for the last time is
given up. So a refusal for good has to wait until a majority has confirmed who leads, which such a
node can't be told. What a request alone is refused for anybody may say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import Message

from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from dledger.wire import errors_pb2 as epb

# What says nothing of what the group holds, or what never becomes untrue.
SAYABLE: Final = frozenset(
    {
        epb.MESSAGE_TOO_LARGE,
        epb.RECORD_CORRUPT,
        epb.WRONG_BROKER_GROUP,
        epb.STRATEGY_UNKNOWN,
        epb.PRODUCER_FENCED,
        epb.INTERNAL,
    }
)


class Denials:
    """What nodes may deny."""

    def __init__(self) -> None:
        self._newest = 0  # the highest term in which anybody served

    def on_event(self, life: Life) -> None:
        """A node has done something."""
        if life.replica.leadership.serving and life.core.term > self._newest:
            self._newest = life.core.term

    def term_of_before(self, life: Life) -> int:
        """The term of a node that others have taken over from; 0: nobody has."""
        term = life.core.term
        return term if term < self._newest else 0

    def check(self, who: str, life: Life, term: int, answer: Message) -> None:
        """What a node answers to a call that reached it in that term of before.

        Raises:
            Defect: it is still in it, and denies something for good.
        """
        if term and life.core.term == term:
            for error in errors_in(answer):
                if not error.retriable and error.code not in SAYABLE:
                    raise Defect(
                        "denied by a leader of before",
                        f"{who}, in term {term}, others in {self._newest}: {error.message[:200]}",
                    )


def errors_in(answer: Message) -> Iterator[epb.Error]:
    """The answer, if it is one, or those of its parts."""
    if isinstance(answer, epb.Error):
        yield answer
        return
    for field, value in answer.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in (value,) if isinstance(value, Message) else value:
                yield from errors_in(each)
