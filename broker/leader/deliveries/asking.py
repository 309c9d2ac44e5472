"""What receivers ask of a desk, and what they are answered: plain values, and who waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.errors import BrokerError
from dledger.wire.commands_pb2 import SettledMessages, Settling


@dataclass(frozen=True, slots=True)
class Place:
    """Whose messages of what: the topic by name and incarnation."""

    group: str
    topic: str
    incarnation: int


class Settlement(NamedTuple):
    """What becomes of messages of one queue that one entry gave; fields as in `SettledMessages`."""

    queue_id: int
    handout: int
    base: int
    mask: int
    what: int
    hidden_ms: int

    def command(self) -> SettledMessages:
        """As it lies in the log."""
        settling = Settling.Name(self.what)
        return SettledMessages(
            queue_id=self.queue_id,
            handout=self.handout,
            base=self.base,
            mask=self.mask,
            what=settling,
            hidden_ms=self.hidden_ms,
        )


class Wanted(NamedTuple):
    """Messages for one attempt."""

    attempt_id: bytes
    max_messages: int
    max_bytes: int
    hidden_ms: int
    is_again: bool  # the same as it was given before, if that isn't finished


class Handed(NamedTuple):
    """Messages of one queue that one entry gave: `count` records, back to back."""

    queue_id: int
    handout: int
    attempt: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    records: bytes


class Superseded(NamedTuple):
    """Messages of the settlement at `position` that aren't in the hand it names, as its bits."""

    position: int
    mask: int


@dataclass(eq=False, slots=True)
class Receiver:
    """Somebody who waits for messages."""

    wanted: Wanted
    done: asyncio.Future[list[Handed]]
    looked: asyncio.Future[None]  # done once there was nothing for it
    chosen_at_s: float = 0.0  # by the loop's clock: when messages were last looked for
    is_under_way: bool = False  # messages were chosen for it, and are on their way into the log
    looks_back: bool = False  # its attempt may have been given messages before
    lacks: bool = False  # some of those couldn't be read: what is chosen is no answer

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # whoever awaited it may be gone


@dataclass(eq=False, slots=True)
class Settler:
    """Somebody who has done with messages."""

    settled: tuple[Settlement, ...]
    done: asyncio.Future[list[Superseded]]
    superseded: list[Superseded] = field(default_factory=list)

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()

    @property
    def took_effect(self) -> bool:
        """Whether any of it is so: all of it that isn't superseded, once it is done."""
        if not self.done.done() or self.done.cancelled() or self.done.exception() is not None:
            return False
        stale = {each.position: each.mask for each in self.done.result()}
        return any(each.mask & ~stale.get(at, 0) for at, each in enumerate(self.settled))
