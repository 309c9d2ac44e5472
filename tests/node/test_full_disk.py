"""Full disks: what is refused, what goes on, and that all of it ends when space is back."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.errors import TRAITS, BrokerError, ErrorCode
from broker.leader.commands import makes_room
from dledger.applying import APPLY_RETRY_TICKS
from dledger.checksum import seal
from dledger.core.types import EntryKind, Role
from dledger.driver import LogFull
from dledger.level import LOG_START_LEVEL
from dledger.reading.entry import HEADER_SIZE
from dledger.reading.log_start import LogStart
from dledger.room import FOR_NOOPS_ALONE, NOOPS_HEAD_ROOM
from dledger.wire.commands_pb2 import Command, MoveLogStartCommand
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import StorageFailed, StorageFull
from store.segments import Segment
from store.snapshot_files import SnapshotHead, Unfinished
from tests.broker.leader import batch
from tests.node.world import MAX_TICKS, Kind, World, WorldNode, padded

SMALL = Kind(segment_bytes=2 << 20)  # a log that is full soon
SEGMENT_RETRY_TICKS = 101  # from finding no space for a segment to trying again


def has_no_room(*nodes: WorldNode) -> None:
    """Their disks give no space from now on."""
    for node in nodes:
        node.disk.capacity_bytes = node.disk.used_bytes()


def run_by(world: World, node: WorldNode, level: int) -> None:
    """It is started by a program that knows that level; nothing that was synced is lost."""
    node._kind = replace(node._kind, known_level=level)
    world.crash(node.name)
    world.restart(node.name)


def fill(world: World, leader: WorldNode) -> None:
    """The log takes no further proposal, however small."""
    number = 0
    for size in (256 << 10, 16 << 10, 2 << 10, 0):
        refusals = 0
        while refusals < 2:  # the first may be for a moment only, until a segment is made
            try:
                leader.propose(f"fill{number}", size)
            except LogFull:
                refusals += 1
                world.settle()
            else:
                number, refusals = number + 1, 0
                assert number < 1_000, "two segments take a thousand entries"


def test_propose_without_room_changes_nothing() -> None:
    """A full disk refuses before anything was appended, and ends when space is back."""
    world = World(kind=SMALL)
    leader = world.elect()
    has_no_room(*world.nodes.values())
    fill(world, leader)
    before = leader.log.last_index
    with pytest.raises(LogFull):
        leader.propose("t")
    assert (leader.log.last_index, leader.driver.core.last_index) == (before, before)
    for node in world.nodes.values():
        node.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS)
    leader.propose("t")
    world.settle()
    assert leader.topics()[-1] == "t"


def test_follower_without_room_neither_acknowledges_nor_fails() -> None:
    """A follower's full disk costs its acknowledgement only; it catches up later."""
    world = World(kind=SMALL)
    leader = world.elect()
    full = world.others(leader.name)[0]
    has_no_room(full)
    names = [f"t{number}" for number in range(100)]
    for name in names:
        leader.propose(name, 64 << 10)
        world.settle()
    assert leader.topics() == names
    assert full.driver.statistics().appends_refused_for_space > 0
    assert full.failure is None
    full.disk.make_room()
    world.run_for(SEGMENT_RETRY_TICKS + 200)  # a probe that isn't taken waits for up to a second
    assert full.topics() == names


def test_level_is_raised_past_a_follower_without_room() -> None:
    """It has said that it knows the level, so nothing waits for its disk. It comes to the raise
    when it has room; an older program that was put there meanwhile stands in front of it, and
    neither fails nor keeps the group from a majority."""
    world = World(kind=SMALL)
    leader = world.serving()
    full = world.others(leader.name)[0]
    has_no_room(full)
    while not full.driver.statistics().appends_refused_for_space:
        leader.propose("fill", 64 << 10)
        world.settle()
    for node in world.nodes.values():
        run_by(world, node, 2)
    leader = world.serving()
    for _ in range(MAX_TICKS):
        if leader.replica.machine.level.current == 2:
            break
        world.tick()
    assert leader.replica.machine.level.current == 2
    assert full.replica.machine.level.current == 1
    leader.propose("of-the-next-level")
    world.settle()
    assert full.failure is None
    run_by(world, full, 1)
    full.disk.make_room()
    last = leader.log.last_index
    for _ in range(MAX_TICKS):
        if full.driver.core.durable_index >= last:
            break
        world.tick()
    assert full.driver.statistics().apply_stopped
    assert full.failure is None
    [third] = {each.name for each in world.others(leader.name)} - {full.name}
    world.crash(third)
    leader = world.serving()  # with nobody else's disk but that one's
    assert leader is not full
    leader.propose("with-the-older-one")
    world.run_for(10)
    assert leader.topics()[-1] == "with-the-older-one"
    run_by(world, full, 2)
    world.run_for(60)
    assert full.topics() == leader.topics()


def test_full_disks_survive_one_election_after_the_other() -> None:
    """Proposals stop early enough for the no-ops of later leaders."""
    world = World(kind=SMALL)
    leader = world.elect()
    has_no_room(*world.nodes.values())
    fill(world, leader)
    for _ in range(10):
        world.run_for(60)  # an idle moment, so that leadership may move again
        deposed = world.elect()
        deposed.driver.transfer_leadership(None)
        leader = world.elect()
        assert leader.name != deposed.name
    assert [node.failure for node in world.nodes.values()] == [None] * 3
    with pytest.raises(LogFull):
        leader.propose("t")


def test_follower_leaves_room_for_its_own_no_op() -> None:
    """One whose disk is smaller than the leader's could lead next: it must be able to begin."""
    world = World(kind=SMALL)
    leader = world.elect()
    small = world.others(leader.name)[0]
    has_no_room(small)
    for number in range(100):
        leader.propose(f"t{number}", 64 << 10)
        world.settle()
    assert small.driver.statistics().appends_refused_for_space > 0
    assert small.log.has_room(NOOPS_HEAD_ROOM * HEADER_SIZE)


def test_repeated_append_is_acknowledged_on_a_full_disk() -> None:
    """What is here already needs no room; only a lost acknowledgement is made up for."""
    world = World(kind=SMALL)
    leader = world.elect()
    follower = world.others(leader.name)[0]
    has_no_room(*world.nodes.values())
    fill(world, leader)
    held = follower.log.last_index
    append = PeerMessage(term=leader.driver.core.term)
    body = append.append_request
    body.frames = leader.log.read(held, held)
    body.frames_size = len(body.frames)
    body.prev_index = held - 1
    body.prev_term = leader.driver.core.term
    assert not follower.log.has_room(len(body.frames) + NOOPS_HEAD_ROOM * HEADER_SIZE)
    follower.driver.on_message(leader.name, seal(append))
    follower.turn()
    answers = [wire.append_response for sender, _, wire in world.wires if sender == follower.name]
    assert [(each.accepted, each.match_index) for each in answers] == [(True, held)]
    assert follower.driver.statistics().appends_refused_for_space == 0


def send(node: WorldNode, sequence: int) -> None:
    """A message to `t`: its unit needs space."""
    with node.running():
        node.replica.appender.send(b"", [batch(sequence, b"%d" % sequence)])


def test_a_full_followers_log_says_so_and_when_it_has_room_again() -> None:
    """Once each: nobody else's log does, and its clients notice nothing."""
    world = World(kind=SMALL)
    leader = world.elect()
    small = world.others(leader.name)[0]
    with capture_logs() as told:
        has_no_room(small)
        for number in range(100):
            leader.propose(f"t{number}", 64 << 10)
            world.settle()
        world.run_for(2 * SEGMENT_RETRY_TICKS)
        assert small.log.statistics().is_full
        small.disk.make_room()
        world.run_for(2 * SEGMENT_RETRY_TICKS)
    events = [each for each in told if each["event"] in {"log_full", "log_has_room"}]
    assert [(each["event"], each["log_level"]) for each in events] == [
        ("log_full", "warning"),
        ("log_has_room", "info"),
    ]


@pytest.mark.parametrize("taken", [0, 2])
def test_applying_pauses_while_the_machine_has_no_space(taken: int) -> None:
    """The part of a slice that was applied counts; the rest is given again, and only the rest."""
    world = World(count=1)
    leader = world.serving()
    leader.propose("t")
    world.settle()
    before = leader.driver.applied_index
    leader.disk.fill_up(0)
    for number in range(taken):
        leader.propose(f"u{number}")
    for number in range(3):
        send(leader, number)
    world.settle()
    applied = leader.driver.applied_index
    assert applied == leader.replica.machine.applied_index == before + taken
    assert leader.driver.statistics().is_apply_paused
    assert leader.failure is None
    with pytest.raises(LogFull):
        leader.propose("refused")
    leader.disk.make_room()
    world.run_for(APPLY_RETRY_TICKS - 1)
    assert leader.driver.applied_index == before + taken, "tried again at a bounded pace only"
    world.tick()
    assert leader.replica.machine.topics["t"].next_offsets == [3]
    assert not leader.driver.statistics().is_apply_paused
    leader.propose("taken")


def test_read_that_waits_for_applying_ends_with_leadership() -> None:
    """Applying may stand still for as long as the disk is full, and another node leads within
    moments: whoever waited here is sent there, as a Send whose batch came out of sequence is."""
    world = World()
    leader = world.serving()
    leader.propose("t")
    world.settle()
    leader.disk.fill_up(0)
    send(leader, 0)
    world.settle()
    assert leader.driver.statistics().is_apply_paused
    answers: list[bool] = []
    leader.driver._reads.add(answers.append)  # as one that came just before
    leader.driver._schedule()
    world.settle()
    assert answers == []
    for _ in range(MAX_TICKS):
        if leader.driver.core.role is not Role.LEADER:
            break
        world.tick()
    assert leader.driver.statistics().is_apply_paused
    assert answers == [False]
    assert leader.driver.statistics().reads_waiting == 0


def test_reads_are_refused_while_applying_is_paused() -> None:
    """Each would wait for as long as the disk is full, and be kept when whoever asked has gone: a
    leader that nobody can replace would gather them without a bound."""
    world = World(count=1)
    leader = world.serving()
    leader.propose("t")
    world.settle()
    leader.disk.fill_up(0)
    send(leader, 0)
    world.settle()
    assert leader.driver.statistics().is_apply_paused
    gate = leader.replica.services.offsets._gate
    for _ in range(10_000):
        with pytest.raises(BrokerError, match="can't be applied") as refused:
            world.run(leader, gate.confirm())
    assert refused.value.code is ErrorCode.NOT_READY
    assert TRAITS[refused.value.code].is_retriable
    assert leader.driver.statistics().reads_waiting == 0
    leader.disk.make_room()
    world.run_for(APPLY_RETRY_TICKS)
    world.run(leader, gate.confirm())


# --- what makes room ------------------------------------------------------------------------------

RETIRES = Kind(segment_bytes=2 << 20, known_level=LOG_START_LEVEL)
KEPT_FREE = 50_000  # less than a segment takes; on a real node `reserve_bytes`


def filled_world() -> tuple[World, WorldNode]:
    """Three members whose logs have no room for anything, and who have just been started on such a
    disk: nothing that they know of their snapshots is from before."""
    world = World(kind=RETIRES)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    for number in range(40):
        leader.propose(f"t{number}", 128 << 10)
        world.settle()
    world.run_for(300)  # rounds of housekeeping
    for node in world.nodes.values():
        node.disk.capacity_bytes = node.disk.used_bytes() + KEPT_FREE
    fill(world, world.serving())
    for name in world.members:
        world.nodes[name].kill()
        world.hang_up(name)
    for name in world.members:
        world.restart(name)
    leader = world.serving()
    with pytest.raises(LogFull):
        leader.propose("t")
    return world, leader


def retire_all(world: World, leader: WorldNode) -> None:
    """The group lets go of all that it may."""
    applied = leader.replica.machine.applied_index
    world.run(leader, leader.replica.propose_log_start(applied))


def test_full_disks_let_go_of_what_may_go_and_take_entries_again() -> None:
    """The decision uses the head room of no-ops, the state that the log begins with then what is
    kept for the log: else a disk that filled would stay so, whatever was old on it."""
    world, leader = filled_world()
    before = leader.log.first_index
    retire_all(world, leader)
    world.run_for(1_000)
    for node in world.nodes.values():
        assert node.failure is None
        assert node.log.first_index > before
        assert not node.replica.log_start.held
        snapshots = node.replica.base.files.indexes()
        assert min(snapshots) == node.log.start.index
        assert node.replica.snapshots.statistics().index == max(snapshots)
    assert len({node.replica.machine.log_start.first_index for node in world.nodes.values()}) == 1
    world.serving().propose("after")
    world.run_for(20)
    assert {node.topics()[-1] for node in world.nodes.values()} == {"after"}
    for name in world.members:
        world.crash(name)
    for name in world.members:
        world.restart(name)
    assert world.serving().topics()[-1] == "after"


@given(st.binary(max_size=60) | st.builds(lambda n: b"\x3a" + n, st.binary(max_size=20)))
def test_only_what_moves_the_start_makes_room(body: bytes) -> None:
    """Whoever sent it."""
    try:
        moves = Command.FromString(body).HasField("move_log_start")
    except DecodeError:
        moves = False
    assert makes_room(EntryKind.COMMAND, memoryview(body)) == (moves and len(body) <= 32)
    assert not makes_room(EntryKind.DATA, body)
    longest = Command(move_log_start=MoveLogStartCommand(first_index=(1 << 64) - 1))
    assert makes_room(EntryKind.COMMAND, longest.SerializeToString())
    assert not makes_room(EntryKind.COMMAND, padded(longest.SerializeToString(), 100))


def test_what_makes_room_leaves_no_ops_theirs() -> None:
    """However often somebody says that something may go while nothing does, elections fit."""
    world, leader = filled_world()
    for node in world.nodes.values():
        node.disk.fill_up(0)  # nothing can be carried out
    world.settle()

    async def again_and_again() -> None:
        for index in range(2, leader.replica.machine.applied_index):
            await leader.replica.propose_log_start(index)

    with pytest.raises(BrokerError, match="no space"):
        world.run(leader, again_and_again())
    for node in world.nodes.values():
        assert node.failure is None
        assert node.log.has_room(FOR_NOOPS_ALONE * HEADER_SIZE)
    with pytest.raises(LogFull):
        leader.propose("t")


def test_disk_without_room_for_what_the_log_begins_with_says_so_and_goes_on_later() -> None:
    """Full to the byte, and what is set free is taken by others: no snapshot fits. The member has
    given up those that it can do without, says why nothing goes, and starts with what is left."""
    world, leader = filled_world()
    for node in world.nodes.values():
        node.disk.fill_up(0)
    retire_all(world, leader)
    world.run_for(1_000)
    before = leader.log.first_index
    for node in world.nodes.values():
        assert node.failure is None
        assert node.log.first_index == before
        assert "No space left" in node.replica.log_start.held
        assert not node.replica.snapshots.statistics().index
    for name in world.members:
        world.nodes[name].kill()
        world.hang_up(name)
    for name in world.members:
        world.restart(name)
    world.serving()
    for node in world.nodes.values():
        node.disk.make_room()
        node.disk.capacity_bytes = node.disk.used_bytes() + KEPT_FREE
    world.run_for(1_000)
    for node in world.nodes.values():
        assert node.failure is None
        assert node.log.first_index > before
        assert not node.replica.log_start.held


@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_base_that_can_not_be_read_back_is_written_again_before_anything_goes(harm: str) -> None:
    """Once the front has gone every start needs it: a disk that keeps something else than it was
    given is found out while the log is still whole."""
    world, leader = filled_world()
    files = leader.replica.base.files
    publish = files.publish
    harmed: list[Path] = []
    bases: list[SnapshotHead] = []

    def spoils(finished: Unfinished) -> None:
        publish(finished)
        path = files.path(finished.head.applied_index)
        is_base = finished.head.applied_index < leader.replica.machine.log_start.first_index
        if is_base:
            bases.append(finished.head)
        if is_base and not harmed:
            harmed.append(path)
            assert leader.replica.log.first_index == 1
            if harm == "flip":
                leader.disk.flip(path, 100, 0)
            else:
                leader.disk.cut_short(path, 100)

    drop_before = leader.log.drop_before
    unread: list[str | None] = []

    def drops(start: LogStart) -> list[Segment]:
        unread.append(leader.replica.base.refusal_of(bases[-1]))
        return drop_before(start)

    files.publish = spoils  # type: ignore[method-assign]
    leader.log.drop_before = drops  # type: ignore[method-assign]
    retire_all(world, leader)
    world.run_for(1_000)
    assert harmed
    assert leader.failure is None
    assert leader.log.first_index > 1
    assert unread == [None], "whoever needs it from here on can read it"
    world.crash(leader.name)
    world.restart(leader.name)
    assert leader.log.first_index > 1


def test_front_whose_note_is_not_synced_ends_the_member_and_no_base_goes() -> None:
    """The note says that the log begins later, on the platter or not: whoever went on with the old
    start would remove the base that it names, once a later one is written."""
    world, leader = filled_world()
    full = world.others(leader.name)[0]
    note = full.replica.log_start._front.note
    replaced = note.replace

    def unsynced(start: LogStart) -> None:
        full.disk.fail_next("fsync_directory", errno.ENOSPC)
        replaced(start)

    note.replace = unsynced  # type: ignore[method-assign]
    retire_all(world, leader)
    world.run_for(1_000)
    ended_with = full.failure
    assert isinstance(ended_with, StorageFailed)
    assert full.log.first_index == 1
    full.kill()
    world.hang_up(full.name)
    world.restart(full.name)
    world.run_for(1_000)
    assert full.failure is None
    assert full.log.first_index == leader.log.first_index > 1
    assert full.topics() == leader.topics()


def test_front_that_waits_for_what_is_never_noted_says_so_until_a_restart() -> None:
    """A ConsumeQueue's sync found no space once: nothing is noted as derived from then on, and
    nothing goes that isn't noted. The others let go of it, and so does this one's next start."""
    world = World(kind=RETIRES)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    once_full = world.others(leader.name)[0]
    once_full.replica.housekeeping.is_checkpoint_held = True
    for number in range(40):
        leader.propose(f"t{number}", 128 << 10)
        world.settle()
    world.run_for(300)
    assert not once_full.replica.log_start.held, "nothing is to go yet"
    retire_all(world, leader)
    world.run_for(1_000)
    assert leader.log.first_index > 1
    assert once_full.log.first_index == 1
    assert "start this node again" in once_full.replica.log_start.held
    world.crash(once_full.name)
    world.restart(once_full.name)
    world.run_for(1_000)
    assert once_full.log.first_index == leader.log.first_index
    assert not once_full.replica.log_start.held


def test_front_goes_while_queues_wait_for_space_to_be_mended() -> None:
    """It is what gives them some: neither may wait for the other. What lies before the new start
    needs no note, which stands still meanwhile; mending begins again there, and nothing is lost."""
    world = World(kind=RETIRES)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    world.run_for(300)
    short = world.others(leader.name)[0]
    mender, queues = short.replica.mender, short.replica.queues
    leader.propose("t")
    world.settle()
    send(leader, 0)
    world.run_for(20)
    noted = short.log.checkpoint.state.consume_queue_index
    lay_out, tried = queues.lay_out, 0

    def refuses(topic: str, queue_id: int) -> None:
        nonlocal tried
        tried += 1
        raise StorageFull("consumequeue", 1, 0)

    queues.lay_out = refuses  # type: ignore[method-assign]
    topic = short.replica.machine.topics["t"]
    assert queues.max_offset(topic.folder, 0) == 1
    with short.running():
        mender.suspect(topic, 0)
    with capture_logs() as told:
        for number in range(40):
            leader.propose(f"t{number}", 128 << 10)
            world.settle()
        retire_all(world, leader)
        world.run_for(1_000)
    assert tried > 2
    assert [each["event"] for each in told].count("mending_paused") == 1
    assert mender.statistics().queues_wrong == 1
    assert short.log.first_index == leader.log.first_index > noted + 1
    queues.lay_out = lay_out  # type: ignore[method-assign]
    world.run_for(1_000)
    assert not mender.is_at_work
    assert not mender.waits_for_space
    assert short.log.checkpoint.state.consume_queue_index > noted
    world.crash(short.name)
    world.restart(short.name)
    world.run_for(300)
    assert short.topics() == leader.topics()
    assert not short.replica.mender.statistics().queues_found
    assert short.failure is None


def test_front_that_waits_for_a_repair_says_so() -> None:
    """Mending may take hours, and nothing goes meanwhile on a disk that may be full."""
    world = World(kind=RETIRES)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    mending = world.others(leader.name)[0]
    keeper = mending.replica.log_start
    keeper._front = replace(keeper._front, is_hindered=lambda: True)
    for number in range(40):
        leader.propose(f"t{number}", 128 << 10)
        world.settle()
    world.run_for(300)
    assert not keeper.held, "nothing is to go yet"
    retire_all(world, leader)
    world.run_for(1_000)
    assert mending.log.first_index == 1
    assert "mend ConsumeQueues" in keeper.held
    keeper._front = replace(keeper._front, is_hindered=lambda: False)
    world.run_for(1_000)
    assert mending.log.first_index == leader.log.first_index > 1
    assert not keeper.held
