"""Partitions of every kind, one after the other: between nodes, and of clients from nodes."""

from chaos.real.scenario import Plan, Steps, spell, wait, whole

KINDS = (
    ("isolate", "leader"),
    ("isolate", "follower"),
    ("isolate", "minority"),
    ("isolate", "majority"),
    ("deafen", "leader"),
    ("mute", "leader"),
    ("deafen", "follower"),
    ("mute", "follower"),
    ("ring",),
    ("bridge",),
    ("scatter",),
    ("silence",),
    ("cut-off", "leader"),
    ("cut-off", "minority"),
    ("client-cut", "leader"),
    ("client-cut", "minority"),
    ("client-cut", "all"),
    ("client-deaf", "leader"),
    ("client-mute", "leader"),
    ("slow-network",),
    ("lossy-network",),
    ("repeating-network",),
)


def schedule(plan: Plan) -> Steps:
    while True:
        for nemesis, *targets in plan.rng.sample(KINDS, len(KINDS)):
            yield from spell(nemesis, *targets, seconds=plan.rng.uniform(1.0, 3.0))
            yield wait(plan.rng.uniform(0.0, 1.0))
            if plan.rng.random() < 0.5:
                yield whole()
