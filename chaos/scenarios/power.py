"""Power cuts: nodes lose what they had not synced, one at a time, a majority, and all at once."""

from chaos.real.scenario import Plan, Steps, spell, wait, whole


def schedule(plan: Plan) -> Steps:
    while True:
        for target in ("leader", "one", "majority", "leader", "all"):
            yield wait(1)
            yield from spell("power-cut", target, seconds=plan.rng.uniform(0.5, 1.5))
            yield whole()
