"""Disks that are slow, full, failing, or rotten: at most one node has a broken one at a time."""

from chaos.real.scenario import Load, Plan, Steps, heal, spell, strike, wait, whole

LOAD = Load(rate=800, size_bytes=2048)  # segments roll, so that there is cold data and a full disk


def schedule(plan: Plan) -> Steps:
    # A node that is given an empty disk has to fetch everything, so files and directories come once
    # a round.
    while True:
        yield wait(1)
        yield from spell("slow-disk", "leader", seconds=2, delay_ms=200)
        yield from spell("slow-disk", "follower", seconds=1, delay_ms=500)
        yield from spell("full-disk", "leader", seconds=4)
        yield from spell("full-disk", "one", seconds=2, free_bytes=plan.rng.choice((0, 1, 4_097)))
        yield strike("full-disk", "follower", free_bytes=0)
        yield from spell("kill", "leader", seconds=1)  # terms and votes on a disk that is full
        yield heal("full-disk")
        yield whole()
        yield wait(1)
        yield from spell("failing-disk", "leader", seconds=1, operation="fdatasync")
        yield whole()
        yield from spell("failing-disk", "follower", seconds=1, operation="pwritev")
        yield whole()
        for spoil in plan.rng.sample(FILES, len(FILES)):
            yield from spoil(plan)
            yield whole()


def _rot(plan: Plan) -> Steps:
    yield from spell("rot", "follower", seconds=1, how=plan.rng.choice(("flip", "cut")))


def _live_rot(plan: Plan) -> Steps:
    # A leader that was started again has nothing in its memory, and reads cold data from disk.
    yield from spell("terminate", "all", seconds=0.1)
    yield whole()
    where = plan.rng.choice(("anywhere", "body", "place"))
    yield from spell("live-rot", "leader", seconds=0.5, where=where)


def _old_copy(plan: Plan) -> Steps:
    file = plan.rng.choice(("checkpoint", "segment", "consume-queue"))
    yield from spell("old-copy", "one", seconds=1, file=file)


def _old_vote(_: Plan) -> Steps:
    # Only a newer term in the log shows that term and vote are old.
    yield strike("old-copy", "follower", file="hard-state")
    yield from spell("kill", "leader", seconds=0.5)
    yield whole()
    yield heal("old-copy")


def _emptied(_: Plan) -> Steps:
    yield from spell("lost-disk", "one", seconds=1, how="emptied")


def _unmounted(_: Plan) -> Steps:
    yield from spell("lost-disk", "leader", seconds=1, how="unmounted")


FILES = (_rot, _live_rot, _old_copy, _old_vote, _emptied, _unmounted)
