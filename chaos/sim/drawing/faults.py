"""Which faults a group meets: of processes, links and clocks, of what is said, of who is a member.

This owns the first draw, and the kinds that came later and are drawn apart from it, so that a seed
keeps the faults that it had before there were these. What happens to disks is
`chaos.sim.drawing.disks`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chaos.sim.drawing.moments import in_order, now_and_then
from chaos.sim.plan import DISK_FAULTS, LINK_FAULTS, SPEECH, Fault, FaultEvent, Plan

FIRST_LINK_FAULT = 1_000  # the number of the first of them
FIRST_LEAP = 2_000
LEAPS_SHARE = 0.25  # of the seeds
SPEECH_SHARE = 0.25  # of the seeds
SPOKEN_SHARE = 0.15  # of the faults of such a seed
# Kinds that few seeds would have often enough to find anything, and one of which some seeds have
# again and again, among what else they have. The first is in no seed by itself.
FOCI = (Fault.QUEUE_ROT, Fault.DISK_FULL)
FOCUS_SHARE = 0.35  # of the seeds
FOCUSED_SHARE = 0.4  # of the faults of such a seed
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


def draw_faults(chance: Random, duration_ms: int) -> tuple[FaultEvent, ...]:
    """The faults that there were first: some kinds of them, at one rate."""
    apart = {*LINK_FAULTS, *SPEECH, *DISK_FAULTS, Fault.OLDER_COPY, Fault.RETURNED}
    apart |= {Fault.CLOCK_LEAP, Fault.CLOCKS_LEAP, Fault.QUEUE_ROT, Fault.SNAPSHOT_ROT}
    apart |= {Fault.CHURN, Fault.LOG_ROT, Fault.ALTERED_LOG, Fault.PRIORITY, Fault.MOVE_START}
    apart |= {Fault.ODD_ERROR}
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


def with_speech(plan: Plan) -> Plan:
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


def with_focus(plan: Plan) -> Plan:
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


def with_link_faults(plan: Plan) -> Plan:
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
    return replace(plan, faults=in_order(events))


def with_leaps(plan: Plan) -> Plan:
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


def with_churn(plan: Plan, nodes: int) -> Plan:
    """In some groups members come and go, beside much of what else happens; such a group begins
    with one to five, and ends with what has become of it."""
    chance = plan.random("churn")
    if chance.random() >= CHURN_SHARE:
        return plan
    founders = nodes or chance.choice((1, 2, 3, 3, 3, 4, 5))
    spares = max(1, chance.choice((4, 5)) - founders)
    every_ms = chance.choice((300, 800, 2_000))
    events = now_and_then(plan, chance, every_ms, FIRST_CHURN, lambda: Fault.CHURN)
    kept = [fault for fault in plan.faults if fault.kind not in NOT_WITH_CHURN]
    return replace(
        plan,
        nodes=founders,
        spares=spares,
        faults=in_order([*kept, *events]),
    )


def with_priorities(plan: Plan) -> Plan:
    """In some groups an operator prefers now this voter as the leader, now that one, or nobody."""
    chance = plan.random("priority")
    if chance.random() >= PRIORITY_SHARE:
        return plan
    every_ms = chance.choice((1_000, 8_000))
    events = now_and_then(plan, chance, every_ms, FIRST_PRIORITY, lambda: Fault.PRIORITY)
    return replace(plan, faults=in_order([*plan.faults, *events]))
