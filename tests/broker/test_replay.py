"""The start: ConsumeQueues are compared with the log, and those that are wrong are told, alone."""

from __future__ import annotations

import errno

import pytest

from broker.state import replay
from broker.state.machine import StateMachine
from broker.state.replay import replay_derived
from dledger.reading.entry import HEADER_SIZE, EntryKind
from dledger.records.layout import file_name
from dledger.wire.commands_pb2 import Command, CreateTopicCommand
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LogUnderTest, all_frames
from tests.store.test_consumequeue import data_body


def filled(
    made: LogUnderTest, queues: ConsumeQueues, names: tuple[str, ...], count: int
) -> StateMachine:
    """The state of a log with `count` messages, an entry each, in the one queue of each topic."""
    for name in names:
        command = Command(create_topic=CreateTopicCommand(name=name, queue_count=1))
        made.append(command.SerializeToString())
    for base in range(count):
        for name in names:
            size = HEADER_SIZE + len(data_body(name, 0, [b"x"], base, 0))
            if not made.log.has_room(size):
                made.preallocate()
            body = data_body(name, 0, [b"x"], base, made.log.next_position(size))
            made.log.append(EntryKind.DATA, made.log.last_index + 1, 1, 7, 1, body)
    made.flush()
    machine = StateMachine(queues)
    machine.apply(all_frames(made.log))
    return machine


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


def test_queues_of_no_topic_stop_no_start_on_a_full_disk() -> None:
    """They stay until the next one, and a topic of the name has none of their units."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk)
    folder = DATA / "consumequeue" / "t@2"
    stray = b"".join(UNIT.pack(80 * number, 100, 7) for number in range(3))
    queues.dispatch(folder.name, 0, 0, stray)
    queues.flush()
    queues.close()
    for again in (True, False):
        queues, made = ConsumeQueues(DATA, disk), LogUnderTest(disk)
        if again:
            disk.fail_next("rename", errno.ENOSPC)
        replayed = replay_derived(made.log, queues, 0)
        assert (replayed.wrong, queues.queues()) == ((), [])
        assert disk.exists(folder) is again
        queues.dispatch(folder.name, 0, 0, UNIT.pack(160, 100, 9))
        queues.flush()
        content = disk.content(folder / "0" / file_name(0))
        assert content[: UNIT.size] == UNIT.pack(160, 100, 9)
        assert not any(content[UNIT.size :]), "what is behind its end is nobody's"
        queues.close()


def test_distrust_is_durable() -> None:
    """The checkpoint says so on the platter when the call returns."""
    disk = SimulatedDisk()
    checkpoint = LogUnderTest(disk).log.checkpoint
    checkpoint.note_consume_queue(7, 1)
    checkpoint.sync()
    checkpoint.distrust_consume_queues()
    disk.power_cut()
    assert LogUnderTest(disk).log.checkpoint.state.consume_queue_index == 0


def test_what_is_no_folder_is_not_removed() -> None:
    """Nobody but a person put it there: the start is refused, and nothing is renamed."""
    disk = SimulatedDisk()
    queues = ConsumeQueues(DATA, disk)
    disk.close(disk.create(DATA / "consumequeue" / "notes"))
    with pytest.raises(OSError, match="directory"):
        replay_derived(LogUnderTest(disk).log, queues, 0)
    assert disk.exists(DATA / "consumequeue" / "notes")


@pytest.mark.parametrize("gathered_bytes", [1, 100, 1 << 20])
def test_a_wrong_unit_anywhere_is_found_whenever_it_is_compared(
    monkeypatch: pytest.MonkeyPatch, gathered_bytes: int
) -> None:
    """In the first run, in one between, or in what is left at the end; and no queue else."""
    monkeypatch.setattr(replay, "GATHERED_BYTES", gathered_bytes)
    for wrong_at in (0, 3, 6):
        disk = SimulatedDisk()
        made = LogUnderTest(disk)
        queues = ConsumeQueues(DATA, disk)
        machine = filled(made, queues, ("t", "other"), 7)
        path = DATA / "consumequeue" / machine.topics["t"].folder / "0" / file_name(0)
        disk.bytes_of(path)[wrong_at * UNIT.size] ^= 1
        queues.close()
        replayed = replay_derived(made.log, ConsumeQueues(DATA, disk), made.log.last_index)
        found = [(each.topic.name, each.queue_id) for each in replayed.wrong]
        assert found == [("t", 0)]
