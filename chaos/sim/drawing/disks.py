"""What happens to disks and logs, beside what else does: drawn apart, each in some seeds.

Disks are lost, mixed up, found again and put back; logs rot, differ, and lose their fronts; state
is written often or seldom, and rots.
"""

from __future__ import annotations

from dataclasses import replace

from chaos.sim.drawing.moments import in_order, now_and_then
from chaos.sim.plan import DISK_FAULTS, Fault, FaultEvent, Plan

FIRST_DISK_FAULT = 3_000
DISK_FAULTS_SHARE = 0.35  # of the seeds
FIRST_COPY = 4_000
COPIES_SHARE = 0.25  # of the seeds
FIRST_RETURN = 5_000
RETURNS_SHARE = 0.5  # of the lost disks
FIRST_SNAPSHOT_ROT = 6_000
SNAPSHOT_ROT_SHARE = 0.3  # of the seeds
FIRST_LOG_ROT = 7_000
LOG_ROT_SHARE = 0.35  # of the seeds
FIRST_ALTERED = 9_000
ALTERED_SHARE = 0.25  # of the seeds
FIRST_MOVE = 11_000
MOVES_SHARE = 0.35  # of the seeds
# Rot in what a start has to have, and the log's start: what has rotted in one member may be retired
# in those that could give it; and what differs, before anybody compares it.
NOT_WITH_MOVES = frozenset({Fault.BIT_FLIP, Fault.SNAPSHOT_ROT, Fault.ALTERED_LOG})
FIRST_ODD_ERROR = 12_000
AGED_ALONE_SHARE = 0.5  # of the seeds whose logs let go what is old: nothing else goes there
ROTTING_FRONTS_SHARE = 0.5  # of the seeds in which logs rot and fronts move; the others rot not


def with_disk_faults(plan: Plan) -> Plan:
    """In some groups disks are lost and mixed up, beside what else happens."""
    chance = plan.random("disk-faults")
    if chance.random() >= DISK_FAULTS_SHARE:
        return plan
    every_ms = chance.choice((1_500, 4_000))
    events = now_and_then(
        plan, chance, every_ms, FIRST_DISK_FAULT, lambda: chance.choice(DISK_FAULTS)
    )
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_returns(plan: Plan) -> Plan:
    """Some of the disks that were replaced are found again."""
    chance = plan.random("returns")
    events: list[FaultEvent] = []
    for lost in (fault for fault in plan.faults if fault.kind is Fault.WIPE):
        at = lost.time_ms + chance.randrange(1_500, 4_000)
        if chance.random() < RETURNS_SHARE and at < plan.duration_ms:
            events.append(FaultEvent(FIRST_RETURN + len(events), at, Fault.RETURNED))
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_copies(plan: Plan) -> Plan:
    """In some groups older copies of disks are put back, beside what else happens."""
    chance = plan.random("copies")
    if chance.random() >= COPIES_SHARE:
        return plan
    every_ms = chance.choice((800, 2_500))
    events = now_and_then(plan, chance, every_ms, FIRST_COPY, lambda: Fault.OLDER_COPY)
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_snapshots(plan: Plan) -> Plan:
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
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_log_rot(plan: Plan) -> Plan:
    """The log is scrubbed all the time, or so seldom that others find first what has rotted; in
    some groups much of it does, beside what else happens."""
    chance = plan.random("log-rot")
    between_ms = chance.choice((50, 1_000, 4_000))
    plan = replace(plan, tuning=replace(plan.tuning, scrub_between_ms=between_ms))
    if chance.random() >= LOG_ROT_SHARE:
        return plan
    every_ms = chance.choice((300, 1_000, 3_000))
    events = now_and_then(plan, chance, every_ms, FIRST_LOG_ROT, lambda: Fault.LOG_ROT)
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_altered_logs(plan: Plan) -> Plan:
    """In some groups whose members stay an entry of a member's log is another one at its next
    start, beside what else happens. Where flushing is later others may lose what shows it."""
    chance = plan.random("altered-log")
    if chance.random() >= ALTERED_SHARE or plan.spares or plan.tuning.flush != "sync":
        return plan
    every_ms = chance.choice((1_500, 5_000))
    events = now_and_then(plan, chance, every_ms, FIRST_ALTERED, lambda: Fault.ALTERED_LOG)
    return replace(plan, faults=in_order([*plan.faults, *events]))


def with_moves(plan: Plan) -> Plan:
    """In some groups the front of the log goes now and then, so that who was away, or is new, needs
    what nobody has; segments are small, and snapshots frequent. In some of those it goes by its age
    alone, by the leader's own word."""
    chance = plan.random("log-start")
    if chance.random() >= MOVES_SHARE:
        return plan
    every_ms = chance.choice((100, 300, 1_000))
    tuning = replace(
        plan.tuning,
        segment_bytes=8 << 10,
        snapshot_entries=chance.choice((5, 20)),
        log_start_ms=chance.choice((20, 200)),
        retention_age_ms=plan.random("retention-age").choice((0, 2_000, 4_000, 6_000)),
        retention_bytes=plan.random("retention").choice((0, 24 << 10, 100 << 10)),
        retention_disk_percent=plan.random("retention-disk").choice((0, 85)),
    )
    events = now_and_then(plan, chance, every_ms, FIRST_MOVE, lambda: Fault.MOVE_START)
    is_rotting = plan.random("rotting-fronts").random() < ROTTING_FRONTS_SHARE
    left_out = NOT_WITH_MOVES | (frozenset() if is_rotting else {Fault.LOG_ROT})
    kept = [fault for fault in plan.faults if fault.kind not in left_out]
    is_alone = plan.random("aged alone").random() < AGED_ALONE_SHARE
    if tuning.retention_age_ms and is_alone:
        tuning, events = replace(tuning, retention_bytes=0, retention_disk_percent=0), []
    return replace(plan, tuning=tuning, faults=in_order([*kept, *events]))


def with_odd_errors(plan: Plan, every_ms: float) -> Plan:
    """The same, and calls of the file layer fail that seldom do: a process may not do this or that
    any more, is short of something, or isn't told what is there. No seed has it by itself. Where
    flushing is later an error may lose what was acknowledged, as documented."""
    tuning = replace(plan.tuning, flush="sync")
    chance = plan.random("odd-errors")
    events = now_and_then(plan, chance, every_ms, FIRST_ODD_ERROR, lambda: Fault.ODD_ERROR)
    return replace(plan, tuning=tuning, faults=in_order([*plan.faults, *events]))
