"""One node after the other is stopped with SIGTERM and started, and leadership is handed around."""

from chaos.real.scenario import Plan, Steps, spell, strike, wait, whole


def schedule(plan: Plan) -> Steps:
    while True:
        for node in plan.shuffled():
            yield wait(0.5)
            yield from spell("terminate", node, seconds=0.5)
            yield whole()
        yield wait(0.5)
        yield strike("transfer")
