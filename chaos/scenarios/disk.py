"""Disks that are slow, full, failing, or rotten: at most one node has a broken one at a time."""

from chaos.real.scenario import Load, Plan, Steps, spell, wait, whole

LOAD = Load(rate=800, size_bytes=2048)  # segments roll, so that there is cold data and a full disk


def schedule(plan: Plan) -> Steps:
    # Rot comes once a round and late: a node that is given an empty disk has to fetch everything.
    while True:
        yield wait(1)
        yield from spell("slow-disk", "leader", seconds=2, delay_ms=200)
        yield from spell("slow-disk", "follower", seconds=1, delay_ms=500)
        yield from spell("full-disk", "leader", seconds=4)
        yield wait(1)
        yield from spell("failing-disk", "leader", seconds=1, operation="fdatasync")
        yield whole()
        yield from spell("failing-disk", "follower", seconds=1, operation="pwritev")
        yield whole()
        yield from spell("rot", "follower", seconds=1, how=plan.rng.choice(("flip", "cut")))
        yield whole(60)
