"""Wall clocks that jump, drift and flip to and fro, and timers of another pace."""

from chaos.real.scenario import Plan, Steps, heal, spell, strike, wait, whole

DAY_MS = 24 * 3600 * 1000
TICKS_MS = (8, 9, 11, 12)  # of 10: timers that run at 1.25, 1.11, 0.91, 0.83


def schedule(plan: Plan) -> Steps:
    while True:
        yield wait(0.5)
        yield from spell(
            "clock-step", "leader", seconds=1, offset_ms=plan.rng.choice((-1, 1)) * DAY_MS
        )
        yield from spell("clock-drift", "leader", seconds=2, rate=plan.rng.uniform(0.8, 1.25))
        yield from spell(
            "clock-strobe", "leader", seconds=1, offset_ms=plan.rng.choice((200, 5_000))
        )
        # All at once, each by itself: whoever leads next has another time.
        yield strike("clock-drift", "all", label="fast", rate=1.25)
        yield strike("clock-step", "minority", offset_ms=-3_600_000)
        yield strike("clock-strobe", "one")
        yield wait(0.5)
        yield from spell("kill", "leader", seconds=0.5)
        yield heal("clock-strobe")
        yield heal("clock-step")
        yield heal("fast")
        yield whole()
        yield strike("timer-drift", "one", tick_ms=plan.rng.choice(TICKS_MS))
        yield whole()
        yield from spell("kill", "leader", seconds=0.5)
        yield heal("timer-drift")
        yield whole()
