"""After the peace: any one voter goes, and whoever is left serves within a bound, writes included.

    all at rest ─▶ (all are upgraded, one is put back) ─▶ (one is down, and misses what is written)
    ─▶ (it is back, just now) ─▶ a voter goes, asked to or not ─▶ somebody serves a write
    ─▶ everything is whole again, and at rest

It is no fault among others: while faults meet each other nobody can say who has to serve. Here one
voter of three or more is away and the others run, reach each other and have room, so the group's
promise holds whole. Two things that aren't faults make it hard, one at a time or both: a member
whose program is older than the log, which takes entries and can't apply them (ADR 23), and one that
lags. What must then not happen is that who can't serve keeps, or is given, what the other could do;
nor that it clings to it, as programs before level 8 do, which know no reason to hand over.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.sim.clients import Shared
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.machine_config import NEWER_LEVEL
from chaos.sim.node import SimNode
from chaos.sim.rest_round import SERVES_US, RestRound, Spawn, serves
from chaos.sim.world import World
from dledger.core.progress import PeerState
from dledger.driver import RaftDriver

SETTLES_US: Final = 600_000  # for whom was put back: as long as two elections
MISSED: Final = 12  # writes, at most, that who lags hasn't seen
OLDER_SHARE: Final = 0.75  # of the groups in which one can be put back
CLINGING_SHARE: Final = 0.5  # of those: by that program it is no reason to hand over
LAGGING_SHARE: Final = 0.5
LEADER_SHARE: Final = 0.6  # of who goes
SLOW_SHARE: Final = 0.5  # of those who lag: by their disk, as long as it lasts
SLOW_SYNC_US: Final = 20_000


class OneAway(RestRound):
    """One such round."""

    def __init__(self, world: World, shared: Shared, spawn: Spawn) -> None:
        super().__init__(world, shared, spawn, purpose="one-away", writer="afterwards")
        self.was_older = self.was_lagging = self.was_asked = self.was_clinging = False

    @property
    def found(self) -> tuple[str, ...]:
        """What the round was about."""
        flags = {"older": self.was_older, "lagging": self.was_lagging, "asked": self.was_asked}
        flags["clinging"] = self.was_clinging
        return tuple(name for name, is_so in flags.items() if is_so)

    def go_through(self) -> bool:
        """Does it; False where the group isn't one of three voters or more that all run.

        Raises:
            Defect: nobody serves.
        """
        found = self._whole_group()
        if found is None:
            return False
        leader, members, voters = found
        if self._world.plan.upgraded:
            leader = self._upgrade(members)
        victim, older, lagging = self._roles(leader, voters)
        if older is not None:
            self._put_back(older)
        if lagging is not None:
            self._let_lag(lagging)
        term = leader.life.core.term if leader.life is not None else 0
        is_heir = self._take(victim, lagging)
        self._write(self._tell(victim, older, lagging))
        tells = is_heir and not self.was_clinging
        if tells and older is not None and older.name in self._leaders_since(term):
            raise Defect("goodbye to who can't serve", self._tell(victim, older, lagging))
        if lagging is not None:
            lagging.sync_us = self._world.plan.tuning.sync_us
        for node in (victim, older):
            if node is not None:
                self._restore(node)
        return True

    # --- who ---------------------------------------------------------------------------------

    def _roles(
        self, leader: SimNode, voters: list[SimNode]
    ) -> tuple[SimNode, SimNode | None, SimNode | None]:
        """Who goes, who is older, who lags; another one each."""
        chance = self._chance
        others = [node for node in voters if node is not leader]
        chance.shuffle(others)
        older = lagging = None
        if self._can_be_older(voters) and chance.random() < OLDER_SHARE:
            older = others.pop()
        if others and chance.random() < LAGGING_SHARE:
            lagging = others.pop()
        left = [node for node in voters if node not in (older, lagging)]
        victim = leader if chance.random() < LEADER_SHARE else chance.choice(left)
        return victim, older, lagging

    def _can_be_older(self, voters: list[SimNode]) -> bool:
        """Whether the log has what the older program doesn't know, in a place that it can stop in
        front of: it restores no snapshot of behind that."""
        lives = [node.life for node in voters if node.life is not None]
        return all(
            life.replica.machine.level.current == NEWER_LEVEL and life.replica.log.first_index == 1
            for life in lives
        )

    def _tell(self, victim: SimNode, older: SimNode | None, lagging: SimNode | None) -> str:
        words = [f"{victim.name} is away"]
        words += [f"{older.name} can't apply the log"] if older else []
        words += [f"{lagging.name} lagged"] if lagging else []
        return ", ".join(words)

    # --- what --------------------------------------------------------------------------------

    def _upgrade(self, members: list[SimNode]) -> SimNode:
        """The last ones have the newer program, so its level is in use; who serves then."""
        for node in members:
            if node.identity.level < NEWER_LEVEL:
                node.kill("is upgraded")
                node.boot()
                self._pass(SETTLES_US)

        def is_raised() -> bool:
            lives = [node.life for node in members]
            levels = {life.replica.machine.level.current for life in lives if life is not None}
            return levels == {NEWER_LEVEL} and self._serving() is not None

        if not self._until(SERVES_US, is_raised):
            raise Defect("level not raised", self._states())
        leader = self._serving()
        assert leader is not None
        return leader

    def _put_back(self, node: SimNode) -> None:
        self.was_older = True
        node.kill("is put back to an older program")
        node.is_put_back = node.was_put_back = True
        node.boot()
        self._pass(SETTLES_US)
        life = node.life
        if life is None or not life.replica.driver.statistics().apply_stopped:
            raise Defect("older program", f"{node.name} applies what it doesn't know")
        if self._chance.random() < CLINGING_SHARE:
            self.was_clinging = True
            _let_cling(life.replica.driver)

    def _let_lag(self, node: SimNode) -> None:
        """It is back when the others have written what it misses, and has no time for it."""
        self.was_lagging = True
        node.is_kept_down = True
        node.kill("is away for a while")
        for _ in range(self._chance.randint(1, MISSED)):
            self._write(f"{node.name} is away")
        node.is_kept_down = False
        if self._chance.random() < SLOW_SHARE:
            node.sync_us = SLOW_SYNC_US
        node.boot()
        self._pass(self._chance.choice((0, 30_000, 200_000, 400_000, 800_000)))

    def _take(self, node: SimNode, lagging: SimNode | None) -> bool:
        """It goes; whether it leads, was asked to, and could hand over to who lags."""
        self.was_asked = self._chance.random() < 0.5
        node.is_kept_down = True
        if self.was_asked:
            for _ in range(self._chance.randrange(6)):  # under way while it says goodbye
                self._begin_write()
            self._pass(self._chance.randrange(20_000))
            self._world.log("operator", f"asks {node.name} to stop")
            is_heir = lagging is not None and _could_take_over(lagging, node.life)
            node.stop()
            return is_heir
        elif self._chance.random() < 0.5:
            node.kill("is gone")
        else:
            node.cut_power("is gone, with its machine")
        return False

    def _restore(self, node: SimNode) -> None:
        """It runs again, with the program that it had."""
        if node.is_put_back:
            node.kill("is given its program again")
        node.is_kept_down = node.is_put_back = False
        node.boot()  # one that is stopping yet is started by whoever supervises it

    # --- how it runs -------------------------------------------------------------------------

    def _leaders_since(self, term: int) -> set[str]:
        """Who was elected after that term."""
        leaders = self._world.watch.checker.leaders
        return {str(name) for each, name in leaders.items() if each > term}


def _could_take_over(node: SimNode, leader: Life | None) -> bool:
    """Whether `leader` knows the node as one that it streams to, and that lacks one append at most:
    it is sent that before it is told to lead."""
    if leader is None or not serves(leader):
        return False
    log, core = leader.replica.log, leader.core
    known = core.statistics().peers.get(node.name)
    if known is None or known.state != PeerState.REPLICATE.value or known.is_short_of_space:
        return False
    missing = log.last_index - known.match_index
    if not missing:
        return True
    size = log.end_offset - log.position_of(known.match_index + 1)
    raft = node.config.raft
    return missing <= raft.max_append_entries and size <= raft.max_append_bytes


def _let_cling(driver: RaftDriver[Any]) -> None:
    """As releases before level 8: to it, that it can't apply what is committed is no reason for
    anything. An attribute of this life's driver, as no program that knows the rule lacks it."""
    setattr(driver, "_can_serve", lambda: True)  # noqa: B010
