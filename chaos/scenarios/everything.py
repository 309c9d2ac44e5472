"""Every kind of fault, drawn at random, several at a time."""

from chaos.real.scenario import Load, Plan, Step, Steps, heal, spell, strike, wait, whole

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
        ("cut-off", "leader"),
        ("cut-off", "minority"),
        ("client-cut", "leader"),
        ("client-cut", "all"),
        ("client-deaf", "leader"),
        ("client-deaf", "all"),
        ("client-mute", "leader"),
        ("slow-network",),
        ("lossy-network",),
        ("repeating-network",),
        ("silence",),
        ("vanish", "leader"),
        ("vanish", "minority"),
        ("one-way-loss", "leader"),
        ("one-way-loss", "follower"),
        ("far-network",),
    ),
    "surroundings": (
        ("slow-disk", "one"),
        ("slow-disk", "all"),
        ("full-disk", "one"),
        ("full-disk", "leader"),
        ("clock-step", "one"),
        ("clock-step", "leader"),
        ("clock-drift", "all"),
        ("clock-strobe", "leader"),
        ("transfer",),
    ),
}

# Where the default alone would be tame: what is drawn from.
DRAWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "full-disk": ("free_bytes", (0, 1, 4_097, 100_001, 3 << 20)),
    "far-network": ("delay_ms", (50, 200, 1_000)),
}

# Not together with others: a node that is given an empty disk needs all others well meanwhile.
# `old-copy` of term and vote isn't here: a node can't always know that they are old.
ALONE: tuple[tuple[str, str, dict[str, str | float]], ...] = (
    ("old-copy", "one", {"file": "checkpoint"}),
    ("old-copy", "one", {"file": "segment"}),
    ("old-copy", "one", {"file": "consume-queue"}),
    ("rot", "follower", {"how": "flip"}),
    ("live-rot", "leader", {"where": "body"}),
    ("live-rot", "leader", {"where": "place"}),
    ("failing-disk", "one", {}),
    ("timer-drift", "one", {"tick_ms": 8}),
    ("timer-drift", "one", {"tick_ms": 12}),
)


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
            yield whole()
            if plan.rng.random() < 0.5:
                nemesis, target, options = plan.rng.choice(ALONE)
                yield from spell(nemesis, target, seconds=1, **options)
                yield whole()
        yield wait(plan.rng.uniform(0.0, 1.0))


def _drawn(plan: Plan, family: str) -> Step:
    nemesis, *targets = plan.rng.choice(FAMILIES[family])
    options = {}
    if nemesis in DRAWN:
        name, values = DRAWN[nemesis]
        options[name] = plan.rng.choice(values)
    return strike(nemesis, *targets, label=family, **options)
