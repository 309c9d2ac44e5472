"""The schedule that found data loss in others: a power cut among the holders of a write.

A minority is cut off, the majority takes writes, one of the majority loses its power (and what it
had not synced), the other holders are cut off, and the crashed one comes back together with the
minority. If it has forgotten what it acknowledged, those nodes are a majority that knows nothing
of the writes: they elect a leader, and acknowledged messages are gone. Source: Jepsen's analysis
of NATS JetStream (2025).
"""

from chaos.real.scenario import Plan, Steps, heal, strike, wait, whole

NODES = 5


def schedule(plan: Plan) -> Steps:
    rounds = max(1, int(plan.seconds // 75))
    writes_s = min(30.0, (plan.seconds / rounds - 5) / 2.5)
    for _ in range(rounds):
        minority, (crashed, *holders) = plan.split()
        yield strike("isolate", *minority, label="minority")
        yield wait(writes_s)
        yield strike("power-cut", crashed)
        yield strike("isolate", *holders, label="holders")
        yield heal("minority")
        yield heal("power-cut")
        yield wait(writes_s)
        yield heal("holders")
        yield wait(writes_s / 4)
        yield whole()
