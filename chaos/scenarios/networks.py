"""Networks that are silent, lose one way, or are as slow as a satellite: nobody is told."""

from chaos.real.scenario import Plan, Steps, spell, wait, whole

# One way, so round trips are twice that: below half of the shortest election timeout, around it,
# and seconds, where no leader can be had and only safety is asked for.
DELAYS_MS = ((20, 10), (70, 60), (300, 100), (1000, 500))


def schedule(plan: Plan) -> Steps:
    while True:
        yield from spell("vanish", "leader", seconds=plan.rng.uniform(1, 6))
        yield whole()
        yield from spell("silence", seconds=plan.rng.uniform(1, 8))
        yield whole()
        for target in ("leader", "follower", "minority"):
            loss = plan.rng.choice((0.1, 0.3, 0.6))
            yield from spell("one-way-loss", target, seconds=plan.rng.uniform(1, 4), loss=loss)
        yield from spell("vanish", "minority", seconds=plan.rng.uniform(1, 4))
        yield whole()
        for delay_ms, jitter_ms in plan.rng.sample(DELAYS_MS, len(DELAYS_MS)):
            seconds = plan.rng.uniform(2, 6)
            yield from spell("far-network", seconds=seconds, delay_ms=delay_ms, jitter_ms=jitter_ms)
            yield wait(0.5)
        yield whole()
