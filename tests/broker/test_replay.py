"""The start: ConsumeQueues that disagree with the log are derived again, and trusted only then."""

from __future__ import annotations

from broker.state.replay import replay_derived
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LogUnderTest


def test_queues_are_distrusted_before_they_are_dropped() -> None:
    """A power cut while they are derived again leaves some of their pages and not others: a file
    with a hole in it can look whole, so the checkpoint mustn't vouch for it by then."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk)
    queues.dispatch("of-no-topic", 0, 0, UNIT.pack(80, 100, 0))
    queues.flush()
    there: list[bool] = []

    def distrust() -> None:
        there.append(disk.exists(DATA / "consumequeue" / "of-no-topic"))

    replay_derived(LogUnderTest(disk).log, queues, 0, distrust)
    assert there == [True]
    assert not disk.exists(DATA / "consumequeue" / "of-no-topic")


def test_queues_that_agree_are_trusted() -> None:
    """Nothing is derived again at an ordinary start."""
    disk = SimulatedDisk()
    distrusted: list[None] = []
    queues = ConsumeQueues(DATA, disk)
    replay_derived(LogUnderTest(disk).log, queues, 0, lambda: distrusted.append(None))
    assert not distrusted


def test_distrust_is_durable() -> None:
    """The checkpoint says so on the platter when the call returns."""
    disk = SimulatedDisk()
    checkpoint = LogUnderTest(disk).log.checkpoint
    checkpoint.note_consume_queue(7, 1)
    checkpoint.sync()
    checkpoint.distrust_consume_queues()
    disk.power_cut()
    assert LogUnderTest(disk).log.checkpoint.state.consume_queue_index == 0
