"""The registrations under which one producer numbers its batches. Pure: no clock, no I/O.

An *epoch* is one registration with the brokers (ADR 25): a token drawn here, and the id that the
log has made of it. The newest one may be on its way; nothing is sent under it until it is there,
and a token is used again until it is, so that a lost answer makes no second registration.

Without a name each epoch has numbers of its own, from 0. With one the numbers go on from epoch to
epoch and from process to process: the brokers say where, and refuse whoever had the name before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

PRODUCER_ID_SIZE: Final = 16
TOKEN_SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class Registration:
    """What the brokers said of a producer.

    Attributes:
        producer_id: what its batches name it by.
        origin: its first id under its name. Another one than before says that the name was
            forgotten in between, with all its numbers.
        next_sequences: by topic and queue, where its numbers go on: as many of its messages are
            stored there. Queues that are missing go on at 0. None: they aren't known any more.
        incarnations: by topic, of which one that was told; 0 or missing: nobody said.
    """

    producer_id: bytes
    origin: bytes
    next_sequences: Mapping[tuple[str, int], int] | None
    incarnations: Mapping[str, int] = field(default_factory=dict)


class Epochs:
    """All epochs of one producer; the last is the newest.

    Args:
        name: its user's; empty: none.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._tokens = [os.urandom(TOKEN_SIZE)]
        self._registered: list[Registration] = []

    @property
    def newest(self) -> int:
        return len(self._tokens) - 1

    @property
    def token(self) -> bytes:
        """What the newest epoch is registered with."""
        return self._tokens[-1]

    @property
    def previous_id(self) -> bytes:
        """The id of the last epoch that is registered; empty: none is."""
        return self._registered[-1].producer_id if self._registered else b""

    def is_registered(self, epoch: int) -> bool:
        """Whether batches can be sent under it."""
        return epoch < len(self._registered)

    def registration(self, epoch: int) -> Registration:
        """What the brokers said of `epoch`, which is registered."""
        return self._registered[epoch]

    def on_registered(self, registration: Registration) -> None:
        """The newest epoch has its id. Of a name's former one only that is kept: numbers begin in
        the newest, and those of all its queues may be a megabyte."""
        if self.is_registered(self.newest):
            raise AssertionError("an epoch is registered once")
        if self.name and self._registered:
            self._registered[-1] = replace(self._registered[-1], next_sequences=None)
        self._registered.append(registration)

    def producer_id(self, epoch: int) -> bytes:
        """The 16 bytes that name `epoch`, which is registered."""
        return self._registered[epoch].producer_id

    def first_sequence(self, epoch: int, topic: str, queue_id: int, incarnation: int = 0) -> int:
        """Where numbers in a queue begin under `epoch`, which is registered: at 0 in a topic that
        was made anew since."""
        registration = self._registered[epoch]
        if registration.next_sequences is None:
            raise AssertionError("numbers of a name begin in the newest epoch")
        told = registration.incarnations.get(topic, 0)
        if told and incarnation > told:
            return 0
        return registration.next_sequences.get((topic, queue_id), 0)

    def after(self, epoch: int) -> int:
        """The newest epoch, which is later than `epoch`, or as good: nothing was ever sent under
        one that isn't registered. Lanes that fail together share it."""
        if epoch == self.newest and self.is_registered(epoch):
            self._tokens.append(os.urandom(TOKEN_SIZE))
        return self.newest
