"""Where the log may begin, as replicated state: moved by an entry, kept in snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.state.errors import SnapshotRefused
from broker.state.layout import LOG_START_SECTION
from broker.state.log_start import SECTION, RetiredThrough
from broker.state.machine import StateMachine
from broker.state.refusals import LogStartNotMoved
from broker.state.snapshot import Section, pack, seal, unseal
from dledger.level import KNOWN_LEVEL, LOG_START_LEVEL
from dledger.wire.commands_pb2 import Command, MoveLogStartCommand, RaiseLevelCommand
from tests.broker.leader import Bench, NoQueues

ROOT = Path(__file__).parents[2]


def raised(bench: Bench) -> None:
    for level in range(2, LOG_START_LEVEL + 1):
        bench.submit(Command(raise_level=RaiseLevelCommand(level=level)))


def move(index: int) -> Command:
    return Command(move_log_start=MoveLogStartCommand(first_index=index))


def test_it_goes_forward_as_far_as_is_applied() -> None:
    start = RetiredThrough()
    assert start.move(5, 9) is None
    assert start.first_index == 5
    for wanted in (5, 4, 1, 0, 10):
        assert start.move(wanted, 9) == LogStartNotMoved(wanted, 5, 9)
    assert start.first_index == 5
    assert start.move(9, 9) is None


def test_an_entry_moves_it_on_every_replica_once_the_level_is_in_use() -> None:
    """Before, it is void: a program that doesn't know it would keep what others let go."""
    bench = Bench(known_level=KNOWN_LEVEL)
    bench.submit(move(1))
    assert bench.machine.log_start.first_index == 1
    raised(bench)
    assert bench.machine.level.current == LOG_START_LEVEL
    bench.submit(move(3))
    assert bench.machine.log_start.first_index == 3
    replayed = StateMachine(NoQueues())
    replayed.apply(bench.log.read(1, bench.log.last_index))
    assert replayed.log_start == bench.machine.log_start


def test_a_snapshot_has_it_where_something_was_retired() -> None:
    """And is what it was for releases that know nothing of it where nothing was."""
    bench = Bench(known_level=KNOWN_LEVEL)
    raised(bench)
    assert SECTION not in {each.section for each in unseal(bench.machine.snapshot())}
    bench.submit(move(2))
    chunks = list(bench.machine.snapshot())
    assert [each.section for each in unseal(chunks)][-1] == SECTION
    restored = StateMachine.restore(chunks, NoQueues())
    assert restored.log_start.first_index == 2
    assert list(restored.snapshot()) == chunks


@pytest.mark.parametrize("value", [0, 1, 1 << 40])
def test_a_start_that_no_log_gives_is_refused(value: int) -> None:
    bench = Bench(known_level=KNOWN_LEVEL)
    raised(bench)
    sections = [
        Section(each.section, each.version, iter((each.payload,)))
        for each in unseal(bench.machine.snapshot())
    ]
    own = LOG_START_SECTION.struct().pack(value)
    sections.append(Section(SECTION, 1, pack((own,))))
    with pytest.raises(SnapshotRefused):
        StateMachine.restore(seal(bench.machine.applied_index, sections), NoQueues())
