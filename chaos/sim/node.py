"""One simulated node: the product's replica on a simulated machine.

Nothing of a replica is built, joined, kept or stopped here: that is `broker.replica`, the very file
that runs in production. This hands it its ports (a simulated disk and the threads on it, links over
the simulator's network, clocks in virtual time) and owns the machine's life: boot, kill, power cut,
pause, SIGTERM. What is a defect and what is a fault's consequence is decided here by one rule: a
node may stop for what was done to its disk, and for nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

from broker.config import BrokerConfig, NodeConfig, RaftConfig, RetentionConfig, StoreConfig
from broker.doors.grpc.bounds import SERVER_GRACE_S
from broker.doors.grpc.broker import BrokerDoor
from broker.doors.grpc.cluster import wire_view
from broker.doors.grpc.consumers import ConsumersDoor
from broker.doors.grpc.deliveries import DeliveriesDoor
from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.groups import GroupsDoor
from broker.ending import ending_of
from broker.errors import BrokerError, ErrorCode
from broker.leader.units import ProposedUnit
from broker.ports import OnBroken, OnMessage, ReplicaPorts, Rhythm
from broker.recovery import StoreMachinery, log_options
from broker.refilling import Refilling
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from broker.state.machine import MachineOptions
from chaos.sim.disk import MachineDied, SimulatedDisk
from chaos.sim.files import SECTOR_BYTES
from chaos.sim.links import SimulatedLinks
from chaos.sim.loop import WALL_START_MS, ProcessLoop
from chaos.sim.network import Network
from chaos.sim.plan import MEMBER_DELAYS_MS, MEMBER_PACE, Plan
from chaos.sim.timeline import ActorDied, Timeline
from chaos.sim.turns import CountedTurns
from chaos.sim.worker import Workers
from dledger.core import Raft
from dledger.core.errors import CoreError
from dledger.core.types import NodeId
from dledger.errors import HardStateCorrupt, InvalidMessage
from dledger.greeting import Identity
from dledger.level import KNOWN_LEVEL
from dledger.links import LinkTimes
from dledger.outcome import ExitCode
from dledger.peers import Ears, LinkPace
from dledger.promises import Start
from dledger.reading.entry import digest_of, possible_starts, verify_frame
from dledger.records.errors import InvalidFrame
from dledger.wire.raft_pb2 import PeerMessage
from store.directory import DISK_ID_BYTES, Birth
from store.doubt import DoubtNote
from store.errors import (
    BeyondRepair,
    CorruptionFound,
    GapFound,
    StorageFailed,
    StorageFull,
    StoreError,
    WrongIdentity,
)
from store.files import FULL_ERRNOS
from store.out_of_service import FILE_NAME as OUT_OF_SERVICE
from store.starting.errors import NotAMember, OutOfService
from store.suspicion import SuspicionNote

DATA = Path("/data")
GROUP = "sim"
NEWER_LEVEL = KNOWN_LEVEL + 1  # that of the release which a group is upgraded to
DRAIN_S = 1.0
WRITE_UNIT = "write_unit"
SNAPSHOT_RETRY_S = 0.5
SCRUB_PAUSE_S = 0.005
SCRUB_BESIDE_EVERY = 8  # each look reads every queue, and the next pass is close
SCRUB_LONGEST_PAUSE_S = 1.0
SCRUB_NOTE_S = 0.3
LOOK_S = 0.02  # between two looks at whether the calls under way have their answers


class Defect(AssertionError):
    """Something happened that no fault explains. `check` names what noticed it."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.detail = detail


class _FoundOut(Exception):
    """What a start found is known; the rest of it doesn't happen."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.start = start


class World(Protocol):
    """What a node is in."""

    timeline: Timeline
    network: Network

    @property
    def now_us(self) -> int: ...
    def log(self, who: str, what: str) -> None: ...
    def on_boot(self, node: SimNode) -> None: ...
    def on_sent(self, node: SimNode, peer: NodeId, message: PeerMessage) -> None: ...
    def on_stopped(self, node: SimNode) -> None: ...
    def is_rotten_elsewhere(self, node: SimNode) -> bool: ...
    def was_altered(self, name: NodeId) -> bool: ...
    def reopen(self, node: SimNode) -> None: ...


class _NoLatencies:
    """Histograms that measure nothing: there is no real time here."""

    class _Nothing:
        def observe(self, amount: float) -> None:
            return None

    send_seconds = append_seconds = commit_seconds = _Nothing()
    apply_seconds = loop_lateness_seconds = _Nothing()


Metadata = tuple[tuple[str, str | bytes], ...]


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

    @property
    def failed(self) -> BaseException | None:
        return self.replica.failure

    @property
    def core(self) -> Raft:
        return self.replica.driver.core


class Links:
    """`broker.ports.Peers` over simulated connections; what leaves the node is looked at."""

    def __init__(
        self, world: World, node: SimNode, on_message: OnMessage, on_broken: OnBroken
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
        self.links = self._links.links
        self.dialed_to = self._links.dialed_to
        self.know = self._links.know
        self.speak_for, self.recall = self._links.speak_for, self._links.recall
        self.promises, self.when_given_up = self._links.promises, self._links.when_given_up

    async def stop(self) -> None:
        self._links.stop()

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        self._look_at(peer, message)
        self._links.send_request(peer, message)

    def send_answer(self, peer: NodeId, message: PeerMessage) -> None:
        self._look_at(peer, message)
        self._links.send_answer(peer, message)

    def _look_at(self, peer: NodeId, message: PeerMessage) -> None:
        kind = message.WhichOneof("body")
        if self._node.refill is not None and kind != "entries_request":
            raise Defect("speaks with gaps", f"{self._node.name} to {peer}: {kind}")
        self._world.on_sent(self._node, peer, message)

    def _may_differ(self, peer: NodeId) -> bool:
        """Whether one of the two logs was ever altered: they contradict each other then."""
        return self._world.was_altered(self._node.name) or self._world.was_altered(peer)

    def _receive(self, peer: NodeId, message: PeerMessage) -> None:
        """A garbled message has to be refused; an honest one must not be, unless lies are about,
        which may have led its receiver or its sender astray.

        Raises:
            InvalidMessage: to the links, which end the stream.
        """
        network, name = self._world.network, self._node.name
        try:
            self._on_message(peer, message)
        except InvalidMessage as error:
            if not network.is_garbled and not network.lies and not self._may_differ(peer):
                raise Defect("honest message refused", f"{peer} to {name}: {error}") from error
            self._world.log(name, f"refuses: {error}")
            raise
        if network.is_garbled and self._node.refill is None:  # that one heeds answers only
            kind = message.WhichOneof("body")
            raise Defect("garbled message taken", f"{peer} to {name}: {kind}")


class SimNode:
    """A machine with a disk, on which a node's process comes and goes."""

    def __init__(self, world: World, name: NodeId, number: int, plan: Plan) -> None:
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
        self.rot: dict[tuple[Path, int], int] = {}  # (file, byte) -> what it was, and isn't
        self._rot_looked_at: tuple[int, int] | None = None  # the disk's changes, rotten bytes
        self.altered_from = 0  # from this entry on its log is another one; 0: it isn't
        self.lost_altered: list[tuple[SimulatedDisk, int]] = []  # disks of which that was so
        self.passing_rot: set[tuple[Path, int]] = set()  # of that, what ends with the process
        self.repaired_bytes = 0  # that had rotted
        self.refills = 0  # starts that got back from peers what they had found rotten
        self.refill: ProcessLoop | None = None  # of a process that is at it, and no member yet
        self._gap_at = 0  # the first entry that it wants back
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
        self._world = world
        self._plan = plan
        self._chance = plan.random(f"node/{name}")
        self._disk_chance = plan.random(f"disk/{name}")
        self.disk = SimulatedDisk(self._sync_latency)
        self._calls = 0
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
        return any(path.parent.name == "commitlog" for path, _ in self.rot)

    def flip(self, path: Path, at: int, chance: Random) -> None:
        """A bit of a byte of its disk rots."""
        before = self.disk.flip(path, at, chance.randrange(8))
        self.rot.setdefault((path, at), before)
        self._rot_looked_at = None
        self._world.log("nemesis", f"a bit of {path.name} at {at} rots on {self.name}")

    def note_repairs(self) -> None:
        """Bytes that are what they were, on the platter too, are no rot any more."""
        if self.life is None or self.is_swapped:
            return
        looked_at = (self.disk.changes, len(self.rot))
        if looked_at == self._rot_looked_at:  # after each event: most leave the disk alone
            return
        gone: list[tuple[Path, int]] = []
        file, is_there, read, held = None, False, bytearray(), bytearray()
        for place, before in self.rot.items():  # of one file thousands of bytes rot
            if place[0] is not file:
                file = place[0]
                is_there = self.disk.has(file)
                read, held = self.disk.copies(file)
            at = place[1]
            if not is_there:  # what was in it was retired
                gone.append(place)
            elif at < len(read) and at < len(held) and read[at] == held[at] == before:
                gone.append(place)
                self.repaired_bytes += 1
        for place in gone:
            del self.rot[place]
            self.passing_rot.discard(place)
        self._rot_looked_at = (self.disk.changes, len(self.rot))

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
        is_newer = (self.boots > 1 or self.number >= self._plan.nodes) and not self.is_put_back
        return NEWER_LEVEL if self._plan.upgraded and is_newer else KNOWN_LEVEL

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

    def boot(self) -> None:
        """The process starts: it recovers and joins, or fails to start."""
        if self.life is not None or self.refill is not None or self.is_ruined:
            return
        self.disk.power_on()
        if self.is_spare or self.is_kept_down or (self.is_past and self.is_taken_away()):
            return
        self._let_rot_pass()
        self._rot_looked_at = None
        self.boots += 1
        self.identity = replace(self.identity, level=self.known_level)
        timeline = self._world.timeline
        before = timeline.current
        number = self.number + 1
        loop = self.loop = ProcessLoop(timeline, self.name, number, self._plan.tuning.turn_us)
        loop.drift(self.drift)
        loop.wall_offset_ms = self.wall_offset_ms
        timeline.switch(loop)
        try:
            self._start(loop)
        except MachineDied:
            loop.die()
            self.life = None
            self._world.log(self.name, "died while it started")
            if self.disk.keeps_cache:
                self.disk.kill()
                self.disk.power_on()
            else:
                self.disk.power_off(self._disk_chance)
        except (StorageFull, StorageFailed, OSError, CorruptionFound, HardStateCorrupt) as error:
            loop.die()
            self.life = None
            self._failed_to_start(error)
        except (NotAMember, WrongIdentity) as error:
            loop.die()
            self.life = None
            if not (self.is_lost if isinstance(error, NotAMember) else self.is_swapped):
                raise Defect("no member", f"{self.name}: {error}") from error
            self._world.log(self.name, f"doesn't take part: {error}")
            self.disk.kill()
        except OutOfService as error:
            loop.die()
            self.life = None
            is_given_up = self.was_given_up and bool(error.divergence.recoveries)
            if not (self.altered_from or is_given_up):
                raise Defect("out of service", f"{self.name}: {error}") from error
            self._world.log(self.name, f"stays out of service: {error.divergence}")
            self.disk.kill()
        except Defect:
            raise
        except Exception as error:
            raise Defect("start", f"{self.name}: {error!r}") from error
        else:
            loop.leave()
        finally:
            timeline.switch(before)

    def _let_rot_pass(self) -> None:
        """What was read wrongly by the process before is read rightly."""
        if self.is_swapped:
            return  # it is on the other disk
        for path, at in self.passing_rot:
            before = self.rot.pop((path, at), None)
            if before is not None and self.disk.has(path):
                self.disk.regain(path)
                self.disk.spoil(path, at, bytes((before,)))
        self.passing_rot.clear()

    def _start(self, loop: ProcessLoop) -> None:
        made: list[Links] = []

        def connect(identity: Identity, on_message: OnMessage, on_broken: OnBroken) -> Links:
            self.identity = identity
            made.append(Links(self._world, self, on_message, on_broken))
            return made[0]

        turns = CountedTurns(self._world.timeline, loop, self._plan.tuning.turn_steps)
        ports = self._ports(self.disk, loop, turns, connect)
        try:
            replica = Replica.open(self.config, ports)
        except GapFound as found:
            if not self.has_log_rot:
                raise Defect("false corruption", f"{self.name}: {found}") from found
            refilling = Refilling(self.config, ports, found)
            self._world.log(self.name, f"asks its peers for {found.missing}")
            self.refill, self._gap_at = loop, found.holes.gaps[0].first_index
            process = loop.create_task(self._get_back(refilling))
            process.add_done_callback(partial(_tell_of_crash, loop))
            return
        self.disk.take_latency()
        self.has_started = True
        if self.disk.exists(DATA / OUT_OF_SERVICE):
            raise Defect("back in service", f"{self.name} starts as a member again")
        life = self.life = Life(
            loop,
            replica,
            made[0],
            BrokerDoor(replica.services),
            GroupsDoor(replica.services),
            ConsumersDoor(replica.services),
            DeliveriesDoor(replica.services),
            turns,
        )
        report = replica.log.recovery
        self._world.log(
            self.name,
            f"started: log to {report.last_index}, cut {report.cut_bytes} bytes, "
            f"applied {replica.machine.applied_index}",
        )
        if not report.clean_shutdown:
            self._check_rot_was_found()
        self._world.on_boot(self)
        replica.start()
        self._check_doubt(replica)
        self._check_suspicion(replica)
        process = loop.create_task(self._live(life))
        process.add_done_callback(partial(_tell_of_crash, loop))

    def _ports(
        self,
        disk: SimulatedDisk,
        loop: ProcessLoop,
        turns: CountedTurns,
        connect: Callable[[Identity, OnMessage, OnBroken], Links],
    ) -> ReplicaPorts:
        tuning = self._plan.tuning
        workers = Workers(self._world.timeline, loop, disk)
        return ReplicaPorts(
            files=disk,
            hand=workers,
            connect=connect,
            store_host=(bytes((10, 0, 0, self.number + 1)), 7000),
            call_soon=loop.post,
            turns=turns,
            call_from_worker=workers.announce,
            now_ms=loop.wall_ms,
            random=Random(self.draw()),
            latencies=_NoLatencies(),
            machinery=replace(self.machinery, workers=workers.make, clock=loop.time),
            rhythm=Rhythm(
                housekeeping_s=tuning.housekeeping_ms / 1e3,
                drain_s=DRAIN_S,
                apply_slice_bytes=tuning.apply_slice_bytes,
                snapshots=SnapshotPace(tuning.snapshot_entries, retry_s=SNAPSHOT_RETRY_S),
                scrub=ScrubPace(
                    shortest_pause_s=SCRUB_PAUSE_S,
                    longest_pause_s=SCRUB_LONGEST_PAUSE_S,
                    between_s=tuning.scrub_between_ms / 1e3,
                    beside_every=SCRUB_BESIDE_EVERY,
                    note_s=SCRUB_NOTE_S,
                ),
                log_start_s=tuning.log_start_ms / 1e3,
                retention_s=tuning.retention_ms / 1e3,
                groups=MEMBER_PACE,
                delays_ms=MEMBER_DELAYS_MS,
            ),
            known_level=self.known_level,
        )

    async def _get_back(self, refilling: Refilling) -> None:
        """What a node's process does that has found gaps in its log, up to its next start."""
        self.disk.take_latency()
        failure: Exception | None = None
        try:
            await refilling.fill()
        except (BeyondRepair, CorruptionFound, OSError) as error:
            failure = error
        await refilling.close()
        if failure is None:
            self.refills += 1
            self._bury("has got back what was missing")
            self.disk.kill()
            self._world.reopen(self)
            return
        self._world.log(self.name, f"starts no more: {failure}")
        if not self._is_excused(failure):
            raise Defect("not refilled", f"{self.name}: {failure!r}") from failure
        self.is_ruined = not isinstance(failure, OSError)
        self._bury("ended without what is missing")
        self.disk.kill()

    async def _live(self, life: Life) -> None:
        """What a node's process does once it has started, to its end."""
        await life.replica.wait()
        is_clean = await life.replica.stop(partial(self._shut_doors, life))
        self._check_the_end(life, is_clean=is_clean)
        self._bury("stopped" if is_clean else "ended by a failure")
        self.disk.kill()
        if life.replica.wants_reopening and is_clean and not life.is_stopping:
            self.installs += 1
            self._world.reopen(self)

    async def _shut_doors(self, life: Life) -> None:
        """Takes no more calls. Those under way end within the product's grace: the replica has
        answered who waited, and a long pull has its pieces left."""
        life.is_shut = True
        await asyncio.sleep(LOOK_S)
        for _ in range(round(SERVER_GRACE_S / LOOK_S)):
            if not (life.calls or life.streams):
                break
            await asyncio.sleep(LOOK_S)
        if life.streams:
            raise Defect("unanswered", f"{self.name} stops, and streams of members go on")
        if life.calls:
            methods = sorted(call.method for call in life.calls.values())
            raise Defect("unanswered", f"{self.name} stops, and {', '.join(methods)} wait")

    def _check_the_end(self, life: Life, *, is_clean: bool) -> None:
        """The next start trusts the log exactly if nothing has failed; and then it has nothing to
        derive again, unless the disk was full."""
        failed = life.failed
        # The mark is the last thing that a close writes: if that is what failed, all else is safe.
        is_mark = isinstance(failed, StorageFailed) and failed.operation == "close"
        is_clean_log = is_clean and not life.replica.repairs.is_at_work
        if self.disk.exists(DATA / "abort") == is_clean_log and not is_mark:
            ending = "a clean stop" if is_clean else f"a failure ({failed})"
            raise Defect("stop", f"{self.name}: the log is marked wrongly after {ending}")
        replica = life.replica
        noted = replica.log.checkpoint.state.consume_queue_index
        is_held = replica.housekeeping.is_checkpoint_held
        is_behind = noted != replica.driver.settled_index and self.config.store.flush == "sync"
        is_behind &= not replica.mender.is_at_work  # what is noted has to be found wrong again
        if is_clean and not is_held and is_behind:
            raise Defect("stop", f"{self.name}: the checkpoint stays at {noted} at a clean stop")

    def _check_rot_was_found(self) -> None:
        """Recovery has read whatever no seal spoke of: a rotten byte in it can't have escaped."""
        if self.life is None:
            return
        log = self.life.replica.log
        try:
            known = [
                (log.position_of(first), log.position_of(last) + log.header_at(last).total_size)
                for first, last in log.passed_over
            ]
        except StoreError:
            return  # where they begin has rotted, which is the scrub's to find
        for (path, at), before in self.rot.items():
            if path.parent.name != "commitlog":
                continue
            if not self.disk.has(path):
                continue  # what was in it was retired
            place = int(path.name) + at
            is_known = any(start <= place < end for start, end in known)
            if not is_known and self.disk.content(path)[at : at + 1] != bytes((before,)):
                raise Defect("rot not found", f"{self.name}: {path.name} at byte {at}")

    def _check_doubt(self, replica: Replica) -> None:
        """Whoever has written down that its log is rotten promises nothing until it isn't, in this
        life as in the one before."""
        for name, offset in DoubtNote(self.disk, DATA).read():
            file = DATA / "commitlog" / name
            if replica.repairs.is_at_work or not replica.log.holds_byte(str(file), offset):
                continue
            place = replica.log.damages.place_of(str(file), offset)
            content = self.disk.content(file)
            for (path, at), before in self.rot.items():
                is_there = path == file and place.start <= at < place.end
                if is_there and content[at : at + 1] != bytes((before,)):
                    raise Defect("doubt forgotten", f"{self.name}: {name} at byte {at} is rotten")

    def _check_suspicion(self, replica: Replica) -> None:
        """Whoever has written down that its log may be another one compares it, in this life as in
        the one before."""
        noted = SuspicionNote(self.disk, DATA).read()
        if noted is None or not 0 < noted.index <= replica.driver.core.durable_index:
            return
        if not replica.comparison.statistics().suspected:
            raise Defect("suspicion forgotten", f"{self.name}: entry {noted.index}")

    def _failed_to_start(self, error: Exception) -> None:
        self._world.log(self.name, f"failed to start: {error}")
        if isinstance(error, (CorruptionFound, HardStateCorrupt)):
            if not self.spoiled:
                raise Defect("false corruption", f"{self.name}: {error}") from error
            is_asked_for = isinstance(error, GapFound)  # and there is nobody to ask
            if not (is_asked_for or self.is_foreign or self.has_lied) and goes_on_behind(self):
                raise Defect("not asked for", f"{self.name}: {error}") from error
            self.is_ruined = True
        elif not self.disk.failures or (self.has_started and _is_for_space(error)):
            raise Defect("start", f"{self.name}: {error!r}") from error
        self.disk.kill()

    # --- how it ends -------------------------------------------------------------------------

    def kill(self, why: str = "killed") -> None:
        """SIGKILL: the memory is gone, the page cache stays."""
        if self.life is not None or self.refill is not None:
            self._bury(why)
            self.disk.kill()

    def cut_power(self, why: str = "lost power") -> None:
        """The machine is off: what was not synced is lost."""
        self._bury(why)
        self.disk.power_off(self._disk_chance)

    def die_midway(self) -> None:
        """The end that the disk has met in the midst of an operation."""
        if self.disk.keeps_cache:
            self.kill("killed in the midst of a disk operation")
            self.disk.power_on()
        else:
            self.cut_power("lost power in the midst of a disk operation")

    def stop(self) -> None:
        """SIGTERM."""
        life = self.life
        if self.refill is not None:
            self.kill("is asked to stop before it has got back what is missing")
        if life is not None and not life.is_stopping:
            life.is_stopping = True
            self._world.timeline.after(0, life.loop, life.replica.ask_to_stop)

    def hand_over(self, target: NodeId | None) -> None:
        """An operator asks for leadership to move; a refusal is fine."""
        with contextlib.suppress(CoreError):
            self._alive.replica.driver.transfer_leadership(target)

    def move_start(self, index: int) -> None:
        """Whoever keeps the log's bounds asks for its front to go; a refusal is fine."""
        life = self._alive

        async def ask() -> None:
            with contextlib.suppress(BrokerError):
                await life.replica.propose_log_start(index)

        life.loop.create_task(ask())

    def judge(self, life: Life) -> None:
        """A part failed for good, and the process is on its way to its end: was there a reason?"""
        error = life.failed
        if error is None or life.is_judged:
            return
        life.is_judged = True
        if isinstance(error, Defect):
            raise error
        self._world.log(self.name, f"failed: {type(error).__name__}: {error}")
        if not self._is_excused(error):
            raise Defect("node failed", f"{self.name}: {type(error).__name__}: {error}") from error
        self._judge_ending(error)
        if isinstance(error, (CorruptionFound, BeyondRepair)):
            self.is_ruined = True

    def _judge_ending(self, error: BaseException) -> None:
        """Who supervises the process learns whether it was the disk."""
        cause = error.cause if isinstance(error, StorageFailed) else error
        expected = ExitCode.DISK_FAILED if isinstance(cause, OSError) else ExitCode.FAILED
        if (ending := ending_of(error)) is not expected:
            raise Defect("exit code", f"{self.name}: {ending:d} for {error!r}") from error

    def _could_repair(self, error: CorruptionFound) -> bool:
        """Whether what the process ended for was committed, for all that it knew: then it had to be
        repaired."""
        path = Path(error.file)
        if path.parent.name != "commitlog" or self.life is None:
            return False
        replica = self.life.replica
        try:
            index = replica.log.index_at(int(path.name) + error.offset)
        except StoreError:
            return False
        core = replica.driver.core
        return index <= min(core.commit_index, core.durable_index, replica.log.synced_index)

    def _is_excused(self, error: BaseException) -> bool:
        cause = error.cause if isinstance(error, StorageFailed) else error
        if isinstance(cause, OutOfService):
            return self._is_rightly_out(cause)
        if isinstance(cause, BeyondRepair):
            # Somebody else has lost the same, or said so.
            lies = self._world.network.lies
            is_elsewhere = self._world.is_rotten_elsewhere(self)
            # Of a log that is another one nobody has the bytes.
            return self.has_log_rot and (lies > 0 or is_elsewhere or self.altered_from > 0)
        if isinstance(cause, CorruptionFound):
            return self.spoiled and not self._could_repair(cause)
        if isinstance(cause, HardStateCorrupt):
            return self.spoiled
        if isinstance(cause, OSError) and cause.errno in FULL_ERRNOS:
            return False  # a full disk refuses messages; it ends no node (ADR 28)
        return isinstance(cause, OSError) and bool(self.disk.failures)

    def _is_rightly_out(self, error: OutOfService) -> bool:
        """Whether its log is another one, and parts from the others' where it says."""
        told = error.divergence
        if told.recoveries:
            return self.was_given_up
        if told.differing_index not in (0, self.altered_from):
            return False
        return bool(self.altered_from) and told.agreed_index < self.altered_from

    def give_up_what_is_retired(self, others: Iterable[SimNode]) -> None:
        """A start that waits for entries which all others have let go waits for ever (ADR 53): the
        disk is the operator's to replace."""
        lives = [other.life for other in others if other is not self and other.life is not None]
        if self.refill is None or not lives:
            return
        if all(life.replica.log.first_index > self._gap_at for life in lives):
            self.is_ruined = True
            self._bury("wants what nobody has any more")
            self.disk.kill()

    def _bury(self, why: str) -> None:
        if self.refill is not None:
            self._world.log(self.name, why)
            self.refill.die()
            self.refill = None
            self._world.network.on_process_gone(self.name)
            return
        life, self.life = self.life, None
        if life is None:
            return
        self._world.log(self.name, why)
        life.loop.die()
        self._world.on_stopped(self)

    def lose_disk(self) -> None:
        """The machine is given a new, empty disk, and nobody tells the program."""
        self.kill("lost its disk")
        self.lost.append(self.disk.wipe())
        if not self.is_harmed:
            self.replaced.append(self.lost[-1].image())
        if self.altered_from:
            self.lost_altered.append((self.lost[-1], self.altered_from))
            self.altered_from = 0
        self.is_lost = True
        self.is_past = self.has_lied = False
        self._world.network.liars.pop(self.name, None)  # whoever comes on it tells the truth
        self.has_started = False
        self.rot.clear()
        self.passing_rot.clear()

    def stand_by(self) -> None:
        """It is a member no more: stopped, emptied, and ready to be taken in anew."""
        self.kill("is stopped for good")
        self.disk.power_on()
        self.lost.append(self.disk.wipe())
        self.replaced.clear()
        self.is_spare, self.is_lost, self.has_started = True, False, False
        self.rot.clear()
        self.passing_rot.clear()
        self._world.log(self.name, "stands by, on an empty disk")

    def put_back(self, copy: SimulatedDisk) -> None:
        """The machine is given an older copy of its disk, and nobody tells the program."""
        self.kill("is put back to what it was")
        self.disk.power_on()
        self.lost.append(self.disk.put_in(copy))
        self.is_past = True

    def find_again(self) -> None:
        """The machine is given the disk that was replaced last, as it was then."""
        self.kill("is given a disk that was replaced")
        self.disk.power_on()
        self.lost.append(self.disk.put_in(self.replaced.pop()))
        self.is_returned = True

    def put_right(self) -> None:
        """It has the disk again with which it is a member."""
        self.kill("is given its own disk again")
        self.disk.power_on()
        self.disk.put_in(self.lost.pop())
        self.is_returned = False
        self.boot()

    def start_on(self, disk: SimulatedDisk) -> Start | None:
        """What a process that was started on `disk` would find there; None: it wouldn't start."""
        timeline = self._world.timeline
        loop = ProcessLoop(timeline, self.name, self.number + 1, self._plan.tuning.turn_us)
        before = timeline.current

        def connect(identity: Identity, on_message: OnMessage, on_broken: OnBroken) -> Links:
            raise _FoundOut(identity.start)

        turns = CountedTurns(timeline, loop, self._plan.tuning.turn_steps)
        timeline.switch(loop)
        try:
            Replica.open(self.config, self._ports(disk, loop, turns, connect))
        except _FoundOut as found:
            return found.start
        except (StoreError, HardStateCorrupt, NotAMember, OSError) as error:
            self._world.log(self.name, f"wouldn't start on a copy: {error}")
        finally:
            loop.die()
            timeline.switch(before)
        return None

    def pause(self) -> None:
        """SIGSTOP."""
        if self.life is not None:
            self.life.loop.paused = True
            self._world.log(self.name, "paused")

    def resume(self) -> None:
        """SIGCONT."""
        if self.life is not None and self.life.loop.paused:
            self._world.log(self.name, "resumed")
            self._world.timeline.resume(self.life.loop)

    # --- calls -------------------------------------------------------------------------------

    @property
    def _alive(self) -> Life:
        if self.life is None:
            raise RuntimeError(f"{self.name} is down")
        return self.life

    async def serve(self, method: str, request: object) -> object:
        """The answer of a service's method.

        Raises:
            BrokerError: as the client learns it.
        """
        life = self._alive
        context, told = _CallContext(), request
        if isinstance(told, Told):
            context.told, request = told.metadata, told.request
            heed_epoch(life.replica.services.cluster, context)  # type: ignore[arg-type]
        if method == "view":
            return wire_view(life.replica.leadership.view())
        handler = (
            self._write_unit
            if method == WRITE_UNIT
            else getattr(life.door, method, None)
            or getattr(life.groups_door, method, None)
            or getattr(life.consumers_door, method, None)
            or getattr(life.deliveries_door, method)
        )
        self._calls += 1
        number = self._calls
        life.calls[number] = OpenCall(method, request, asyncio.current_task())
        try:
            answer: object = await handler(request, context)
            if isinstance(told, Told):
                told.answered = context.answered
                told.served_in = life.core.configuration.epoch.number
                told.was_shut = life.replica.leadership.fence.is_shut
            return answer
        except BrokerError:
            raise
        except (CorruptionFound, StorageFailed, OSError) as error:
            if self.spoiled or self.disk.failures:
                raise BrokerError(ErrorCode.INTERNAL, str(error)) from error
            raise
        finally:
            del life.calls[number]
            context.finish()

    async def _write_unit(self, wanted: object, context: object) -> bool:
        """Whether a unit took effect, written past the door, which has no such call yet."""
        assert isinstance(wanted, ProposedUnit)
        result = await self._alive.replica.appender.units.propose(wanted)
        return result.refusal is None

    def _birth(self) -> Birth:
        """A disk that is used for the first time."""
        self.disks_born += 1
        chance = self._plan.random(f"birth/{self.name}/{self.disks_born}")
        return Birth(chance.randbytes(DISK_ID_BYTES), WALL_START_MS + self._world.now_us // 1000)

    def draw(self) -> float:
        """Randomness for a part of the process."""
        return self._chance.random()

    def _sync_latency(self) -> int:
        return self.sync_us // 2 + int(self._disk_chance.random() * self.sync_us)


class _CallContext:
    """What the services use of a gRPC context; an answer is read by its client at once."""

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


def goes_on_behind(node: SimNode) -> bool:
    """Whether nothing but a log has rotted on a disk, and behind all of it lie two entries of which
    the second goes on from the first: what is missing can be proven then."""
    places = [
        int(path.name) + at if path.parent.name == "commitlog" else None for path, at in node.rot
    ]
    if not places or None in places:
        return False
    last = max(each for each in places if each is not None) + SECTOR_BYTES
    before: tuple[int, int] | None = None  # where an intact entry ends, and its digest
    for path in sorted(each for each in node.disk.paths() if each.parent == DATA / "commitlog"):
        content = node.disk.content(path)
        for at in possible_starts(content):
            if int(path.name) + at <= last:
                continue
            try:
                header = verify_frame(content, at, None)
            except InvalidFrame:
                continue
            if header.physical_offset != int(path.name) + at:
                continue
            carried_on = before and digest_of(content, at, header.total_size, before[1])
            if before and (before[0], carried_on) == (header.physical_offset, header.digest):
                return True
            before = header.physical_offset + header.total_size, header.digest
    return False


def _never() -> bool:
    return False


def _is_for_space(error: Exception) -> bool:
    """What a full disk is told by."""
    return isinstance(error, StorageFull) or (
        isinstance(error, OSError) and error.errno in FULL_ERRNOS
    )


def _tell_of_crash(loop: ProcessLoop, process: asyncio.Task[None]) -> None:
    """An error of a process, its stop included, ends the run."""
    error = None if process.cancelled() else process.exception()
    if error is not None and not isinstance(error, ActorDied):
        loop.crashes.append(error)


def node_config(plan: Plan, name: NodeId, members: list[NodeId]) -> NodeConfig:
    """A configuration with bounds far below what a real node accepts, so that a short run meets
    them; `model_copy` sets them without asking."""
    tuning = plan.tuning
    peers = {member: f"10.0.0.{i + 1}:7000" for i, member in enumerate(members)}
    config = NodeConfig(
        insecure=True,  # its addresses are names in a network that is one program
        broker_group=GROUP,
        node_id=name,
        data_directory=DATA,
        listen=peers[name],
        peers={str(member): address for member, address in peers.items()},
        raft=RaftConfig(),
        store=StoreConfig(),
        retention=RetentionConfig(
            age_hours=0,
            bytes=tuning.retention_bytes,
            disk_percent=tuning.retention_disk_percent,
        ),
        broker=BrokerConfig(long_poll_default_ms=0),
    )
    raft = config.raft.model_copy(
        update={
            "max_append_bytes": tuning.max_append_bytes,
            "max_append_entries": tuning.max_append_entries,
            "max_inflight_appends": tuning.max_inflight_appends,
            "max_uncommitted_bytes": tuning.max_uncommitted_bytes,
        }
    )
    store = config.store.model_copy(
        update={
            "segment_size_bytes": tuning.segment_bytes,
            "reserve_bytes": 0,
            "flush": tuning.flush,
        }
    )
    return config.model_copy(update={"raft": raft, "store": store})
