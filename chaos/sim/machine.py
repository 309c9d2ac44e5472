"""A simulated machine, and one life of the process on it: its links, and the calls that it hasn't
answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Protocol

from broker.config import NodeConfig
from broker.doors.grpc.broker import BrokerDoor
from broker.doors.grpc.consumers import ConsumersDoor
from broker.doors.grpc.deliveries import DeliveriesDoor
from broker.doors.grpc.groups import GroupsDoor
from broker.ports import OnBroken, OnMessage
from broker.recovery import StoreMachinery, log_options
from broker.replica import Replica
from broker.state.machine import MachineOptions
from chaos.sim.defect import Defect
from chaos.sim.disk import SimulatedDisk
from chaos.sim.disk_failures import is_lost_sector
from chaos.sim.links import ReadFailed, SimulatedLinks
from chaos.sim.loop import WALL_START_MS, ProcessLoop
from chaos.sim.machine_config import GROUP, HARD_STATE, NEWER_LEVEL, node_config
from chaos.sim.network import Network
from chaos.sim.plan import Plan
from chaos.sim.rotten import RottenBytes
from chaos.sim.timeline import Timeline
from chaos.sim.turns import CountedTurns
from dledger.core import Raft
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.greeting import Identity
from dledger.level import KNOWN_LEVEL
from dledger.links import LinkTimes
from dledger.peers import Ears, LinkPace
from dledger.reading.entry import EntryHeader
from dledger.wire import raft_pb2 as pb
from store.atomic_file import AtomicFile
from store.commitlog import CommitLog
from store.directory import DISK_ID_BYTES, Birth
from store.errors import StoreError

# All that a start asks that has found gaps in its log; and it answers that it has nothing.
ASKED_WITH_GAPS = ("entries_request", "log_start_request", "snapshot_request")
ANSWERED_WITH_GAPS = (
    pb.EntriesResponse(status=pb.ENTRIES_STATUS_NOT_YET),
    pb.DigestResponse(),
    pb.SnapshotResponse(status=pb.SNAPSHOT_STATUS_GONE),
)
Metadata = tuple[tuple[str, str | bytes], ...]


def is_said_with_gaps(message: pb.PeerMessage) -> bool:
    """Whether it is nothing that only a member says."""
    kind = message.WhichOneof("body")
    if kind is None or kind in ASKED_WITH_GAPS:
        return kind is not None
    body = type(getattr(message, kind))()
    body.CopyFrom(getattr(message, kind))
    if isinstance(body, (pb.EntriesResponse, pb.DigestResponse, pb.SnapshotResponse)):
        body.number = 0
    return body in ANSWERED_WITH_GAPS


class Surroundings(Protocol):
    """What a machine stands in."""

    timeline: Timeline
    network: Network

    @property
    def now_us(self) -> int: ...
    def log(self, who: str, what: str) -> None: ...
    def on_sent(self, node: Machine, peer: NodeId, message: pb.PeerMessage) -> None: ...
    def is_rotten_elsewhere(self, node: Machine) -> bool: ...
    def was_altered(self, name: NodeId) -> bool: ...


class NoLatencies:
    """Histograms that measure nothing: there is no real time here."""

    class _Nothing:
        def observe(self, amount: float) -> None:
            return None

    send_seconds = append_seconds = commit_seconds = _Nothing()
    apply_seconds = loop_lateness_seconds = _Nothing()


@dataclass(slots=True)
class Told:
    """A request with what its caller says of the group's epoch; `answered` is what the answer says
    of it, `served_in` the number of the answering node's own, and `was_shut` whether that had heard
    of a newer one."""

    metadata: Metadata
    request: object
    answered: Metadata = ()
    served_in: int = 0
    was_shut: bool = False


@dataclass(slots=True)
class OpenCall:
    """A call that a node has not answered yet. `arrivals`: for how many of the node's events the
    messages that a pull waits for have been there, and since when."""

    method: str
    request: object
    task: asyncio.Task[object] | None
    arrivals: int = 0
    since_us: int = 0


@dataclass(slots=True)
class Life:
    """One process, from boot to death."""

    loop: ProcessLoop
    replica: Replica
    links: Links
    door: BrokerDoor
    groups_door: GroupsDoor
    consumers_door: ConsumersDoor
    deliveries_door: DeliveriesDoor
    turns: CountedTurns
    is_stopping: bool = False
    is_judged: bool = False
    is_shut: bool = False
    calls: dict[int, OpenCall] = field(default_factory=dict)
    streams: dict[asyncio.Task[None], None] = field(default_factory=dict)  # of members
    core: Raft = field(init=False)

    @property
    def failed(self) -> BaseException | None:
        return self.replica.failure

    def __post_init__(self) -> None:
        self.core = self.replica.driver.core


class Links:
    """`broker.ports.Peers` over simulated connections; what leaves the node is looked at."""

    def __init__(
        self, world: Surroundings, node: Machine, on_message: OnMessage, on_broken: OnBroken
    ) -> None:
        self._world = world
        self._node = node
        self._on_message = on_message
        times = LinkTimes.of(node.config.raft.election_timeout_ms[1] / 1000)
        pace = LinkPace(times, Random(node.draw()))
        ears = Ears(self._receive, on_broken)
        known = [NodeId(name) for name in node.config.peers if name != node.name]
        self._links = SimulatedLinks(world.network, node.loop, node.identity, ears, pace, known)
        self.start = self._links.start
        self.links, self.level_of = self._links.links, self._links.level_of
        self.dialed_to = self._links.dialed_to
        self.know = self._links.know
        self.speak_for, self.recall = self._links.speak_for, self._links.recall
        self.promises, self.when_given_up = self._links.promises, self._links.when_given_up

    async def stop(self) -> None:
        self._links.stop()

    def send_request(self, peer: NodeId, message: pb.PeerMessage) -> None:
        self._look_at(peer, message)
        self._links.send_request(peer, message)

    def send_answer(self, peer: NodeId, message: pb.PeerMessage) -> None:
        self._look_at(peer, message)
        self._links.send_answer(peer, message)

    def _look_at(self, peer: NodeId, message: pb.PeerMessage) -> None:
        kind = message.WhichOneof("body")
        if self._node.refill is not None and not is_said_with_gaps(message):
            raise Defect("speaks with gaps", f"{self._node.name} to {peer}: {kind}")
        self._world.on_sent(self._node, peer, message)

    def _may_differ(self, peer: NodeId) -> bool:
        """Whether one of the two logs was ever altered: they contradict each other then."""
        return self._world.was_altered(self._node.name) or self._world.was_altered(peer)

    def _may_refuse(self, peer: NodeId, message: pb.PeerMessage) -> bool:
        """Whether it isn't what its sender believes, or one of the two may have been led astray."""
        network = self._world.network
        if network.is_garbled or network.lies.is_lie(message):
            return True
        are_touched = any(map(network.lies.have_touched, (peer, self._node.name)))
        return are_touched or self._may_differ(peer)

    def _receive(self, peer: NodeId, message: pb.PeerMessage) -> None:
        """A garbled message has to be refused; an honest one must not be, unless lies are about,
        which may have led its receiver or its sender astray.

        Raises:
            InvalidMessage, ReadFailed: to the links, which end the stream.
            OSError: to the links, to which it is a defect.
        """
        network, name = self._world.network, self._node.name
        is_deaf = self._is_deaf()
        try:
            self._on_message(peer, message)
        except InvalidMessage as error:
            if not self._may_refuse(peer, message):
                raise Defect("honest message refused", f"{peer} to {name}: {error}") from error
            self._world.log(name, f"refuses: {error}")
            raise
        except OSError as error:
            if self._node.disk.failures.have_caused(error) or is_lost_sector(error):
                raise ReadFailed from error
            raise
        if network.is_garbled and not is_deaf:
            kind = message.WhichOneof("body")
            raise Defect("garbled message taken", f"{peer} to {name}: {kind}")

    def _is_deaf(self) -> bool:
        """Whether what comes is dropped without being judged: by a process that heeds answers only,
        or is about to end."""
        if self._node.refill is not None:
            return True
        life = self._node.life
        return life is not None and life.replica.driver.is_stopped


class CallContext:
    """What the services use of a gRPC context; `finish` is when its client has read the answer."""

    def __init__(self) -> None:
        self.told: Metadata = ()
        self.answered: Metadata = ()
        self._callbacks: list[Callable[[object], None]] = []

    def invocation_metadata(self) -> Metadata:
        return self.told

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self.answered = metadata

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def finish(self) -> None:
        """The call is over."""
        for callback in self._callbacks:
            callback(self)


class Machine:
    """A machine with a disk: what has become of it, and who runs on it now."""

    def __init__(self, world: Surroundings, name: NodeId, number: int, plan: Plan) -> None:
        self.name = name
        self.number = number
        self.members = [NodeId(f"n{i + 1}") for i in range(plan.machines)]
        self.is_ruined = False  # its disk has rotted: down for good
        self.has_started = False  # once, on this disk: from then on it starts on a full one, too
        self._was_mended = False
        self._queue_rot: int | None = None  # in which of its lives its queues last rotted
        self.has_snapshot_rot = False  # one of its snapshots was spoilt, ever
        self.installs = 0  # of a state that a peer gave
        self.restored_starts = 0  # which began with a snapshot
        self.rot = RottenBytes()
        self._rot_looked_at: tuple[int, int] | None = None  # the disk's changes, rotten bytes
        self.altered_from = 0  # from this entry on its log is another one; 0: it isn't
        self.lost_altered: list[tuple[SimulatedDisk, int]] = []  # disks of which that was so
        self.passing_rot: set[tuple[Path, int]] = set()  # of that, what ends with the process
        self.repaired_bytes = 0  # that had rotted
        self.refills = 0  # starts that got back from peers what they had found rotten
        self.refill: ProcessLoop | None = None  # of a process that is at it, and no member yet
        self.life: Life | None = None
        self.loop: ProcessLoop  # of the present life, or the last one
        self.boots = 0
        self.disks_born = 0
        self.lost: list[SimulatedDisk] = []  # what it ran on before
        self.is_spare = number >= plan.nodes  # no member: it stands by, and its disk is empty
        self.is_lost = False  # its disk is new, and no voter's yet
        self.is_swapped = False  # it has another node's disk
        self.is_past = False  # its disk is an older copy
        self.is_taken_away: Callable[[], bool] = _never  # asked before each start on one
        self.replaced: list[SimulatedDisk] = []  # disks in whose place others are members now
        self.is_returned = False  # it runs on one of those
        self.was_given_up = False  # its group was recovered without it
        self.has_lied = False  # of what its disk holds
        self.is_put_back = False  # to a program that is older than its log
        self.older_level = 0  # that its program knows; 0: that of now
        self.was_put_back = False  # once: what it noted then is of before that log's end
        self.is_kept_down = False  # nobody starts it
        self.sync_us = plan.tuning.sync_us
        self.drift = 1.0
        self.wall_offset_ms = 0
        self.world = world
        self.plan = plan
        self._chance = plan.random(f"node/{name}")
        self._disk_chance = plan.random(f"disk/{name}")
        self.disk = SimulatedDisk(self._sync_latency)
        self.config = node_config(plan, name, self.members)
        if plan.spares:
            # Founders know each other; who was installed later knows them, or nobody.
            is_told = number < plan.nodes or plan.random(f"table/{name}").random() < 0.5
            known = self.members[: plan.nodes] if is_told else []
            self.config = self.config_among([*known, name])
        self.identity = Identity(GROUP, name, self.config.store.segment_size_bytes)
        self.machinery = StoreMachinery(
            log_options=replace(log_options(self.config), cache_bytes=plan.tuning.cache_bytes),
            units_per_file=plan.tuning.units_per_file,
            state=MachineOptions(producers=plan.tuning.producers),
            birth=self._birth,
            holder=name,
        )

    def config_among(self, members: list[NodeId]) -> NodeConfig:
        """Its configuration when only these have been installed."""
        peers = {name: at for name, at in self.config.peers.items() if name in members}
        return self.config.model_copy(update={"peers": peers})

    # --- life --------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def is_running(self) -> bool:
        """Up, and not stopped by a failure."""
        return self.life is not None and self.life.failed is None

    @property
    def spoiled(self) -> bool:
        """Whether a byte of its disk isn't what it was."""
        return bool(self.rot or self.altered_from)

    @property
    def has_log_rot(self) -> bool:
        """Whether one of its log isn't."""
        return bool(self.rot.in_log)

    @property
    def has_another_log(self) -> bool:
        """Whether its log, as a whole, can't be held against the others'."""
        return self.has_log_rot or self.altered_from > 0

    @property
    def has_rotten_hard_state(self) -> bool:
        """Whether a byte of its term and vote isn't what it was."""
        return any(path == HARD_STATE for path, _ in self.rot)

    def sound_header(self, index: int) -> EntryHeader | None:
        """What the log of its process says of an entry that it holds; None where it is rotten."""
        assert self.life is not None
        log = self.life.replica.log
        try:
            return None if self._has_rotten(log, index) else log.header_at(index)
        except StoreError:
            if not self.has_log_rot:
                raise
            return None  # of a sector that is lost one byte is known

    def _has_rotten(self, log: CommitLog, index: int) -> bool:
        if not self.has_log_rot:
            return False
        first = log.position_of(index)
        end = log.position_of(index + 1) if index < log.last_index else log.end_offset
        return self.rot.is_in_log_between(first, end)

    def flip(self, path: Path, at: int, chance: Random) -> None:
        """A bit of a byte of its disk rots."""
        before = self.disk.flip(path, at, chance.randrange(8))
        self.rot.setdefault((path, at), before)
        self._rot_looked_at = None
        self.world.log("nemesis", f"a bit of {path.name} at {at} rots on {self.name}")

    def note_repairs(self) -> None:
        """Bytes that are what they were, on the platter too, are no rot any more; nor are those of
        a term and vote that have been written anew since: another number has other bytes."""
        if self.life is None or self.is_swapped:
            return
        looked_at = (self.disk.changes, len(self.rot))
        if looked_at == self._rot_looked_at:  # after each event: most leave the disk alone
            return
        gone: list[tuple[Path, int]] = []
        file, is_there, is_term, read, held = None, False, False, bytearray(), bytearray()
        for place, before in self.rot.data.items():  # of one file thousands of bytes rot
            if place[0] is not file:
                file = place[0]
                is_there, is_term = self.disk.has(file), file == HARD_STATE
                read, held = self.disk.copies(file)
            at = place[1]
            if not is_there:  # what was in it was retired
                gone.append(place)
            elif at < len(read) and at < len(held) and read[at] == held[at] == before:
                gone.append(place)
                self.repaired_bytes += 1
            elif is_term and self._is_written_anew(read, held):
                gone.append(place)
        for place in gone:
            del self.rot[place]
            self.passing_rot.discard(place)
        self._rot_looked_at = (self.disk.changes, len(self.rot))

    def _is_written_anew(self, read: bytearray, held: bytearray) -> bool:
        """Whether a file that has rotted is whole, in what is read and on the platter: its checksum
        fits again."""
        self.disk.is_observed, was_observed = True, self.disk.is_observed
        try:
            return read == held and AtomicFile(self.disk, HARD_STATE).read() is not None
        except StoreError:
            return False
        finally:
            self.disk.is_observed = was_observed

    @property
    def is_foreign(self) -> bool:
        """Whether its disk isn't the one that the group counts, as it was."""
        return self.is_lost or self.is_past or self.is_returned

    @property
    def is_harmed(self) -> bool:
        """Whether its disk may not hold, or not be taken for one that holds, what it promised."""
        return self.spoiled or self.is_foreign or self.has_lied

    @property
    def known_level(self) -> int:
        """Of formats and commands, to the program that runs: whoever is taken in has the newest,
        and only one that `is_put_back` has an older one again."""
        if self.older_level:
            return self.older_level
        is_newer = (self.boots > 1 or self.number >= self.plan.nodes) and not self.is_put_back
        return NEWER_LEVEL if self.plan.upgraded and is_newer else KNOWN_LEVEL

    @property
    def was_mended(self) -> bool:
        """Whether a derived file of its was ever spoilt or found wrong. What was mended before a
        kill may be in the page cache only, and the platter wrong: the next start would find it."""
        if self.life is not None and self.life.replica.mender.statistics().queues_found:
            self._was_mended = True
        return self._was_mended or self._queue_rot is not None

    @property
    def has_rotten_queues(self) -> bool:
        """Whether its derived files may be wrong now: no start has compared them since they were
        spoilt, or one has and isn't done."""
        if self.life is not None and self.life.replica.mender.is_at_work:
            return True
        return self._queue_rot is not None and (self.life is None or self.boots == self._queue_rot)

    def note_queue_rot(self) -> None:
        """A derived file of its was spoilt."""
        self._queue_rot = self.boots

    def _birth(self) -> Birth:
        """A disk that is used for the first time."""
        self.disks_born += 1
        chance = self.plan.random(f"birth/{self.name}/{self.disks_born}")
        return Birth(chance.randbytes(DISK_ID_BYTES), WALL_START_MS + self.world.now_us // 1000)

    def draw(self) -> float:
        """Randomness for a part of the process."""
        return self._chance.random()

    def _sync_latency(self) -> int:
        return self.sync_us // 2 + int(self._disk_chance.random() * self.sync_us)


def _never() -> bool:
    return False
