"""The port through which entries are derived into ConsumeQueues, while they are applied."""

from __future__ import annotations

from typing import Protocol


class QueueFiles(Protocol):
    """`store.consumequeue.ConsumeQueues`, as far as the state machine uses them."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
