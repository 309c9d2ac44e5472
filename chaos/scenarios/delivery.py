"""Three consumer groups of three members each: they and leaders are killed, paused and cut off."""

from chaos.real.scenario import Load, Plan, Steps, heal, spell, strike, wait, whole

MEMBERS = 3
LOAD = Load(rate=200, queues=8)
BEYOND_A_SESSION_S = 13.0  # a member is taken for gone after ten


def schedule(plan: Plan) -> Steps:
    chance = plan.rng
    while True:
        yield from spell("kill-member", seconds=chance.uniform(0.5, 3.0))
        yield wait(1)
        yield from spell("kill", "leader", seconds=chance.uniform(0.5, 2.0))
        yield wait(1)
        # A member that comes back to find that others have its queues, and a failover meanwhile.
        yield strike("pause-member")
        yield wait(chance.uniform(0.5, 2.0))
        yield from spell(chance.choice(("pause", "isolate")), "leader", seconds=1.5)
        yield wait(chance.choice((0.5, BEYOND_A_SESSION_S)))
        yield heal("pause-member")
        yield whole()
        yield from spell("dismiss-member", seconds=chance.uniform(0.1, 1.0))
        # Members and the leader don't reach each other, one way or both.
        name = chance.choice(("client-cut", "client-deaf", "client-mute"))
        yield from spell(name, "leader", seconds=chance.uniform(1.0, 4.0))
        yield wait(1)
        # A leader and a member at once.
        yield strike("kill-member")
        yield from spell("kill", "leader", seconds=1)
        yield heal("kill-member")
        yield whole()
