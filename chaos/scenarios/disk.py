"""Disks that are slow, full, failing, or rotten: at most one node has a broken one at a time."""

from chaos.real.scenario import Load, Plan, Steps, heal, spell, strike, wait, whole

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
        for file in plan.rng.sample(("checkpoint", "segment", "consume-queue"), 2):
            yield from spell("old-copy", "one", seconds=1, file=file)
            yield whole(60)
        # Term and vote: only a newer term in the log shows that they are old.
        yield strike("old-copy", "follower", file="hard-state")
        yield from spell("kill", "leader", seconds=0.5)
        yield whole()
        yield heal("old-copy")
        yield whole(60)
        # A leader that was started again has nothing in its memory, and reads cold data from disk.
        yield from spell("terminate", "all", seconds=0.1)
        yield whole()
        where = plan.rng.choice(("anywhere", "body", "place"))
        yield from spell("live-rot", "leader", seconds=0.5, where=where)
        yield whole(60)
