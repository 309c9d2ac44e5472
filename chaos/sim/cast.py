"""Who works with a group in one run: every client that the plan names, made with what it needs.

This owns the books that clients of a kind share (units, keys, shops), for the checks at the end.
Each client draws from a randomness of its own name, so that one more changes nothing in the others.
"""

from __future__ import annotations

from functools import partial

from chaos.sim.clients import Administrator, Consumer, Doubter, Shared
from chaos.sim.draining import Draining
from chaos.sim.failing import FailingCrew, FailingMember
from chaos.sim.filtered import drawn
from chaos.sim.gatekeeper import Gatekeeper
from chaos.sim.keyed import GROUP, Book, KeyedCrew, KeyedMember, KeyedSender, Resizer
from chaos.sim.members import Crew, Member
from chaos.sim.overseer import Overseer
from chaos.sim.plan import Fault, Plan
from chaos.sim.poppers import Popper, Shop
from chaos.sim.producers import LifeSpan, Producer
from chaos.sim.racers import Racer, Track
from chaos.sim.unit_writers import UnitBook, UnitWriter
from chaos.sim.wisher import Wisher
from chaos.sim.world import World
from dledger.level import DELIVERY_LEVEL
from dledger.wire import commands_pb2 as cpb

GATEKEEPER_S = 0.6  # between two permissions
OVERSEER_S = 0.8  # between two things that one does
RESIZE_S = 0.5  # between two updates of a topic
WISHER_S = 0.7  # between two wishes for a topic
KEYED_S = 0.03  # between a sender's messages with keys

AnyClient = (
    Producer
    | Consumer
    | Doubter
    | Administrator
    | Racer
    | UnitWriter
    | Member
    | Overseer
    | Popper
    | KeyedSender
    | Resizer
    | Gatekeeper
    | Wisher
)


class Cast:
    """The clients of one run."""

    def __init__(self, world: World, shared: Shared, draining: Draining) -> None:
        self._world = world
        self._plan = world.plan
        self._shared = shared
        self._draining = draining
        self.units = UnitBook()
        self.keyed = Book()
        self.shops: dict[str, Shop] = {}

    def make(self) -> list[AnyClient]:
        """Every client of the plan, in an order that stays; called once."""
        plan, shared = self._plan, self._shared
        count = plan.producers + plan.consumers + bool(plan.consumers) + plan.admin
        interval_s = count / plan.rate
        clients: list[AnyClient] = []
        for i in range(plan.producers):
            name = f"producer-{i}"
            life = _life_span(plan, f"billing-{i}" if i % 2 else "")
            twofold = plan.random(f"{name}/twice")
            clients.append(Producer(name, shared, plan.random(name), interval_s, life, twofold))
        for i in range(plan.consumers):
            name = f"consumer-{i}"
            clients.append(Consumer(name, shared, plan.random(name), interval_s))
        if plan.consumers:
            doubter = Doubter("doubter", shared, plan.random("doubter"), interval_s)
            clients.append(doubter)
        if plan.admin:
            chance = plan.random("administrator")
            clients.append(Administrator("administrator", shared, chance, interval_s))
        clients += self._make_members()
        for i in range(plan.overseers):
            name, groups = f"overseer-{i}", self._moved_crews()
            clients.append(Overseer(name, shared, plan.random(name), groups, OVERSEER_S))
        clients += self._make_poppers()
        clients += self._make_keyed()
        if plan.gatekeeper:
            shared.gates.has_keeper = True
            chance = plan.random("gatekeeper/at work")
            clients.append(Gatekeeper("gatekeeper", shared, chance, GATEKEEPER_S))
        if plan.wisher:
            chance = plan.random("wisher/at work")
            clients.append(Wisher("wisher", shared, chance, WISHER_S))
        track = Track()
        for i in range(plan.racers):
            name = f"racer-{i}"
            clients.append(Racer(name, shared, plan.random(name), interval_s, track))
        for i in range(plan.unit_writers):
            name = f"units-{i}"
            books = self.units, track
            clients.append(UnitWriter(name, shared, plan.random(name), interval_s, books))
        return clients

    def _make_members(self) -> list[Member]:
        """The crews: the first concurrent, the second orderly; the third member of each is another
        process that says that it is the first."""
        members: list[Member] = []
        for number, size in enumerate(self._plan.crews):
            chance = self._plan.random(f"crew-{number}")
            start = chance.choice((cpb.START_FIRST, cpb.START_LAST))
            strategy = chance.choice(("", "", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"))
            tags = drawn(self._plan.random(f"tags of crew-{number}"))
            self._shared.has_tags |= bool(tags)
            crew = Crew(f"crew-{number}", bool(number), start, strategy, tags)
            crew.is_drained = partial(self._draining.is_drained, crew)
            self._world.crews[crew.group] = crew
            for at in range(size):
                name = f"{crew.group}-{at}" if at < 2 else f"{crew.group}-0/twin"
                self._world.members_of_crews.append(name)
                members.append(
                    Member(name, self._shared, self._plan.random(name), crew, self._world)
                )
        return members + self._make_failing()

    def _moved_crews(self) -> list[str]:
        """Those that may be moved back: whoever fails would fail again at the same."""
        crews = self._world.crews.items()
        return [name for name, each in crews if not isinstance(each, FailingCrew | KeyedCrew)]

    def _make_failing(self) -> list[Member]:
        """Crews that fail at messages: the second stays in front of them, in order."""
        found: list[Member] = []
        for group, size in (("failing", self._plan.failing), ("stopping", self._plan.stopping)):
            crew = FailingCrew(group, is_orderly=group == "stopping")
            if size:
                crew.is_drained = partial(self._draining.is_drained, crew)
                self._world.crews[crew.group] = crew
            names = [f"{group}-{at}" for at in range(size)]
            self._world.members_of_crews += names
            shared, plan = self._shared, self._plan
            made = [FailingMember(n, shared, plan.random(n), crew, self._world) for n in names]
            for member in made[1:]:  # one at least works on what has failed
                member.takes_retries = plan.random(f"{member.name}/retries").random() < 0.7
            found += made
        return found

    def _make_keyed(self) -> list[AnyClient]:
        """A topic that grows and shrinks, who sends to it, and a crew that reads it in order."""
        plan, shared, book = self._plan, self._shared, self.keyed
        if not plan.keyed:
            return []
        crew = KeyedCrew(GROUP, is_orderly=True, book=book)
        crew.is_drained = self._draining.is_keyed_drained
        self._world.crews[crew.group] = crew
        members = [f"keyed-{at}" for at in range(plan.keyed)]
        self._world.members_of_crews += members
        senders = [f"keyed-sender-{at}" for at in range(2)]
        return [
            Resizer("resizer", shared, plan.random("resizer"), RESIZE_S, book),
            *(KeyedSender(n, shared, plan.random(n), KEYED_S, book) for n in senders),
            *(KeyedMember(n, shared, plan.random(n), crew, self._world) for n in members),
        ]

    def _make_poppers(self) -> list[Popper]:
        """The shops: the first of any order, the second FIFO."""
        poppers: list[Popper] = []
        for number, size in enumerate(self._plan.poppers):
            shop = Shop(f"shop-{number}", is_fifo=bool(number))
            shop.is_drained = partial(self._draining.is_through, shop.group, DELIVERY_LEVEL)
            self.shops[shop.group] = shop
            for at in range(size):
                name = f"{shop.group}-{at}"
                popper = Popper(name, self._shared, self._plan.random(name), shop)
                if self._plan.doubters:
                    popper.doubts = self._plan.random(f"{name}/doubts")
                poppers.append(popper)
        return poppers


def _life_span(plan: Plan, name: str) -> LifeSpan:
    """For how long a producer that isn't used must be known all the same: for as long as the log's
    own time can't have run ahead of ours."""
    kinds = {fault.kind for fault in plan.faults}
    # Who lies about its clock is one more whose clock is wrong.
    is_majority = {Fault.CLOCK_LEAP, Fault.LIAR} <= kinds
    if is_majority or kinds & {Fault.CLOCK_STEP, Fault.CLOCK_DRIFT, Fault.CLOCKS_LEAP}:
        return LifeSpan(name, 0)
    bounds = plan.tuning.producers
    unused_ms = bounds.named_unused_ms if name else bounds.unnamed_unused_ms
    return LifeSpan(name, unused_ms * 1_000)
