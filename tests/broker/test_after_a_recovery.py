"""What a forced configuration does to replicated state: a log that was cut short at the survivor's
end says where consumer groups go on, and nobody's memory does (ADR 52)."""

from __future__ import annotations

from dataclasses import replace

from broker.state.leases import FREE, Lease, Place
from broker.state.listening import Nobody
from broker.state.machine import StateMachine
from broker.state.refusals import Refusal, SessionUnknown
from dledger.codec import configuration_bytes
from dledger.core.group_epoch import GroupEpoch, Recovery
from dledger.core.types import Configuration, DiskId, EntryKind, NodeId
from dledger.level import DELIVERY_LEVEL, FIRST_LEVEL, KNOWN_LEVEL
from dledger.reading.entry import build_frame
from dledger.wire.commands_pb2 import Command, GroupSettings
from tests.broker.leader import NoQueues

SURVIVOR = NodeId("n3")


class Heard(Nobody):
    """What became of the last command, and the groups that changed."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.changed: list[str] = []

    def group_changed(self, name: str) -> None:
        self.changed.append(name)

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        self.refusal = refusal


class Log:
    """Entries of nobody's making, applied as they come."""

    def __init__(self, level: int) -> None:
        self.heard = Heard()
        self.machine = StateMachine(NoQueues(), known_level=KNOWN_LEVEL)
        self.machine.listen(self.heard)
        for wanted in range(FIRST_LEVEL + 1, level + 1):
            self.command(raise_level={"level": wanted})

    def apply(self, kind: EntryKind, body: bytes) -> int:
        index = self.machine.applied_index + 1
        head, _ = build_frame(kind, index, 1, 100 * index, 1_000 + index, 0, body, 0)
        self.machine.apply(head + body)
        return index

    def command(self, **body: dict[str, object]) -> Refusal | None:
        self.apply(EntryKind.COMMAND, Command(**body).SerializeToString())
        return self.heard.refusal

    def configuration(self, wanted: Configuration) -> int:
        return self.apply(EntryKind.CONFIGURATION, configuration_bytes(wanted))

    def forced(self) -> Configuration:
        """The next entry's, if a recovery writes it."""
        index = self.machine.applied_index + 1
        last = Recovery(SURVIVOR, 7, 1, index, index - 1)
        return Configuration(
            voters=frozenset({SURVIVOR}),
            disks=((SURVIVOR, DiskId(b"d" * 16)),),
            epoch=GroupEpoch((b"r" * 16,), last),
        )


def with_two_members(level: int) -> tuple[Log, tuple[int, int], int]:
    """A topic of two queues; two sessions that hold one each, and its incarnation."""
    log = Log(level)
    log.command(create_topic={"name": "t", "queue_count": 2})
    topic = log.machine.applied_index
    sessions: list[int] = []
    for name in ("a", "b"):
        settings = GroupSettings(version=1, strategy="STICKY", topics=["t"])
        refusal = log.command(
            join_group={"group": "g", "member": name, "token": b"8 bytes!", "settings": settings}
        )
        assert refusal is None, refusal
        sessions.append(log.machine.applied_index)
    for queue_id, session in enumerate(sessions):
        grant = {"queue_id": queue_id, "session": session}
        starts = {"topic": "t", "incarnation": topic, "grants": [grant]}
        starts |= {"starts": [0, 0]} if queue_id == 0 else {}
        assert log.command(grant_leases={"group": "g", "topics": [starts]}) is None
    return log, (sessions[0], sessions[1]), topic


def lease(log: Log, topic: int, queue_id: int) -> Lease:
    return log.machine.leases.of(Place("g", topic, queue_id))


def test_a_recovery_ends_all_sessions_and_keeps_what_the_log_says() -> None:
    """Who commits in one is told that it is over; the group, its start and its settings stay."""
    log, sessions, topic = with_two_members(DELIVERY_LEVEL)
    offsets = dict(log.machine.offsets.of("g", "t"))
    log.configuration(log.forced())
    assert log.machine.groups.session_count == 0
    assert [lease(log, topic, queue_id) for queue_id in (0, 1)] == [FREE, FREE]
    assert log.machine.groups.joined("g") is not None
    assert log.machine.offsets.of("g", "t") == offsets
    assert log.heard.changed[-2:] == ["g", "g"]
    assert log.command(commit_leases={"group": "g", "session": sessions[0]}) == SessionUnknown(
        sessions[0]
    )
    log.machine.check_invariants()


def test_configurations_that_follow_carry_the_epoch_and_end_nothing() -> None:
    log, _, topic = with_two_members(DELIVERY_LEVEL)
    carried = log.forced()
    log.command()  # so the next entry isn't the one that the epoch names
    log.configuration(carried)
    log.configuration(replace(carried, epoch=GroupEpoch()))
    assert log.machine.groups.session_count == 2
    assert lease(log, topic, 0).session


def test_levels_before_have_the_state_that_they_had() -> None:
    """A program of that level applies the same entry, and must come to the same."""
    log, _, _ = with_two_members(DELIVERY_LEVEL - 1)
    log.configuration(log.forced())
    assert log.machine.groups.session_count == 2


def test_it_is_the_same_from_a_snapshot_and_from_the_log() -> None:
    """Of before it, with the entry applied behind; sessions are of the log's order in both."""
    log, _, _ = with_two_members(DELIVERY_LEVEL)
    restored = StateMachine.restore(log.machine.snapshot(), NoQueues(), known_level=KNOWN_LEVEL)
    body = configuration_bytes(log.forced())
    index = log.machine.applied_index + 1
    head, _ = build_frame(EntryKind.CONFIGURATION, index, 1, 9_000, 2_000, 0, body, 0)
    for machine in (log.machine, restored):
        machine.apply(head + body)
    assert restored.groups == log.machine.groups
    assert restored.leases == log.machine.leases
    assert list(restored.snapshot()) == list(log.machine.snapshot())
