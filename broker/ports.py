"""What a replica needs of the world it runs in; see `broker.replica`.

A process hands in the operating system's disk, threads, sockets and clocks, the simulator its own,
a test what it likes: the replica is the same. Beside these ports a replica knows the world only by
the event loop that runs it: timers, tasks and futures are asyncio's, on whatever loop that is.
Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from broker.archiving import CommandRunner, RunCommand
from broker.leader.batches import PART_WEIGHT
from broker.leader.budget import ANSWER_BYTES
from broker.leader.groups.pace import USUAL_PACE as USUAL_GROUPS
from broker.leader.groups.pace import Pace
from broker.leader.topic_retention import SLACK_MS
from broker.premises import Premises, nothing_known
from broker.recovery import REAL_MACHINERY, StoreMachinery
from broker.scrubbing import USUAL_SCRUB, ScrubPace
from broker.snapshots import USUAL_PACE, SnapshotPace
from dledger.applying import APPLY_SLICE_BYTES
from dledger.core.group_epoch import Lineage
from dledger.core.types import Holding, NodeId
from dledger.greeting import Identity
from dledger.level import KNOWN_LEVEL
from dledger.peers import PeerLink
from dledger.ports import PeerTransport, Turns
from dledger.promises import Promises
from dledger.records.reserved import LEVEL_DELAYS_MS
from dledger.wire.raft_pb2 import PeerMessage
from store.files import FileSystem

T = TypeVar("T")
# Of a peer; raises InvalidFrames for one that is broken: the stream it came on is to be ended.
OnMessage = Callable[[NodeId, PeerMessage], None]
OnBroken = Callable[[NodeId], None]  # a stream with the peer, in either direction, has ended


class Histogram(Protocol):
    """Where seconds go."""

    def observe(self, amount: float) -> None: ...


class Latencies(Protocol):
    """What is measured while a replica works; all of it may be thrown away."""

    @property
    def send_seconds(self) -> Histogram: ...
    @property
    def append_seconds(self) -> Histogram: ...
    @property
    def commit_seconds(self) -> Histogram: ...
    @property
    def apply_seconds(self) -> Histogram: ...
    @property
    def loop_lateness_seconds(self) -> Histogram: ...


class DiskHand(Protocol):
    """Does blocking disk work beside the event loop, one step at a time, in the order given."""

    async def run(self, step: Callable[[], T]) -> T:
        """What `step` gives, once it has been done; raises what it raises."""
        ...

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        """All of `steps` are done, in any order and several at once if the disk gains by it.
        Raises what one of them raises that fails, when none is under way any more: that a disk is
        full only if nothing else is wrong with it."""
        ...


class Peers(PeerTransport, Protocol):
    """The connections to the peers. Nothing is sent or received before `start`."""

    def start(self) -> None: ...

    async def stop(self) -> None:
        """Every stream is closed; neither of the two callbacks is called any more."""
        ...

    def links(self) -> Mapping[NodeId, PeerLink]: ...
    def level_of(self, peer: NodeId) -> int: ...

    def speak_for(self, holding: Callable[[], Holding]) -> None:
        """Signs of life say what this node's disk holds."""
        ...

    def recall(self, promises: Mapping[NodeId, Promises]) -> None:
        """Peers are held to what they told an earlier start of this node; before `start`."""
        ...

    def promises(self) -> dict[NodeId, Promises]:
        """What the peers' disks have promised, as of now."""
        ...

    def when_given_up(self, call: Callable[[NodeId, Lineage], None]) -> None:
        """`call` is told once a member says that the group was recovered without this node, and by
        which recoveries; before `start`."""
        ...


Connect = Callable[[Identity, OnMessage, OnBroken], Peers]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often and in what pieces a replica does what nobody waits for."""

    housekeeping_s: float = 1.0  # from one round to the next: queues durable, checkpoint moved on
    drain_s: float = 2.0  # how long a stop waits for those who wait for a commit
    apply_slice_bytes: int = APPLY_SLICE_BYTES
    snapshots: SnapshotPace = USUAL_PACE
    scrub: ScrubPace = USUAL_SCRUB
    log_start_s: float = 1.0  # from one look at whether the log's front can go to the next
    retention_s: float = (
        10.0  # from one look of the leader's at what is old, or too much, to the next
    )
    topic_slack_ms: int = SLACK_MS  # see `broker.leader.topic_retention`
    groups: Pace = USUAL_GROUPS
    delays_ms: tuple[int, ...] = LEVEL_DELAYS_MS  # by level: the format's, but where time is short
    part_weight: int = PART_WEIGHT  # of a Send: what is proposed in one turn, in records
    answer_bytes: int = ANSWER_BYTES
    hastens_first_election: bool = True  # see `broker.first_election`


STEADY = Rhythm()


@dataclass(frozen=True, slots=True)
class ReplicaPorts:
    """The world, as one replica sees it.

    Attributes:
        files: the disk.
        machinery: who runs the store's workers, and the store's monotonic clock.
        hand: runs the blocking steps of housekeeping and of the close.
        connect: makes the links to the peers, given who calls and what to do with what comes.
        store_host: IPv4 address (4 bytes) and port that records are stamped with.
        call_soon: runs a call in a turn of the event loop.
        turns: how long work shares the event loop: the replica's own.
        call_from_worker: the same, of a worker's thread; the loop may be closed by then.
        now_ms: the wall clock; it may step.
        random: for the core's timeouts.
        latencies: where measurements go.
        known_level: of formats and commands; a simulator's nodes may be of other releases.
        premises: what there is to say of where it lives.
        run_command: runs what an operator has configured.
        call_turns: how long calls share the event loop; None: as all else.
    """

    files: FileSystem
    hand: DiskHand
    connect: Connect
    store_host: tuple[bytes, int]
    call_soon: Callable[[Callable[[], None]], object]
    turns: Turns
    call_from_worker: Callable[..., None]
    now_ms: Callable[[], int]
    random: Random
    latencies: Latencies
    machinery: StoreMachinery = REAL_MACHINERY
    rhythm: Rhythm = STEADY
    known_level: int = KNOWN_LEVEL
    premises: Callable[[], Premises] = nothing_known
    run_command: RunCommand = field(default_factory=CommandRunner)
    call_turns: Turns | None = None
