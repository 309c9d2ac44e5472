"""Tells those who wait what the state machine has applied: appender, held pulls, groups.

A batch that is void is told to the operator as well: leaders propose nothing that would be
(ADR 20), so one of them, or this replica's state, is wrong. Such a leader writes more than
one: one line a cause, once in a while; the metric counts all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from broker.leader.append import Appender
from broker.leader.groups.keeper import GroupKeeper
from broker.reading.held import HeldPulls
from broker.state.compound import Judged
from broker.state.listening import QueueKey
from broker.state.moving import Moves
from broker.state.refusals import BatchRefusal, Malformed, Refusal
from broker.state.topics import TopicState
from dledger.sparing import Sparing

log = structlog.get_logger(__name__)


class Announcer:
    """The state machine's `Listener` in a node."""

    def __init__(self, appender: Appender, held: HeldPulls, groups: GroupKeeper) -> None:
        self._appender = appender
        self._held = held
        self._groups = groups
        self._sparing = Sparing()
        self._moves: Moves | None = None  # of the command that is being applied

    def arrived(self, queue: QueueKey) -> None:
        self._held.wake(queue)

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        if (unreported := self._sparing.due(type(refusal).__name__)) is not None:
            log.warning("batch_voided", index=index, refusal=refusal, unreported=unreported)
        self._appender.on_batch_voided(index, refusal)

    def entry_voided(self, index: int, refusal: Malformed) -> None:
        if (unreported := self._sparing.due("entry_voided")) is not None:
            log.error("entry_voided", index=index, reason=refusal.why, unreported=unreported)

    def topic_deleted(self, topic: TopicState) -> None:
        self._held.wake_topic(topic.incarnation)
        self._groups.on_topic(topic.name)

    def topic_created(self, name: str) -> None:
        self._groups.on_topic(name)

    def topic_changed(self, topic: TopicState) -> None:
        self._held.wake_topic(topic.incarnation)
        self._groups.on_topic(topic.name)

    def topic_permitted(self, topic: TopicState) -> None:
        self._held.wake_topic(topic.incarnation)

    def group_changed(self, name: str) -> None:
        self._groups.on_group(name)

    def group_moved(self, moves: Moves) -> None:
        self._moves = moves

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        for number, unit in enumerate(units):
            if unit.refusal is None or not unit.batches:
                continue
            if (unreported := self._sparing.due("unit_voided")) is not None:
                log.warning(
                    "unit_voided",
                    index=index,
                    unit=number,
                    refusal=unit.refusal,
                    unreported=unreported,
                )
        self._appender.on_units(index, units)
        self._held.look()

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        moves, self._moves = self._moves, None
        self._appender.on_command(index, refusal or moves)
        self._held.look()
