"""What decides a run: the size of the group, the load, and which faults happen when.

A plan is a value: it can be printed as a command line, changed and run again, which is how a
failure is replayed and shrunk. A seed draws one: `chaos.sim.drawing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Literal

from broker.leader.groups.pace import Pace
from broker.state.registration import ProducerBounds
from chaos.sim.network import FAIR, Weather
from dledger.records.reserved import LEVELS

DEFAULT_DURATION_MS = 20_000
DEFAULT_RATE = 50

# Producers are forgotten for want of room, so a run has little, and a day has few seconds.
UNNAMED_UNUSED_MS = 2_000
NAMED_UNUSED_MS = 6_000

MEMBER_DELAYS_MS = tuple(200 + 100 * level for level in range(LEVELS))
# Sessions are short, so that a run sees many ends of them.
MEMBER_PACE = Pace(
    heartbeat_ms=150,
    session_ms=1_200,
    away_ms=100,
    return_ms=850,
    keep_ms=150,
    release_ms=300,
    orderly_release_ms=600,
    look_ms=20,
    late_ms=300,
    retry_ms=100,
    forget_ms=1_000,
)


class Fault(Enum):
    """What the nemesis can do."""

    KILL = "kill"  # the process dies, the page cache survives
    KILL_MAJORITY = "kill-majority"
    POWER = "power"  # what was not synced is lost
    POWER_MIDWAY = "power-midway"  # in the midst of a disk operation
    POWER_ALL = "power-all"
    RESTART_LOOP = "restart-loop"
    TERMINATE = "terminate"  # a clean stop
    PAUSE = "pause"
    PAUSE_LEADER = "pause-leader"
    HALVES = "halves"
    ISOLATE_LEADER = "isolate-leader"
    ISOLATE = "isolate"
    RING = "ring"
    BRIDGE = "bridge"
    ONE_WAY = "one-way"
    BREAK_STREAMS = "break-streams"
    TRANSFER = "transfer"
    CLIENT_CUT = "client-cut"
    CLOCK_STEP = "clock-step"
    CLOCK_DRIFT = "clock-drift"
    SLOW_DISK = "slow-disk"
    WRITE_ERROR = "write-error"
    SYNC_ERROR = "sync-error"
    ODD_ERROR = "odd-error"  # any calls of the file layer fail, those that only look among them
    DISK_FULL = "disk-full"
    BIT_FLIP = "bit-flip"
    KILL_MIDWAY = "kill-midway"  # as power-midway, but the page cache survives
    STALE_LEADER = "stale-leader"  # cut off, paused, and woken up to clients that ask it
    KILLER = "killer"  # the schedule that found most, see docs/simulator.md
    SILENCE = "silence"  # everybody is cut from everybody, and nothing is reset
    MUTE_STREAMS = "mute-streams"  # they carry nothing any more, and nobody is told
    STOLEN_STREAM = "stolen-stream"  # a stranger calls in a node's name
    SLOW_CONNECT = "slow-connect"  # connections take seconds to be made; late ones arrive late
    GARBLE = "garble"  # bits flip in messages between nodes
    QUEUE_ROT = "queue-rot"  # a ConsumeQueue's file has other bytes, or more, or fewer
    CLOCK_LEAP = "clock-leap"  # a wall clock is minutes to decades off, for a while or for good
    CLOCKS_LEAP = "clocks-leap"  # as many of them as there are, together or one by one
    WIPE = "wipe"  # a node's disk is lost: it starts on an empty one, and an operator replaces it
    RETURNED = "returned-disk"  # one that was replaced is found again and started
    SWAP = "swap"  # two nodes start with each other's disk
    OLDER_COPY = "older-copy"  # a copy of a node's disk is put back later, where others can tell
    LIAR = "liar"  # a member says absurd and contradictory things, properly sealed
    CHURN = "churn"  # administrators change who is a member, and who votes
    ALTERED_LOG = "altered-log"  # an entry of one disk is another, with checksums that fit
    PRIORITY = "priority"  # an operator prefers a voter as the leader, or nobody
    LOG_ROT = "log-rot"  # of running members, of two at once too: it is got back from a peer
    MOVE_START = "move-start"  # the group lets the front of its log go
    SNAPSHOT_ROT = "snapshot-rot"  # a snapshot of state has other bytes, is another's, or is gone


LINK_FAULTS = (Fault.SILENCE, Fault.MUTE_STREAMS, Fault.STOLEN_STREAM, Fault.SLOW_CONNECT)
SPEECH = (Fault.GARBLE, Fault.LIAR)  # what is done to what is said
# What is done to whole disks.
DISK_FAULTS = (Fault.WIPE, Fault.WIPE, Fault.SWAP)


def bounds(producers: int) -> ProducerBounds:
    """Room for so many producers, and for three queues of each."""
    return ProducerBounds(
        producers=producers,
        queues_each=16,
        pairs=3 * producers,
        named_unused_ms=NAMED_UNUSED_MS,
        unnamed_unused_ms=UNNAMED_UNUSED_MS,
    )


ROOMY = bounds(1_000)


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault to come. `number` is its place in the whole schedule; its own randomness comes
    from the seed and that number, so that leaving another one out changes nothing in it."""

    number: int
    time_ms: int
    kind: Fault


@dataclass(frozen=True, slots=True)
class Tuning:
    """Bounds of store and replication, small so that they are met often. Bytes and counts."""

    segment_bytes: int = 32 << 10
    cache_bytes: int = 8 << 10
    units_per_file: int = 64
    max_append_bytes: int = 4 << 10
    max_append_entries: int = 1_024
    max_inflight_appends: int = 8
    max_uncommitted_bytes: int = 64 << 10
    sync_us: int = 300
    turn_us: int = 0
    housekeeping_ms: int = 200
    apply_slice_bytes: int = 1 << 20
    producers: ProducerBounds = ROOMY
    scrub_between_ms: int = 2_000  # from one pass of the scrub to the next
    snapshot_entries: int = 40  # from one snapshot of state to the next
    log_start_ms: int = 50  # from one look at whether the log's front can go to the next
    retention_age_ms: int = 0  # lived time after which a full segment goes; 0: never for its age
    retention_bytes: int = 0  # how long the log may be; 0: as long as it gets
    retention_disk_percent: int = 0  # a voter's disk that is used to that; 0: none is
    retention_ms: int = 100  # from one look at that to the next
    topic_slack_ms: int = 100  # that what goes by a topic's wish is older than that, at least
    turn_steps: int = 1_000  # of what is done in pieces: entries applied, records read
    flush: Literal["sync", "async"] = "sync"
    answer_bytes: int = 0  # that clients who read slowly may leave unread; 0: all read at once
    hastens_first_election: bool = False  # nodes do; seeds are what they were before these did


SMALL = Tuning()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides a run. Times in milliseconds, `rate` in operations a second."""

    seed: int
    nodes: int = 3  # that the group is formed of
    spares: int = 0  # machines that stand by to be taken in
    duration_ms: int = DEFAULT_DURATION_MS
    rate: int = DEFAULT_RATE
    producers: int = 3
    consumers: int = 2
    queues: int = 3
    admin: bool = True
    racers: int = 0
    unit_writers: int = 0
    crews: tuple[int, ...] = ()  # members of each consumer group
    overseers: int = 0  # of crews
    poppers: tuple[int, ...] = ()  # of each group that is handed single messages
    doubters: bool = False  # those ask again now and then though they were answered
    failing: int = 0  # members of a group that fails at messages
    stopping: int = 0  # of one that does so in order
    keyed: int = 0  # members of a group that reads in order a topic that grows and shrinks
    gatekeeper: bool = False  # topics are opened and closed
    wisher: bool = False  # topics wish their messages for longer or shorter than the group
    upgraded: bool = False  # whoever starts again does so with a release of the next level
    one_away: bool = False  # when all is at rest a voter goes, and the others have to serve
    one_way: bool = False  # when all is at rest a voter can't call the others any more
    weather: Weather = FAIR
    tuning: Tuning = SMALL
    faults: tuple[FaultEvent, ...] = field(default=())

    @property
    def moves_start(self) -> bool:
        """Whether logs may begin later than with entry 1."""
        tuning = self.tuning
        bounds = tuning.retention_age_ms, tuning.retention_bytes, tuning.retention_disk_percent
        return any(bounds) or any(fault.kind is Fault.MOVE_START for fault in self.faults)

    @property
    def goes_by_age_alone(self) -> bool:
        """Whether nothing of a log may go but what is too old."""
        tuning = self.tuning
        others = tuning.retention_bytes, tuning.retention_disk_percent
        is_moved = any(fault.kind is Fault.MOVE_START for fault in self.faults)
        return tuning.retention_age_ms > 0 and not any(others) and not is_moved

    @property
    def machines(self) -> int:
        return self.nodes + self.spares

    def random(self, purpose: str) -> Random:
        """Randomness for one purpose: what others draw doesn't change it."""
        return Random(f"{self.seed}/{purpose}")
