"""Years in an hour: old messages go, members come and go, bytes rot, and nodes are killed."""

from chaos.real.scenario import Load, Plan, Steps, heal, spell, strike, wait, whole

NODES = 5
LOAD = Load(rate=100, size_bytes=8192)  # a segment in two or three seconds
RETAIN_BYTES = 24 << 20  # what half a minute gives: each message goes within a minute

KINDS_OF_ROT = ("anywhere", "body", "place")


def schedule(plan: Plan) -> Steps:
    while True:
        for part in plan.rng.sample(PARTS, len(PARTS)):
            yield from part(plan)
            yield whole()
            yield wait(plan.rng.uniform(0.2, 2))


def _rot(plan: Plan) -> Steps:
    # Others die meanwhile, but never who has rotted: it has to get its bytes back while it runs.
    rotten, killed = plan.shuffled()[:2]
    which = {"where": plan.rng.choice(KINDS_OF_ROT), "which": "newer"}
    yield strike("live-rot", rotten, **which)
    yield from spell("kill", killed, seconds=plan.rng.uniform(0.1, 2))
    yield heal("live-rot")


def _leave(plan: Plan) -> Steps:
    # The leader dies while a member is away, and again while it is taken in, in the newcomer's way.
    gone, killed = plan.shuffled()[:2]
    yield strike("leave", gone)
    yield wait(plan.rng.uniform(0.2, 3))
    if plan.rng.random() < 0.5:
        yield from spell("kill", killed, seconds=0.5)
    yield heal("leave")
    yield from spell("kill", "leader", seconds=plan.rng.uniform(0.1, 2))


def _demote(plan: Plan) -> Steps:
    yield strike("demote", plan.rng.choice(("leader", "follower")))
    yield wait(plan.rng.uniform(0.1, 1))
    yield from spell("kill", "follower", seconds=0.5)
    yield heal("demote")
    yield strike("transfer")


def _lose(plan: Plan) -> Steps:
    yield from spell("lost-disk", "one", seconds=plan.rng.uniform(0.2, 1), how="emptied")


def _power(plan: Plan) -> Steps:
    yield from spell("power-cut", plan.rng.choice(("leader", "one", "all")), seconds=0.5)


PARTS = (_rot, _rot, _leave, _demote, _lose, _power)
