"""Every kind of fault, drawn at random, several at a time."""

from chaos.real.scenario import Load, Plan, Step, Steps, heal, strike, wait, whole

LOAD = Load(rate=300, size_bytes=512)

# One of each family at a time, so that faults meet that have nothing to do with each other.
FAMILIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "process": (
        ("kill", "leader"),
        ("kill", "follower"),
        ("kill", "majority"),
        ("kill", "all"),
        ("terminate", "one"),
        ("terminate", "leader"),
        ("pause", "leader"),
        ("pause", "follower"),
        ("power-cut", "one"),
        ("power-cut", "leader"),
        ("power-cut", "majority"),
        ("restart-loop", "one"),
    ),
    "network": (
        ("isolate", "leader"),
        ("isolate", "minority"),
        ("isolate", "majority"),
        ("deafen", "one"),
        ("mute", "one"),
        ("ring",),
        ("bridge",),
        ("scatter",),
        ("slow-network",),
        ("lossy-network",),
        ("repeating-network",),
    ),
    "surroundings": (
        ("slow-disk", "one"),
        ("slow-disk", "all"),
        ("full-disk", "one"),
        ("clock-step", "one"),
        ("clock-step", "leader"),
        ("transfer",),
    ),
}


def schedule(plan: Plan) -> Steps:
    while True:
        families = plan.rng.sample(list(FAMILIES), plan.rng.randint(1, len(FAMILIES)))
        for family in families:
            yield _drawn(plan, family)
            yield wait(plan.rng.uniform(0.0, 1.5))
        yield wait(plan.rng.uniform(0.5, 2.0))
        for family in plan.rng.sample(families, len(families)):
            yield heal(family)
            yield wait(plan.rng.uniform(0.0, 0.5))
        if plan.rng.random() < 0.5:
            yield whole(60)
        yield wait(plan.rng.uniform(0.0, 1.0))


def _drawn(plan: Plan, family: str) -> Step:
    nemesis, *targets = plan.rng.choice(FAMILIES[family])
    return strike(nemesis, *targets, label=family)
