"""The start: ConsumeQueues are compared with the log, and those that are wrong are told, alone."""

from __future__ import annotations

from broker.state.replay import replay_derived
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LogUnderTest


def test_queues_of_no_topic_are_removed() -> None:
    """Whatever left them: nobody reads them, and a topic of the name would find them."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk)
    queues.dispatch("of-no-topic", 0, 0, UNIT.pack(80, 100, 0))
    queues.flush()
    replayed = replay_derived(LogUnderTest(disk).log, queues, 0)
    assert not disk.exists(DATA / "consumequeue" / "of-no-topic")
    assert replayed.wrong == ()
    assert queues.queues() == []


def test_distrust_is_durable() -> None:
    """The checkpoint says so on the platter when the call returns."""
    disk = SimulatedDisk()
    checkpoint = LogUnderTest(disk).log.checkpoint
    checkpoint.note_consume_queue(7, 1)
    checkpoint.sync()
    checkpoint.distrust_consume_queues()
    disk.power_cut()
    assert LogUnderTest(disk).log.checkpoint.state.consume_queue_index == 0
