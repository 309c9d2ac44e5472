"""Tells those who wait what the state machine has applied: the appender and the held pulls.

This owns the order: when a topic is gone, the appender forgets what it knew of it before any pull
looks again.
"""

from __future__ import annotations

from broker.leader.append import Appender
from broker.reading.held import HeldPulls
from broker.state.listening import QueueKey
from broker.state.refusals import Refusal


class Announcer:
    """The state machine's `Listener` in a node."""

    def __init__(self, appender: Appender, held: HeldPulls) -> None:
        self._appender = appender
        self._held = held

    def arrived(self, queue: QueueKey) -> None:
        self._held.wake(queue)

    def batch_voided(self, index: int) -> None:
        self._appender.on_batch_voided(index)

    def topic_deleted(self, topic: str) -> None:
        self._appender.on_topic_deleted(topic)
        self._held.wake_topic(topic)

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        self._appender.on_command(index, refusal)
