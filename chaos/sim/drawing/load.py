"""Who works with a group beside its producers and consumers: each kind of client in some seeds."""

from __future__ import annotations

from dataclasses import replace

from chaos.sim.plan import Plan

RACERS_SHARE = 0.35  # of the seeds
UNIT_WRITERS_SHARE = 0.5  # of the seeds
CREWS_SHARE = 0.4
POPPERS_SHARE = 0.4
SLOW_READERS_SHARE = 0.3  # of those
DOUBTERS_SHARE = 0.5  # likewise
FAILING_SHARE = 0.25
KEYED_SHARE = 0.3
GATEKEEPER_SHARE = 0.15
WISHER_SHARE = 0.4  # of the seeds whose queues may begin later anyway


def with_racers(plan: Plan) -> Plan:
    """Some groups have clients that race for the same topics."""
    chance = plan.random("racers")
    if chance.random() >= RACERS_SHARE:
        return plan
    return replace(plan, racers=chance.randint(1, 3))


def with_unit_writers(plan: Plan) -> Plan:
    """Some groups have clients that write units."""
    chance = plan.random("unit writers")
    if chance.random() >= UNIT_WRITERS_SHARE:
        return plan
    return replace(plan, unit_writers=chance.randint(1, 2))


def with_crews(plan: Plan) -> Plan:
    """Some have consumer groups with members: a concurrent one, and often an orderly one."""
    chance = plan.random("crews")
    if chance.random() >= CREWS_SHARE:
        return plan
    return replace(plan, crews=chance.choice(((2,), (3,), (1, 2), (2, 3), (3, 3))))


def with_overseers(plan: Plan) -> Plan:
    """Half of the crews are moved back and forth while they work."""
    is_overseen = plan.random("overseers").random() < 0.5
    return replace(plan, overseers=int(is_overseen)) if plan.crews else plan


def with_poppers(plan: Plan) -> Plan:
    """Some have groups that are handed single messages: one of any order, and often a FIFO one."""
    chance = plan.random("poppers")
    if chance.random() >= POPPERS_SHARE:
        return plan
    return replace(plan, poppers=chance.choice(((2,), (3,), (1, 2), (3, 2))))


def with_slow_readers(plan: Plan) -> Plan:
    """Some nodes have little room for answers that aren't read yet, and clients take their time."""
    chance = plan.random("slow-readers")
    if not plan.poppers or chance.random() >= SLOW_READERS_SHARE:
        return plan
    tuning = replace(plan.tuning, answer_bytes=chance.choice((1 << 10, 4 << 10, 16 << 10)))
    return replace(plan, tuning=tuning)


def with_doubters(plan: Plan) -> Plan:
    """Some of those receivers ask again for what they were given: few answers are lost."""
    is_drawn = plan.random("doubters").random() < DOUBTERS_SHARE
    return replace(plan, doubters=is_drawn) if plan.poppers else plan


def with_failing(plan: Plan) -> Plan:
    """Some have a consumer group whose members fail at messages."""
    chance = plan.random("failing")
    if chance.random() >= FAILING_SHARE:
        return plan
    plan = replace(plan, failing=chance.randint(1, 3))
    in_order = plan.random("stopping")
    return replace(plan, stopping=in_order.randint(1, 2) if in_order.random() < 0.5 else 0)


def with_keyed(plan: Plan) -> Plan:
    """Some whose log keeps its front have a topic that grows and shrinks beside keys in order."""
    chance = plan.random("keyed")
    if plan.moves_start or chance.random() >= KEYED_SHARE:
        return plan
    return replace(plan, keyed=chance.randint(1, 3))


def with_gatekeeper(plan: Plan) -> Plan:
    """In some, topics are opened and closed while they are used."""
    return replace(plan, gatekeeper=plan.random("gatekeeper").random() < GATEKEEPER_SHARE)


def with_wisher(plan: Plan) -> Plan:
    """In some whose queues may begin later, topics wish their messages for longer or shorter."""
    if not plan.moves_start:
        return plan
    return replace(plan, wisher=plan.random("wisher").random() < WISHER_SHARE)
