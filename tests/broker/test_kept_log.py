"""Which state a log gives is part of what is on disk: a snapshot holds the one and not the other.

`tests/fixtures/applied.log.xz` (`tests/broker/kept_log.py` made it) is a log that never changes;
the state that it gives is pinned, by version of the rules
(docs/adr/0038-snapshots-of-state-on-disk.md).
"""

from __future__ import annotations

import hashlib
import lzma
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from broker.state.layout import APPLYING, EARLIEST_BASE
from broker.state.level import COMMAND_LEVELS
from broker.state.listening import Nobody
from broker.state.machine import StateMachine
from broker.state.refusals import BatchRefusal, Refusal
from broker.state.snapshot import unseal
from dledger.core.types import EntryKind
from dledger.reading.entry import HEADER_SIZE, walk_frames
from dledger.wire.commands_pb2 import Command
from tests.broker import kept_log
from tests.broker.leader import NoQueues

FIXTURE = Path(__file__).parents[1] / "fixtures" / "applied.log.xz"
PIECES = 4
# Of level 3: tests/broker/test_log_start.py; of level 4:
# tests/broker/test_topic_retention.py; of level 5: tests/broker/test_compound.py; of level 6:
# tests/broker/test_consuming.py; of level 8: tests/broker/test_moving.py and
# tests/broker/test_delivering.py; of level 9: tests/broker/test_queue_numbers.py.
# tests/broker/test_delivering.py; of level 9: tests/broker/test_topic_permissions.py.
IN_LATER_LOGS = {
    *("move_log_start", "retain_topic", "move_queue_starts", "settle_units"),
    *("join_group", "end_sessions", "grant_leases", "commit_leases", "forget_groups"),
    *("deliver", "move_group", "clone_group"),
    *("send_back", "fire_delayed", "resend", "fail_message", "bury"),
    "update_topic",
    *("permit_topic", "make_topic"),
}
# By version of applying: the state after each quarter of the log, by the SHA-256 of its sections.
STATES = {
    1: (
        "ceb5b468b14f4393937a9ded16a6b0d6915d2899cecb2aad576eb071bbb3b545",
        "75c7eebf2cd0299eff19bc3250946c6bec35eee84c70b9685c93aa02dc59c712",
        "1c9b32a2b888efa4cc80490d6eb8d590635c869441be026cadba9ae36305ce87",
        "c8391a07b3fe1879b410d9c552a3d3ee75818125662ec07f031a186d9f3acf4d",
    ),
}
WHAT_TO_DO = """
The kept log gives another state than it did.
If that isn't meant, it is a defect: members that apply entries alike hold the same state.
If it is meant, members of two releases must not differ at an entry: decide by the level in use.
Then this log, which has none of the new level, gives what it gave, and nothing here changes.
If only the bytes of a section are others: raise the section's version, still read the one before,
raise APPLYING in broker/state/layout.py, and pin the new hashes under that version. EARLIEST_BASE
stays: logs begin with states of before, and nobody has what those were made of. See
CONTRIBUTING.md, "What a command does, changed".
"""


def frames() -> bytes:
    return lzma.decompress(FIXTURE.read_bytes())


def state_of(machine: StateMachine) -> str:
    """A hash of what the owners write, whatever the versions that they write it under."""
    found = hashlib.sha256()
    for name, chunks in groupby(unseal(machine.snapshot()), key=lambda each: each.section):
        payload = b"".join(each.payload for each in chunks)
        found.update(f"{name} {len(payload)}\n".encode() + payload)
    return found.hexdigest()


class Told(Nobody):
    """Notes what became of commands and batches."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        self.refused.add(type(refusal).__name__)

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        self.refused.add(type(refusal).__name__)


def test_kept_log_gives_the_state_that_it_gave() -> None:
    """After each quarter, so that nothing can be made up for by what follows."""
    log, machine = frames(), StateMachine(NoQueues())
    headers = walk_frames(log)
    states = []
    at = 0
    for piece in range(1, PIECES + 1):
        upto = headers[: len(headers) * piece // PIECES]
        end = sum(each.total_size for each in upto)
        machine.apply(log[at:end])
        machine.check_invariants()
        states.append(state_of(machine))
        at = end
    assert at == len(log)
    assert STATES.get(APPLYING) == tuple(states), WHAT_TO_DO


def test_kept_log_holds_all_that_changes_the_state() -> None:
    """Each command, and each may take effect or none."""
    log, told = frames(), Told()
    machine = StateMachine(NoQueues())
    machine.listen(told)
    names, producers = set(), [0]
    at = 0
    for header in walk_frames(log):
        if header.kind == EntryKind.COMMAND and header.record_count == 0:
            body = log[at + HEADER_SIZE : at + header.total_size]
            if body != kept_log.NO_COMMAND:
                names.add(Command.FromString(body).WhichOneof("body"))
        machine.apply(log[at : at + header.total_size])
        producers.append(len(machine.producers))
        at += header.total_size
    assert any(after < before for before, after in pairwise(producers)), "nobody was forgotten"
    assert set(COMMAND_LEVELS) - IN_LATER_LOGS <= names
    assert told.refused >= {
        *("NoneType", "TopicExists", "TopicNotFound", "TopicReplaced", "TooManyQueues"),
        *("ProducerFenced", "LevelNotNext", "Malformed", "OffsetTaken"),
    }
    statistics = machine.statistics()
    assert min(statistics.topics, statistics.groups, statistics.sequences) > 0


@pytest.mark.parametrize("version", STATES)
def test_states_of_versions_before_stay(version: int) -> None:
    """Each was another one; else there was nothing to raise the version for."""
    assert 1 <= version <= APPLYING
    assert len(set(STATES.values())) == len(STATES)


def test_a_log_may_begin_with_a_state_of_any_version() -> None:
    """Groups go on for longer than a release: what their logs begin with was made by any of them,
    and a program that refused it would start on none of their disks."""
    assert min(STATES) == EARLIEST_BASE
