"""What one seed decides: the size of the group, the load, and which faults at which rates.

A plan is a value: it can be printed as a command line, changed and run again, which is how a
failure is replayed and shrunk. Swarm testing: a seed draws which features are on at all, because
a run with every fault at once hides the defects that need one of them to be absent (Groce et al.,
"Swarm Testing", ISSTA 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Literal

from broker.leader.groups.pace import Pace
from broker.state.registration import ProducerBounds
from chaos.sim.network import FAIR, Weather
from dledger.records.reserved import LEVELS

DEFAULT_DURATION_MS = 20_000
DEFAULT_RATE = 50


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


# Drawn apart from the others, so that a seed keeps those that it had before there were these.
FIRST_LINK_FAULT = 1_000  # the number of the first of them
LINK_FAULTS = (Fault.SILENCE, Fault.MUTE_STREAMS, Fault.STOLEN_STREAM, Fault.SLOW_CONNECT)

# So are those of clocks that nobody believes any more.
FIRST_LEAP = 2_000
LEAPS_SHARE = 0.25  # of the seeds

# What is done to what is said, drawn by itself for the same reason.
SPEECH = (Fault.GARBLE, Fault.LIAR)
# What is done to whole disks; drawn by itself, too, and with numbers of their own.
DISK_FAULTS = (Fault.WIPE, Fault.WIPE, Fault.SWAP)
FIRST_DISK_FAULT = 3_000
DISK_FAULTS_SHARE = 0.35  # of the seeds
FIRST_RETURN = 5_000
RETURNS_SHARE = 0.5  # of the lost disks
FIRST_SNAPSHOT_ROT = 6_000
SNAPSHOT_ROT_SHARE = 0.3  # of the seeds
FIRST_CHURN = 8_000
CHURN_SHARE = 0.3  # of the seeds
# What isn't in a group whose members change: their checks and their limits speak of all machines.
NOT_WITH_CHURN = frozenset(
    {
        *(Fault.SWAP, Fault.OLDER_COPY, Fault.RETURNED, Fault.LIAR, Fault.BIT_FLIP),
        *(Fault.CLOCK_STEP, Fault.CLOCK_LEAP, Fault.CLOCKS_LEAP),
    }
)
FIRST_PRIORITY = 10_000
PRIORITY_SHARE = 0.15  # of the seeds
FIRST_ALTERED = 9_000
ALTERED_SHARE = 0.25  # of the seeds
FIRST_LOG_ROT = 7_000
LOG_ROT_SHARE = 0.35  # of the seeds
FIRST_MOVE = 11_000
MOVES_SHARE = 0.35  # of the seeds
# Rot in what a start has to have, and the log's start: what has rotted in one member may be retired
# in those that could give it; and what differs, before anybody compares it.
NOT_WITH_MOVES = frozenset({Fault.BIT_FLIP, Fault.SNAPSHOT_ROT, Fault.ALTERED_LOG})
ROTTING_FRONTS_SHARE = 0.5  # of the seeds in which logs rot and fronts move; the others rot not
FIRST_ODD_ERROR = 12_000
FIRST_COPY = 4_000
COPIES_SHARE = 0.25  # of the seeds
# Kinds that few seeds would have often enough to find anything, and one of which some seeds have
# again and again, among what else they have. The first is in no seed by itself.
FOCI = (Fault.QUEUE_ROT, Fault.DISK_FULL)
FOCUS_SHARE = 0.35  # of the seeds
FOCUSED_SHARE = 0.4  # of the faults of such a seed

# Producers are forgotten for want of room, so a run has little, and a day has few seconds.
UNNAMED_UNUSED_MS = 2_000
NAMED_UNUSED_MS = 6_000


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
RACERS_SHARE = 0.35  # of the seeds
UNIT_WRITERS_SHARE = 0.5  # of the seeds
CREWS_SHARE = 0.4
POPPERS_SHARE = 0.4
FAILING_SHARE = 0.25
KEYED_SHARE = 0.3
GATEKEEPER_SHARE = 0.15
MEMBER_DELAYS_MS = tuple(200 + 100 * level for level in range(LEVELS))
# Sessions are short, so that a run sees many ends of them.
MEMBER_PACE = Pace(
    heartbeat_ms=150,
    session_ms=1_200,
    away_ms=100,
    return_ms=600,
    release_ms=300,
    orderly_release_ms=600,
    look_ms=20,
    late_ms=300,
    retry_ms=100,
    forget_ms=1_000,
)
UPGRADED_SHARE = 0.25
ONE_AWAY_SHARE = 0.3  # of the seeds
ONE_AWAY_UPGRADED_SHARE = 0.8  # of those that are upgraded: there is more to find
SPEECH_SHARE = 0.25  # of the seeds
SPOKEN_SHARE = 0.15  # of the faults of such a seed

# After these a log that is flushed later may lack what was acknowledged, as documented.
NEED_SYNC = frozenset(
    {Fault.POWER, Fault.POWER_MIDWAY, Fault.POWER_ALL, Fault.SYNC_ERROR, Fault.KILLER}
)
ASYNC_SHARE = 0.3  # of the seeds without any of those


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
    retention_bytes: int = 0  # how long the log may be; 0: as long as it gets
    retention_disk_percent: int = 0  # a voter's disk that is used to that; 0: none is
    retention_ms: int = 100  # from one look at that to the next
    turn_steps: int = 1_000  # of what is done in pieces: entries applied, records read
    flush: Literal["sync", "async"] = "sync"
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
    failing: int = 0  # members of a group that fails at messages
    stopping: int = 0  # of one that does so in order
    keyed: int = 0  # members of a group that reads in order a topic that grows and shrinks
    gatekeeper: bool = False  # topics are opened and closed
    upgraded: bool = False  # whoever starts again does so with a release of the next level
    one_away: bool = False  # when all is at rest a voter goes, and the others have to serve
    weather: Weather = FAIR
    tuning: Tuning = SMALL
    faults: tuple[FaultEvent, ...] = field(default=())

    @property
    def moves_start(self) -> bool:
        """Whether logs may begin later than with entry 1."""
        is_bounded = self.tuning.retention_bytes > 0 or self.tuning.retention_disk_percent > 0
        return is_bounded or any(fault.kind is Fault.MOVE_START for fault in self.faults)

    @property
    def machines(self) -> int:
        return self.nodes + self.spares

    def random(self, purpose: str) -> Random:
        """Randomness for one purpose: what others draw doesn't change it."""
        return Random(f"{self.seed}/{purpose}")


def draw_plan(
    seed: int,
    *,
    duration_ms: int = DEFAULT_DURATION_MS,
    rate: int = DEFAULT_RATE,
    nodes: int = 0,
    churn: bool = True,
) -> Plan:
    """The plan of `seed`. `nodes` 0: the seed decides, 3 or 5; fewer, where members change.

    Args:
        churn: whether they may; without it the seed is the one that it was before there was this,
            and what has come since.
    """
    chance = Random(f"{seed}/plan")
    drawn_nodes = chance.choice((3, 3, 3, 5))
    plan = Plan(
        seed,
        nodes=nodes or drawn_nodes,
        duration_ms=duration_ms,
        rate=rate,
        producers=chance.randint(1, 4),
        consumers=chance.randint(1, 3),
        queues=chance.randint(1, 4),
        weather=_draw_weather(chance),
        tuning=_draw_tuning(chance),
        faults=_draw_faults(chance, duration_ms),
    )
    plan = _with_leaps(_with_link_faults(_with_focus(_with_speech(plan))))
    plan = _with_crowds(_with_racers(_with_slices(_with_flush(plan))))
    plan = _with_copies(_with_returns(_with_disk_faults(plan)))
    plan = _with_log_rot(_with_snapshots(plan))
    if churn:
        plan = _with_moves(_with_altered_logs(_with_priorities(_with_churn(plan, nodes))))
    upgraded = plan.random("upgraded").random() < UPGRADED_SHARE
    share = ONE_AWAY_UPGRADED_SHARE if upgraded else ONE_AWAY_SHARE
    one_away = plan.random("one-away/drawn").random() < share
    plan = replace(plan, upgraded=upgraded, one_away=one_away)
    plan = _with_overseers(_with_crews(_with_unit_writers(plan)))
    return _with_keyed(_with_gatekeeper(_with_failing(_with_poppers(plan))))


def _with_snapshots(plan: Plan) -> Plan:
    """State is written often, or at each segment's end only; in some groups what was written rots,
    beside what else happens."""
    chance = plan.random("state-snapshots")
    entries = chance.choice((5, 40, 1 << 40))
    plan = replace(plan, tuning=replace(plan.tuning, snapshot_entries=entries))
    if chance.random() >= SNAPSHOT_ROT_SHARE:
        return plan
    every_ms = chance.choice((500, 2_000))
    events: list[FaultEvent] = []
    at = 500.0 + chance.expovariate(1 / every_ms)
    while at < plan.duration_ms:
        events.append(FaultEvent(FIRST_SNAPSHOT_ROT + len(events), int(at), Fault.SNAPSHOT_ROT))
        at += chance.expovariate(1 / every_ms)
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _with_churn(plan: Plan, nodes: int) -> Plan:
    """In some groups members come and go, beside much of what else happens; such a group begins
    with one to five, and ends with what has become of it."""
    chance = plan.random("churn")
    if chance.random() >= CHURN_SHARE:
        return plan
    founders = nodes or chance.choice((1, 2, 3, 3, 3, 4, 5))
    spares = max(1, chance.choice((4, 5)) - founders)
    every_ms = chance.choice((300, 800, 2_000))
    events = _now_and_then(plan, chance, every_ms, FIRST_CHURN, lambda: Fault.CHURN)
    kept = [fault for fault in plan.faults if fault.kind not in NOT_WITH_CHURN]
    return replace(
        plan,
        nodes=founders,
        spares=spares,
        faults=_in_order([*kept, *events]),
    )


def _with_priorities(plan: Plan) -> Plan:
    """In some groups an operator prefers now this voter as the leader, now that one, or nobody."""
    chance = plan.random("priority")
    if chance.random() >= PRIORITY_SHARE:
        return plan
    every_ms = chance.choice((1_000, 8_000))
    events = _now_and_then(plan, chance, every_ms, FIRST_PRIORITY, lambda: Fault.PRIORITY)
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _with_altered_logs(plan: Plan) -> Plan:
    """In some groups whose members stay an entry of a member's log is another one at its next
    start, beside what else happens. Where flushing is later others may lose what shows it."""
    chance = plan.random("altered-log")
    if chance.random() >= ALTERED_SHARE or plan.spares or plan.tuning.flush != "sync":
        return plan
    every_ms = chance.choice((1_500, 5_000))
    events = _now_and_then(plan, chance, every_ms, FIRST_ALTERED, lambda: Fault.ALTERED_LOG)
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _with_moves(plan: Plan) -> Plan:
    """In some groups the front of the log goes now and then, so that who was away, or is new, needs
    what nobody has; segments are small, and snapshots frequent."""
    chance = plan.random("log-start")
    if chance.random() >= MOVES_SHARE:
        return plan
    every_ms = chance.choice((100, 300, 1_000))
    tuning = replace(
        plan.tuning,
        segment_bytes=8 << 10,
        snapshot_entries=chance.choice((5, 20)),
        log_start_ms=chance.choice((20, 200)),
        retention_bytes=plan.random("retention").choice((0, 24 << 10, 100 << 10)),
        retention_disk_percent=plan.random("retention-disk").choice((0, 85)),
    )
    events = _now_and_then(plan, chance, every_ms, FIRST_MOVE, lambda: Fault.MOVE_START)
    is_rotting = plan.random("rotting-fronts").random() < ROTTING_FRONTS_SHARE
    left_out = NOT_WITH_MOVES | (frozenset() if is_rotting else {Fault.LOG_ROT})
    kept = [fault for fault in plan.faults if fault.kind not in left_out]
    return replace(plan, tuning=tuning, faults=_in_order([*kept, *events]))


def _with_log_rot(plan: Plan) -> Plan:
    """The log is scrubbed all the time, or so seldom that others find first what has rotted; in
    some groups much of it does, beside what else happens."""
    chance = plan.random("log-rot")
    between_ms = chance.choice((50, 1_000, 4_000))
    plan = replace(plan, tuning=replace(plan.tuning, scrub_between_ms=between_ms))
    if chance.random() >= LOG_ROT_SHARE:
        return plan
    every_ms = chance.choice((300, 1_000, 3_000))
    events = _now_and_then(plan, chance, every_ms, FIRST_LOG_ROT, lambda: Fault.LOG_ROT)
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def with_odd_errors(plan: Plan, every_ms: float) -> Plan:
    """The same, and calls of the file layer fail that seldom do: a process may not do this or that
    any more, is short of something, or isn't told what is there. No seed has it by itself. Where
    flushing is later an error may lose what was acknowledged, as documented."""
    tuning = replace(plan.tuning, flush="sync")
    chance = plan.random("odd-errors")
    events = _now_and_then(plan, chance, every_ms, FIRST_ODD_ERROR, lambda: Fault.ODD_ERROR)
    return replace(plan, tuning=tuning, faults=_in_order([*plan.faults, *events]))


def _with_disk_faults(plan: Plan) -> Plan:
    """In some groups disks are lost and mixed up, beside what else happens."""
    chance = plan.random("disk-faults")
    if chance.random() >= DISK_FAULTS_SHARE:
        return plan
    every_ms = chance.choice((1_500, 4_000))
    events = _now_and_then(
        plan, chance, every_ms, FIRST_DISK_FAULT, lambda: chance.choice(DISK_FAULTS)
    )
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _with_returns(plan: Plan) -> Plan:
    """Some of the disks that were replaced are found again."""
    chance = plan.random("returns")
    events: list[FaultEvent] = []
    for lost in (fault for fault in plan.faults if fault.kind is Fault.WIPE):
        at = lost.time_ms + chance.randrange(1_500, 4_000)
        if chance.random() < RETURNS_SHARE and at < plan.duration_ms:
            events.append(FaultEvent(FIRST_RETURN + len(events), at, Fault.RETURNED))
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _with_copies(plan: Plan) -> Plan:
    """In some groups older copies of disks are put back, beside what else happens."""
    chance = plan.random("copies")
    if chance.random() >= COPIES_SHARE:
        return plan
    every_ms = chance.choice((800, 2_500))
    events = _now_and_then(plan, chance, every_ms, FIRST_COPY, lambda: Fault.OLDER_COPY)
    return replace(plan, faults=_in_order([*plan.faults, *events]))


def _now_and_then(
    plan: Plan, chance: Random, every_ms: float, first: int, drawn: Callable[[], Fault]
) -> list[FaultEvent]:
    """Faults at random times, `every_ms` on average, numbered from `first`."""
    events: list[FaultEvent] = []
    at = 500.0 + chance.expovariate(1 / every_ms)
    while at < plan.duration_ms:
        events.append(FaultEvent(first + len(events), int(at), drawn()))
        at += chance.expovariate(1 / every_ms)
    return events


def _in_order(events: list[FaultEvent]) -> tuple[FaultEvent, ...]:
    return tuple(sorted(events, key=lambda event: (event.time_ms, event.number)))


def _with_racers(plan: Plan) -> Plan:
    """Some groups have clients that race for the same topics."""
    chance = plan.random("racers")
    if chance.random() >= RACERS_SHARE:
        return plan
    return replace(plan, racers=chance.randint(1, 3))


def _with_unit_writers(plan: Plan) -> Plan:
    """Some groups have clients that write units."""
    chance = plan.random("unit writers")
    if chance.random() >= UNIT_WRITERS_SHARE:
        return plan
    return replace(plan, unit_writers=chance.randint(1, 2))


def _with_crews(plan: Plan) -> Plan:
    """Some have consumer groups with members: a concurrent one, and often an orderly one."""
    chance = plan.random("crews")
    if chance.random() >= CREWS_SHARE:
        return plan
    return replace(plan, crews=chance.choice(((2,), (3,), (1, 2), (2, 3), (3, 3))))


def _with_overseers(plan: Plan) -> Plan:
    """Half of the crews are moved back and forth while they work."""
    is_overseen = plan.random("overseers").random() < 0.5
    return replace(plan, overseers=int(is_overseen)) if plan.crews else plan


def _with_poppers(plan: Plan) -> Plan:
    """Some have groups that are handed single messages: one of any order, and often a FIFO one."""
    chance = plan.random("poppers")
    if chance.random() >= POPPERS_SHARE:
        return plan
    return replace(plan, poppers=chance.choice(((2,), (3,), (1, 2), (3, 2))))


def _with_failing(plan: Plan) -> Plan:
    """Some have a consumer group whose members fail at messages."""
    chance = plan.random("failing")
    if chance.random() >= FAILING_SHARE:
        return plan
    plan = replace(plan, failing=chance.randint(1, 3))
    in_order = plan.random("stopping")
    return replace(plan, stopping=in_order.randint(1, 2) if in_order.random() < 0.5 else 0)


def _with_keyed(plan: Plan) -> Plan:
    """Some whose log keeps its front have a topic that grows and shrinks beside keys in order."""
    chance = plan.random("keyed")
    if plan.moves_start or chance.random() >= KEYED_SHARE:
        return plan
    return replace(plan, keyed=chance.randint(1, 3))


def _with_gatekeeper(plan: Plan) -> Plan:
    """In some, topics are opened and closed while they are used."""
    return replace(plan, gatekeeper=plan.random("gatekeeper").random() < GATEKEEPER_SHARE)


def _with_crowds(plan: Plan) -> Plan:
    """Some groups have room for a few producers only."""
    room = plan.random("crowds").choice((8, 20, 1_000))
    return replace(plan, tuning=replace(plan.tuning, producers=bounds(room)))


def _with_speech(plan: Plan) -> Plan:
    """In some groups faults give way to such of speech; each is drawn by its own number, so that
    a shorter plan is the beginning of a longer one."""
    if plan.random("speech").random() >= SPEECH_SHARE:
        return plan
    return replace(plan, faults=tuple(_spoken(plan, event) for event in plan.faults))


def _spoken(plan: Plan, event: FaultEvent) -> FaultEvent:
    chance = plan.random(f"speech/{event.number}")
    if chance.random() >= SPOKEN_SHARE:
        return event
    return replace(event, kind=chance.choice(SPEECH))


def _with_focus(plan: Plan) -> Plan:
    """In some groups faults give way to one kind, each drawn by its own number."""
    chance = plan.random("focus")
    if chance.random() >= FOCUS_SHARE:
        return plan
    kind = chance.choice(FOCI)
    faults = (
        replace(event, kind=kind)
        if plan.random(f"focus/{event.number}").random() < FOCUSED_SHARE
        else event
        for event in plan.faults
    )
    return replace(plan, faults=tuple(faults))


def _with_slices(plan: Plan) -> Plan:
    """Applying takes turns of one entry, of a few, or of all there are; so does whatever else is
    done in pieces, and who is far behind is sent as many at once."""
    chance = plan.random("slices")
    size, steps = chance.choice((1, 2 << 10, 1 << 20)), chance.choice((1, 3, 1_000))
    entries = plan.random("append-entries").choice((1, 3, 16, 1_024))
    return replace(
        plan,
        tuning=replace(
            plan.tuning, apply_slice_bytes=size, turn_steps=steps, max_append_entries=entries
        ),
    )


def _with_link_faults(plan: Plan) -> Plan:
    """Beside what else happens, in numbers of their own and in the order of time: a shorter plan is
    the beginning of a longer one."""
    chance = plan.random("link-faults")
    kinds = [kind for kind in LINK_FAULTS if chance.random() < 0.3]
    every_ms = chance.choice((500, 2_000, 5_000))
    events = list(plan.faults)
    at = 500.0
    while kinds:
        at += chance.expovariate(1 / every_ms)
        if at >= plan.duration_ms:
            break
        number = FIRST_LINK_FAULT + len(events) - len(plan.faults)
        events.append(FaultEvent(number, int(at), chance.choice(kinds)))
    return replace(plan, faults=_in_order(events))


def _with_leaps(plan: Plan) -> Plan:
    """In some groups wall clocks leap, beside what else happens; numbered and ordered as the
    faults of links are. In half of them never more than a minority is wrong, and nothing may come
    of it; in the others all of them may be."""
    chance = plan.random("leaping")
    if chance.random() >= LEAPS_SHARE:
        return plan
    every_ms = chance.choice((1_000, 3_000, 8_000))
    kind = plan.random("leaping-all").choice((Fault.CLOCK_LEAP, Fault.CLOCKS_LEAP))
    events: list[FaultEvent] = []
    at = 500 + chance.expovariate(1 / every_ms)
    while at < plan.duration_ms:
        events.append(FaultEvent(FIRST_LEAP + len(events), int(at), kind))
        at += chance.expovariate(1 / every_ms)
    ordered = sorted((*plan.faults, *events), key=lambda event: (event.time_ms, event.number))
    return replace(plan, faults=tuple(ordered))


def _with_flush(plan: Plan) -> Plan:
    """Some groups flush later, where no fault makes that lose data."""
    drawn = plan.random("flush").random() < ASYNC_SHARE
    if not drawn or any(fault.kind in NEED_SYNC for fault in plan.faults):
        return plan
    return replace(plan, tuning=replace(plan.tuning, flush="async"))


def _draw_weather(chance: Random) -> Weather:
    fair = Weather(
        delay_us=chance.choice((50, 150, 500, 2_000, 10_000)),
        jitter_us=chance.choice((0, 100, 1_000, 10_000)),
    )
    if chance.random() < 0.5:
        return fair  # streams, as in production
    return Weather(
        fair.delay_us,
        fair.jitter_us,
        loss=chance.choice((0.0, 0.001, 0.01, 0.05)),
        duplication=chance.choice((0.0, 0.01, 0.1)),
        reordering=chance.choice((0.0, 0.01, 0.2)),
        spikes=chance.choice((0.0, 0.001, 0.01)),
        spike_us=chance.choice((50_000, 300_000)),
    )


def _draw_tuning(chance: Random) -> Tuning:
    return Tuning(
        segment_bytes=chance.choice((8, 16, 64, 256)) << 10,
        cache_bytes=chance.choice((0, 2 << 10, 16 << 10, 8 << 20)),
        units_per_file=chance.choice((16, 64, 1_000)),
        max_append_bytes=chance.choice((1 << 10, 4 << 10, 64 << 10)),
        max_inflight_appends=chance.choice((1, 4, 32)),
        max_uncommitted_bytes=chance.choice((8 << 10, 64 << 10, 1 << 20)),
        sync_us=chance.choice((50, 300, 1_000, 5_000)),
        turn_us=chance.choice((0, 0, 200, 2_000)),
        housekeeping_ms=chance.choice((20, 200, 1_000)),
    )


def _draw_faults(chance: Random, duration_ms: int) -> tuple[FaultEvent, ...]:
    apart = {*LINK_FAULTS, *SPEECH, *DISK_FAULTS, Fault.OLDER_COPY, Fault.RETURNED}
    apart |= {Fault.CLOCK_LEAP, Fault.CLOCKS_LEAP, Fault.QUEUE_ROT, Fault.SNAPSHOT_ROT}
    apart |= {Fault.CHURN, Fault.LOG_ROT, Fault.ALTERED_LOG, Fault.PRIORITY, Fault.MOVE_START}
    others = (kind for kind in Fault if kind not in apart)
    kinds = [kind for kind in others if chance.random() < 0.4]
    every_ms = chance.choice((300, 1_000, 3_000))
    events: list[FaultEvent] = []
    at = 500.0
    while kinds:
        at += chance.expovariate(1 / every_ms)
        if at >= duration_ms:
            break
        events.append(FaultEvent(len(events), int(at), chance.choice(kinds)))
    return tuple(events)
