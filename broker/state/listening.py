"""What the state machine tells while it applies, and to whom: a port with one method a fact.

A listener is called in the midst of an entry, when the owners of state have taken it; it must not
raise, and it may read the state and never change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.state.compound import Judged
from broker.state.moving import Moves
from broker.state.refusals import BatchRefusal, Malformed, Refusal
from broker.state.topics import TopicState

QueueKey = tuple[int, int]  # the topic's incarnation, queue id


class Listener(Protocol):
    """Who is told what was applied, while it is applied."""

    def arrived(self, queue: QueueKey) -> None:
        """The queue got messages, or goes on through void ones."""
        ...

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        """The data entry at `index` was refused: it is in no queue."""
        ...

    def entry_voided(self, index: int, refusal: Malformed) -> None:
        """The entry at `index`, which is no batch, isn't what any entry may be."""
        ...

    def topic_deleted(self, topic: TopicState) -> None:
        """Every queue of the topic is gone."""
        ...

    def topic_created(self, name: str) -> None:
        """There is a topic of that name."""
        ...

    def topic_changed(self, topic: TopicState) -> None:
        """The topic is read or written in other queues."""
        ...

    def topic_permitted(self, topic: TopicState) -> None:
        """Something else may be done with the topic."""
        ...

    def group_changed(self, name: str) -> None:
        """Members, settings or leases of the group may be others."""
        ...

    def group_moved(self, moves: Moves) -> None:
        """The command that is being applied has a group go on there; it takes effect."""
        ...

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        """The command at `index` took effect, or was refused."""
        ...

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        """Each unit of the compound entry at `index` took effect, or was refused."""
        ...


class Nobody:
    """A `Listener` that isn't interested."""

    def arrived(self, queue: QueueKey) -> None:
        return None

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        return None

    def entry_voided(self, index: int, refusal: Malformed) -> None:
        return None

    def topic_deleted(self, topic: TopicState) -> None:
        return None

    def topic_created(self, name: str) -> None:
        return None

    def topic_changed(self, topic: TopicState) -> None:
        return None

    def topic_permitted(self, topic: TopicState) -> None:
        return None

    def group_changed(self, name: str) -> None:
        return None

    def group_moved(self, moves: Moves) -> None:
        return None

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        return None

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        return None
