"""The leader is killed with SIGKILL, again and again, and started after two seconds."""

from chaos.real.scenario import Plan, Steps, spell, wait, whole


def schedule(plan: Plan) -> Steps:
    while True:
        yield wait(1)
        yield from spell("kill", "leader", seconds=2)
        yield whole()
