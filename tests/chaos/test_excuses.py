"""What excuses a node of the simulator, and a message that is refused: what was done to it.

That something was done to somebody at some time excuses nobody.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from broker.doors.grpc.sizes import MAX_COUNTS
from broker.leader.retries.copies import Failure, copy_of
from chaos.sim.defect import Defect
from chaos.sim.disk import SimulatedDisk
from chaos.sim.disk_failures import is_lost_sector
from chaos.sim.door_sizes import check_request
from chaos.sim.endings import check_internal, is_excused, may_be_internal
from chaos.sim.files import LostSector
from chaos.sim.links import ReadFailed, SimulatedLinks
from chaos.sim.machine import Links
from chaos.sim.originals import Originals
from chaos.sim.told_lies import LATELY_US, ToldLies
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.reading.entry import EntryHeader, EntryKind
from dledger.records.record import DecodedRecord, RecordTemplate, decode_records
from dledger.wire import broker_pb2, errors_pb2, groups_pb2
from dledger.wire.raft_pb2 import PeerMessage
from store.errors import BeyondRepair, CorruptionFound, StorageFailed

FILE = Path("/file")
N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def node(disk: SimulatedDisk, **facts: Any) -> Any:
    """As far as an ending is judged by it."""
    return SimpleNamespace(disk=disk, **facts)


def failed(disk: SimulatedDisk, code: int) -> OSError:
    """What a call met that was told to fail."""
    disk.fail_next("create", code)
    with pytest.raises(OSError) as told:
        disk.create(FILE)
    return told.value


def test_node_ends_for_the_error_that_its_disk_raised() -> None:
    """Itself, as the store tells of it, or as the cause of another one."""
    disk = SimulatedDisk()
    error = failed(disk, errno.EIO)
    later = OSError(errno.EIO, "nothing is written any more")
    later.__cause__ = error
    for each in (error, StorageFailed("a sync", error), StorageFailed("a write", later)):
        assert is_excused(node(disk), each)


def test_that_its_disk_has_failed_before_excuses_no_other_error() -> None:
    """Nor does the same error that a process has met which is dead."""
    disk = SimulatedDisk()
    error = failed(disk, errno.EIO)
    other = OSError(errno.EIO, "nobody has done that")
    assert not is_excused(node(disk), other)
    assert not is_excused(node(disk), StorageFailed("a sync", other))
    disk.kill()
    assert len(disk.failures) == 1
    assert not is_excused(node(disk), error)


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOENT, errno.EEXIST, errno.ENOTDIR])
def test_call_that_should_not_have_been_made_is_never_the_disks(code: int) -> None:
    """Whatever else has failed, and whatever it was raised for."""
    disk = SimulatedDisk()
    error = OSError(code, "it is not there")
    error.__cause__ = failed(disk, errno.EIO)
    assert not is_excused(node(disk), error)


def test_write_that_got_lost_is_told_by_the_next_sync_and_is_the_disks() -> None:
    """Nobody's call was told to fail, and the node ends for it all the same."""
    disk = SimulatedDisk()
    handle = disk.create(FILE)
    disk.pwritev(handle, [b"a"], 0)
    disk.fail_write_back(FILE)
    with pytest.raises(OSError) as told:
        disk.fsync(handle)
    assert is_excused(node(disk), told.value)


def test_full_disk_ends_no_node_and_a_lost_sector_is_rot() -> None:
    """Both are told to whoever asked, who goes on."""
    disk = SimulatedDisk()
    disk.fill_up(0)
    handle = disk.create(FILE)
    limited = [disk.is_limited]
    with pytest.raises(OSError) as full:
        disk.pwritev(handle, [b"a"], 0)
    assert disk.failures.have_caused(full.value)
    assert not is_excused(node(disk), full.value)
    disk.make_room()
    assert [*limited, disk.is_limited] == [True, False]
    disk.pwritev(handle, [bytes(512)], 0)
    disk.lose_sector(FILE, 0)
    with pytest.raises(LostSector) as lost:
        disk.pread(handle, 1, 0)
    assert is_lost_sector(StorageFailed("a read", lost.value))
    assert not is_excused(node(disk), lost.value)


def test_service_fails_by_rot_or_by_what_its_disk_raised() -> None:
    """A wrong call of it is a defect, also where something has rotted."""
    disk = SimulatedDisk()
    rot = CorruptionFound("a file", 0, "this", "that")
    for error in (failed(disk, errno.EIO), LostSector(errno.EIO, "a sector is lost")):
        assert may_be_internal(node(disk, spoiled=False), StorageFailed("a read", error))
    for spoiled in (False, True):
        assert not may_be_internal(node(disk, spoiled=spoiled), OSError(errno.EBADF, "closed"))
        for found in (rot, StorageFailed("a read", rot)):
            assert may_be_internal(node(disk, spoiled=spoiled), found) == spoiled


INTERNAL = errors_pb2.Error(code=errors_pb2.INTERNAL, message="its log says why")
PARTS = [
    INTERNAL,
    broker_pb2.SendResponse(
        results=[broker_pb2.SendResult(), broker_pb2.SendResult(error=INTERNAL)]
    ),
]


@pytest.mark.parametrize("answer", PARTS)
def test_sound_node_fails_at_nothing(answer: Message) -> None:
    """Nobody can tell an error of its program from one of its disk, once it is told to a client;
    and what failed a process that is dead is nothing to the next one."""
    disk = SimulatedDisk()
    sound = node(disk, name=N1, spoiled=False)
    with pytest.raises(Defect, match="its log says why"):
        check_internal(sound, answer)
    check_internal(node(disk, name=N1, spoiled=True), answer)
    failed(disk, errno.EIO)
    check_internal(sound, answer)
    disk.kill()
    with pytest.raises(Defect, match="its log says why"):
        check_internal(sound, answer)


def test_what_is_refused_is_no_failure() -> None:
    refusal = errors_pb2.Error(code=errors_pb2.NOT_LEADER)
    check_internal(node(SimulatedDisk(), name=N1, spoiled=False), refusal)


def copied() -> tuple[Originals, DecodedRecord, DecodedRecord]:
    """A log with a message, and a copy of it."""
    template, originals = RecordTemplate("t", ("127.0.0.1", 5555)), Originals()
    records = template.encode(0, b"a", b"KEYS\1k\2a\1v\2", 1_000, 3)
    header = EntryHeader(0, EntryKind.DATA, 2, 1, 0, 1, 1, 0, 1_000, 0)
    originals.follow(header, bytes(header.first_record_at) + records)
    (first,) = decode_records(records)
    return originals, first, decode_records(copy_of(first, Failure("g", 1, 0)).records)[0]


@pytest.mark.parametrize(
    "changed",
    [{"body": b""}, {"flag": 0}, {"born_time_ms": 1}, {"raw_properties": b"KEYS\1k\2"}],
)
def test_copy_has_all_that_its_message_has(changed: dict[str, Any]) -> None:
    originals, first, copy = copied()
    assert originals.of(copy, "here") == first
    if b"KEYS" in (raw := changed.get("raw_properties", b"")):
        changed = {"raw_properties": raw + copy.raw_properties.partition(b"a\1v\2")[2]}
    with pytest.raises(Defect, match="here: "):
        originals.of(copy._replace(**changed), "here")


class Telling:
    """A clock, and what was told."""

    def __init__(self) -> None:
        self.now_us = 0
        self.lies = ToldLies(lambda: self.now_us)

    def tell(self, liar: NodeId, victim: NodeId) -> PeerMessage:
        message = PeerMessage(term=9)
        self.lies.on_told(liar, message)
        self.lies.on_delivered(liar, victim, message)
        return message


def test_lie_excuses_who_told_it_and_who_heard_it_for_a_while() -> None:
    """Not the third, to whom nobody has lied, nor anybody for the rest of a run."""
    telling = Telling()
    told = telling.tell(N1, N2)
    assert telling.lies.is_lie(told)
    assert not telling.lies.is_lie(PeerMessage(term=9))
    touched = [name for name in (N1, N2, N3) if telling.lies.have_touched(name)]
    assert touched == [N1, N2]
    telling.now_us = LATELY_US
    assert not any(map(telling.lies.have_touched, (N1, N2, N3)))


def test_truth_that_is_heard_from_a_liar_prolongs_nothing() -> None:
    """It says some of it among its lies."""
    telling = Telling()
    telling.tell(N1, N2)
    telling.now_us = LATELY_US
    telling.lies.on_delivered(N1, N3, PeerMessage(term=9))
    assert not any(map(telling.lies.have_touched, (N1, N2, N3)))


@pytest.mark.parametrize("victim", [N2, N3])
def test_rot_is_beyond_repair_for_who_was_lied_to(victim: NodeId) -> None:
    """Another one asks honest members, who have what it lacks."""
    telling = Telling()
    telling.tell(N1, victim)
    world = SimpleNamespace(
        network=SimpleNamespace(lies=telling.lies), is_rotten_elsewhere=lambda _: False
    )
    asking = node(SimulatedDisk(), world=world, has_log_rot=True, altered_from=0, name=N2)
    assert is_excused(asking, BeyondRepair("a file", "nobody has it")) == (victim == N2)


def hearing(telling: Telling, on_message: Callable[..., None]) -> Links:
    """Links of n2, whose process does that with what it hears."""
    links = Links.__new__(Links)
    links._world = cast(
        Any,
        SimpleNamespace(
            network=SimpleNamespace(lies=telling.lies, is_garbled=False),
            log=lambda *_: None,
            was_altered=lambda _: False,
        ),
    )
    links._node = cast(Any, node(SimulatedDisk(), name=N2, refill=None, life=None))
    links._on_message = on_message
    return links


def refuse(*_: object) -> None:
    raise InvalidMessage("nobody says that")


def test_message_may_be_refused_between_two_of_whom_one_has_met_a_lie() -> None:
    """And a lie may be by anybody."""
    telling = Telling()
    links = hearing(telling, refuse)
    telling.tell(N1, N3)
    for peer in (N1, N3):
        with pytest.raises(InvalidMessage):
            links._receive(peer, PeerMessage())
    with pytest.raises(Defect, match="honest message refused"):
        links._receive(NodeId("n4"), PeerMessage())
    told = PeerMessage()
    telling.lies.on_told(N1, told)
    telling.now_us = 2 * LATELY_US
    with pytest.raises(InvalidMessage):
        links._receive(N1, told)
    with pytest.raises(Defect, match="honest message refused"):
        links._receive(N1, PeerMessage())


def test_read_that_a_message_asks_for_fails_only_for_what_was_done_to_the_disk() -> None:
    """The stream ends then; of any other error the run does."""

    def read(_: NodeId, message: PeerMessage) -> None:
        raise error

    links = hearing(Telling(), read)
    error: OSError = failed(links._node.disk, errno.EIO)
    with pytest.raises(ReadFailed):
        links._receive(N1, PeerMessage())
    error = LostSector(errno.EIO, "a sector is lost")
    with pytest.raises(ReadFailed):
        links._receive(N1, PeerMessage())
    error = OSError(errno.EBADF, "it is closed")
    with pytest.raises(OSError, match="it is closed"):
        links._receive(N1, PeerMessage())
    below = SimulatedLinks.__new__(SimulatedLinks)
    below._name = N2
    below._links = cast(Any, SimpleNamespace(on_message=read))
    with pytest.raises(Defect, match="it is closed"):
        below._on_message(1, PeerMessage())


def test_request_that_the_door_would_refuse_is_a_defect() -> None:
    """Its bytes or what it holds; a request that it takes is none."""
    most = MAX_COUNTS["Groups.SendBack"]["messages"]
    one = groups_pb2.SendBackRequest().messages.add()
    check_request("a client", groups_pb2.SendBackRequest(messages=[one] * most))
    for request in (
        groups_pb2.SendBackRequest(messages=[one] * (most + 1)),
        broker_pb2.PullRequest(topic="t" * (300 << 10)),
    ):
        with pytest.raises(Defect, match="request beyond the door"):
            check_request("a client", request)
    check_request("a client", object())  # none of the wire's
