"""A group that goes on from a log which may end before what its members were given: who leads it
serves nobody in whose session that was (ADR 46, 52, 65)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import NodeConfig
from broker.errors import BrokerError, ErrorCode
from broker.leader.old_sessions import AT_ONCE, OldSessions
from broker.state.refusals import Refusal, SessionUnknown
from dledger.codec import configuration_bytes, decode_configuration
from dledger.core.group_epoch import MAX_RECOVERIES, GroupEpoch, Recovery
from dledger.core.types import Configuration, EntryKind
from dledger.level import DELIVERY_LEVEL, GROUP_EPOCH_LEVEL, GROUPS_LEVEL, KNOWN_LEVEL
from dledger.reading.backup import Backup
from dledger.records.layout import file_name
from dledger.wire.commands_pb2 import Command, GroupSettings
from dledger.wire.raft_pb2 import Configuration as WireConfiguration
from store.backup import COMMITLOG, write_backup
from store.commitlog import CommitLogOptions
from store.directory import Identity
from store.files import make_directory
from store.starting.opening import Site
from store.starting.restoring import Restored, restore
from store.worker import ManualWorker
from tests.node.machine import SEGMENT
from tests.node.world import Kind, World, WorldNode

BACKUP = Path("/backup")
NEW = Path("/new")


class Group:
    """A group of one, of which somebody knows `level`; a backup of it, and what is made of that."""

    def __init__(self, level: int) -> None:
        self.world = World(1, kind=Kind(known_level=level))
        self.node: WorldNode = self.world.serving()
        for _ in range(2_000):
            if self.node.replica.machine.level.current == level:
                break
            self.world.tick()
        assert self.node.replica.machine.level.current == level

    def submit(self, **body: object) -> Refusal | None:
        async def submitted() -> Refusal | None:
            return await self.node.replica.appender.submit(Command(**body))  # type: ignore[arg-type]

        return self.world.run(self.node, submitted())

    def join(self, member: str) -> int:
        """A member of group g; its session."""
        settings = GroupSettings(version=1, strategy="STICKY", topics=["t"])
        wish = {"group": "g", "member": member, "token": b"8 bytes!", "settings": settings}
        assert self.submit(join_group=wish) is None
        return int(self.sessions[-1])

    @property
    def sessions(self) -> tuple[int, ...]:
        return self.node.replica.machine.groups.sessions()

    def back_up(self) -> Backup:
        """The node is stopped for it, and its whole log is kept."""
        log, disk = self.node.log, self.node.disk
        self.world.settle()
        backup = Backup(
            broker_group="g",
            node_id="n1",
            segment_size_bytes=SEGMENT,
            first_index=1,
            last_index=log.last_index,
            last_term=log.last_term,
            last_digest=log.last_digest,
            end_offset=log.end_offset,
            taken_ms=1,
        )
        self.node.kill()
        disk.power_on()
        make_directory(disk, BACKUP)
        make_directory(disk, BACKUP / COMMITLOG)
        for base in range(0, backup.end_offset, SEGMENT):
            held = self.node.config.data_directory / COMMITLOG / file_name(base)
            handle = disk.create(BACKUP / COMMITLOG / file_name(base))
            disk.pwritev(handle, [bytes(disk.content(held))], 0)
            disk.fsync(handle)
            disk.close(handle)
        write_backup(disk, BACKUP, backup)
        return backup

    def restored(self) -> Restored:
        """A new group of that backup; its only member is the one whose process begins next."""
        config: NodeConfig = self.node.config
        identity = Identity("g", "n1", SEGMENT)
        options = CommitLogOptions(SEGMENT, reserve_bytes=0)
        done = restore(
            BACKUP,
            Site(NEW, identity, self.node.disk, options, workers=ManualWorker),
            config.listen,
            epoch_id=lambda: b"r" * 16,
            now_ms=lambda: 7,
        )
        self.node.disk.kill()
        self.node.config = config.model_copy(update={"data_directory": NEW})
        self.world.restart(self.node.name)
        return done


@pytest.mark.parametrize("level", [GROUPS_LEVEL, GROUP_EPOCH_LEVEL, DELIVERY_LEVEL, KNOWN_LEVEL])
def test_no_session_of_before_a_backup_is_served_after_it(level: int) -> None:
    """At every level that knows sessions; and members that come back are served."""
    group = Group(level)
    assert group.submit(create_topic={"name": "t", "queue_count": 2}) is None
    old = [group.join("a"), group.join("b")]
    backup = group.back_up()
    done = group.restored()
    group.node = group.world.serving()
    assert not group.sessions
    assert done.epoch.last is not None
    assert group.node.driver.core.configuration.epoch == done.epoch
    assert done.epoch.last.given_up[0][0] == backup.node_id
    refusal = group.submit(commit_leases={"group": "g", "session": old[0]})
    assert refusal == SessionUnknown(old[0])
    new = group.join("a")
    assert new > done.epoch.last.index
    group.world.crash(group.node.name)
    group.world.restart(group.node.name)
    group.world.serving()
    assert group.sessions == (new,)  # which began in this epoch


def test_leader_that_had_no_room_for_their_end_proposes_it_again() -> None:
    """A full disk has room again; nothing else happens that would make it look."""
    group = Group(GROUPS_LEVEL)
    assert group.submit(create_topic={"name": "t", "queue_count": 1}) is None
    group.join("a")
    group.back_up()
    group.restored()
    appender = group.node.replica.appender
    submit, refused = appender.submit, 0

    def full(command: Command) -> object:
        nonlocal refused
        refused += 1
        raise BrokerError(ErrorCode.STORAGE_FULL, "no room")

    appender.submit = full  # type: ignore[method-assign, assignment]
    group.world.elect()
    group.world.run_for(20)
    assert refused > 1
    assert not group.node.replica.leadership.serving
    appender.submit = submit  # type: ignore[method-assign]
    group.world.serving()
    assert group.sessions == ()


def test_epoch_comes_from_the_one_of_the_backup() -> None:
    """Clients that know that one believe the new group; one whose lineage is as long as it can be
    begins another."""
    for recoveries in ((), (b"1" * 16,), tuple(b"%016d" % n for n in range(MAX_RECOVERIES))):
        group = Group(KNOWN_LEVEL)
        log = group.node.log
        index, body = log.configuration_entries()[-1]
        before = decode_configuration(WireConfiguration.FromString(body))
        if recoveries:
            group.node.kill()
            group.node.open()
            log = group.node.log
            index = log.last_index + 1
            epoch = GroupEpoch(recoveries, Recovery("n1", 1, log.last_term, index, index - 1))
            forced = Configuration(
                before.voters, disks=before.disks, addresses=before.addresses, epoch=epoch
            )
            log.append(
                EntryKind.CONFIGURATION,
                index,
                log.last_term,
                log.last_append_time_ms,
                0,
                configuration_bytes(forced),
            )
            log.submit(1)
            group.node.sync()
        group.back_up()
        done = group.restored()
        expected = recoveries if len(recoveries) < MAX_RECOVERIES else ()
        assert done.epoch.recoveries == (*expected, b"r" * 16)
        assert group.world.serving().driver.core.configuration.epoch == done.epoch


def test_sessions_end_in_commands_of_so_many_and_again_when_there_was_no_room() -> None:
    """Nobody is served as long as one is left."""
    left = list(range(1, 2 * AT_ONCE + 2))
    proposed: list[list[int]] = []
    is_full = True

    def end(sessions: list[int]) -> object:
        if is_full:
            raise BrokerError(ErrorCode.STORAGE_FULL, "no room")
        proposed.append(sessions)
        return None

    epoch = GroupEpoch((b"r" * 16,), Recovery("n1", 1, 1, 2 * AT_ONCE + 1, 1))
    old = OldSessions(lambda: epoch, lambda: left, end)  # type: ignore[arg-type]
    assert not old.are_over()
    is_full = False
    while not old.are_over():
        assert len(proposed[-1]) <= AT_ONCE
        left = [each for each in left if each not in proposed[-1]]
    assert len(proposed) == 2
    assert left == [2 * AT_ONCE + 1]  # the epoch's own
    assert OldSessions(GroupEpoch, lambda: [1], end).are_over()  # type: ignore[arg-type]
