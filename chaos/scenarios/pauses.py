"""Nodes are paused with SIGSTOP, mostly the leader: they break no connection and answer nothing."""

from chaos.real.scenario import Plan, Steps, heal, spell, strike, wait, whole


def schedule(plan: Plan) -> Steps:
    while True:
        yield from spell("pause", "leader", seconds=plan.rng.uniform(0.5, 3.0))
        yield wait(1)
        yield from spell("pause", "follower", seconds=plan.rng.uniform(0.5, 2.0))
        # Redpanda's duplicates needed both: a leader is paused, its successor is killed.
        yield strike("pause", "leader")
        yield wait(1)
        yield strike("kill", "leader")
        yield wait(0.5)
        yield heal("pause")
        yield wait(1)
        yield heal("kill")
        yield whole()
