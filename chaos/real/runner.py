"""One chaos run: start, load, faults, heal, read everything, compare, check.

    start     a fresh group behind proxies; a leader serves, or the run can't be made
    faults    the scenario's steps, one after the other, under load
    heal      everything is healed and started; the group must become whole
    read      producers settle, then a new reader reads every queue to its end
    compare   all replicas have the same digest and the same bytes
    check     every anomaly in the history, and what else went wrong

What goes wrong on the way is a finding and not an exception: it is taken down in `problems`, the
schedule ends, and the rest of the run goes on as far as it can, because what comes after a failure
is what one wants to know. Whatever happens, everything that was started is stopped (`arena`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from broker.local_group import LocalGroupError, NoAnswer, NodeDied
from chaos.checkers.history import History
from chaos.errors import GroupNeverLed, NothingStruck, TimeFarOff, TimesGoBack
from chaos.real.arena import Arena, ArenaOptions, arena
from chaos.real.audited import GROUP_FOLDER, HISTORY_FILE
from chaos.real.blow import Blow
from chaos.real.clocks import WrongClocks
from chaos.real.crew import BOOKS_FOLDER, Crew, crew
from chaos.real.finished import POWER_CUT, Band, Finished, RunOptions, check
from chaos.real.nemeses import NEMESES, Nemesis
from chaos.real.patience import MOST_S, Patience
from chaos.real.reading import Retained, read_everything, read_start
from chaos.real.replicas import compare_replicas
from chaos.real.retired import check_retained
from chaos.real.scenario import Heal, Step, Strike, Wait, Whole
from chaos.real.targets import victims_of
from chaos.real.watch import Watch, watching
from chaos.real.workload import Clock, Workload
from dledger.client import Client, ClientError

START_TIMEOUT_S: Final = 30.0
# How far stored times may be from true ones: while a node is down and another's clock is behind,
# the log's time runs at half speed, and it catches up at twice.
CLOCK_SLACK_MS: Final = 30_000
LEADER_TIMEOUT_S: Final = 10.0  # a strike at the leader waits so long for one
RECOVERY_TIMEOUT_S: Final = 180.0
WARM_UP_S: Final = 1.0  # of load before the first fault
AFTERMATH_S: Final = 1.0  # of load on the healed group, so that its health shows
GUARD_EVERY_S: Final = 0.25
CATCH_UP_LOOK_S: Final = 0.2


Tell = Callable[[str], None]


async def run_chaos(options: RunOptions, tell: Tell) -> Finished:
    """Runs the scenario once.

    Raises:
        LocalGroupError: the group can't be made (a port in use).
        GroupNeverLed: it was made and came to no leader.
    """
    place = ArenaOptions(
        options.nodes,
        options.seed,
        options.base_port,
        options.flush,
        options.scenario.retain_bytes,
    )
    path = options.directory / HISTORY_FILE
    with path.open("w", encoding="utf-8") as sink:
        async with arena(options.directory / GROUP_FOLDER, place) as made:
            tell(f"starting {options.nodes} nodes")
            await _start(made)
            history, now_us = History(sink=sink), Clock()
            members = options.scenario.members
            folder = options.directory / BOOKS_FOLDER
            async with (
                watching(made.addresses, now_us) as watch,
                Client.connect(made.client_addresses) as client,
                crew(folder, made.client_addresses, members, options.seed) as hands,
            ):
                workload = Workload(client, options.load, history, now_us, options.seed)
                finished = Finished(options, made.addresses, history, workload.acknowledged)
                finished.spans = watch.spans
                run = Run(options, made, watch, client, hands, workload, finished, now_us, tell)
                await run.perform()
            tell("comparing the replicas' bytes")
            await _compare(made, watch, finished)
    tell("checking the history")
    check(finished)
    return finished


async def _start(made: Arena) -> None:
    try:
        await made.group.up(START_TIMEOUT_S)
    except (NoAnswer, NodeDied) as error:
        raise GroupNeverLed(str(error)) from error


async def _compare(made: Arena, watch: Watch, finished: Finished) -> None:
    if finished.problems:
        finished.remarks.append("replicas weren't compared byte by byte: the run broke before")
        return
    retain = finished.options.scenario.retain_bytes
    finished.problems += await compare_replicas(made, watch.statuses, retains_all=not retain)
    if retain:
        data = {node_id: made.data_directory(node_id) for node_id in made.node_ids}
        end = min(status.committed_offset for status in watch.statuses.values())
        wrong, begins = check_retained(data, end, retain)
        finished.problems += wrong
        finished.remarks.append(begins)


@dataclass(slots=True)
class Run:
    """A run under way: the group is started, a client is connected."""

    options: RunOptions
    arena: Arena
    watch: Watch
    client: Client
    crew: Crew
    workload: Workload
    finished: Finished
    now_us: Clock
    tell: Tell
    _chance: Random = field(init=False)
    _clocks: WrongClocks = field(init=False)
    _open: dict[str, tuple[Nemesis, Blow, Band]] = field(default_factory=dict)
    _witnesses: int = 0

    def __post_init__(self) -> None:
        self._chance = Random(f"strikes {self.options.seed}")
        self._clocks = WrongClocks(self.arena.node_ids)

    async def perform(self) -> None:
        """Load, faults, healing, reading; the findings are in `finished`."""
        finished = self.finished
        await self.workload.prepare()
        self.workload.start()
        try:
            async with self._guarded(), self._crewed():
                await asyncio.sleep(WARM_UP_S)
                finished.faults_began_us = self.now_us()
                await self._take_steps()
                await self._heal_everything()
                finished.healed_us = self.now_us()
                await self._have_an_aftermath()
                self.tell("letting the clients settle")
                await self.workload.settle()
                await self._let_consumers_catch_up()
                await self.workload.stop()
                finished.ended_us = self.now_us()
                await self._dismiss()
            await self._read()
            await self._await_equal_replicas()
        finally:
            await self.workload.abort()
            finished.ended_us = finished.ended_us or self.now_us()
            finished.errors = dict(self.workload.errors)
            self._take_over_problems()

    # --- steps --------------------------------------------------------------------------------

    async def _take_steps(self) -> None:
        begun = self.now_us()
        for step in self.options.steps:
            elapsed_s = (self.now_us() - begun) / 1e6
            if isinstance(step, Strike) and not self._open and elapsed_s > self.options.seconds:
                return  # steps took longer than planned, and a fault would begin anew
            try:
                await self._take(step)
            except (LocalGroupError, TimesGoBack) as error:
                self._problem(str(error))
                return
            self.workload.check()

    async def _take(self, step: Step) -> None:
        match step:
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Whole(timeout_s):
                if not await self.watch.whole(timeout_s):
                    raise LocalGroupError(f"the group wasn't whole within {timeout_s:g} s")
            case Heal(None):
                await self._heal_all()
            case Heal(label):
                await self._heal(label or "")
            case Strike():
                await self._strike(step)

    async def _strike(self, step: Strike) -> None:
        nemesis = NEMESES[step.nemesis]
        if step.label in self._open:
            await self._heal(step.label)
        leader = await self.watch.found_leader(0 if self._open else LEADER_TIMEOUT_S)
        targets = step.targets or ((nemesis.target,) if nemesis.target else ())
        victims = victims_of(targets, self.arena.node_ids, leader, self._chance)
        if victims is None:
            self._skip(step, "nobody leads")
            return
        if step.nemesis == POWER_CUT and self._forgets(victims):
            victims = self.arena.node_ids
        blow = Blow(
            self.arena,
            self.client,
            step.label,
            victims,
            {**nemesis.defaults(), **step.options},
            Random(self._chance.random()),
            self._witness,
            self.crew,
        )
        hit = leader if self._deposes(nemesis, victims, leader) else None
        band = Band(step.label, step.nemesis, victims, self.now_us(), deposed=hit)
        self.finished.bands.append(band)
        self._open[step.label] = (nemesis, blow, band)
        try:
            band.detail = await nemesis.strike(blow)
        except NothingStruck as nothing:
            del self._open[step.label]
            self.finished.bands.remove(band)
            self._skip(step, nothing.reason)
            return
        band.struck_us = self.now_us()
        self._clocks.begin(step.label, step.nemesis, victims, blow.options, band.struck_us)
        if nemesis.is_momentary:
            await self._heal(step.label)
        whom = f" {', '.join(victims)}" if victims else ""
        leads = " (the leader)" if leader in victims else ""
        self.tell(f"{step.nemesis}{whom}{leads}{': ' + band.detail if band.detail else ''}")

    def _skip(self, step: Strike, why: str) -> None:
        self.finished.skipped.append((step.nemesis, why))
        self.tell(f"{step.nemesis}: skipped, {why}")

    def _deposes(self, nemesis: Nemesis, victims: tuple[str, ...], leader: str | None) -> bool:
        """Whether another leader is to follow: this one is hit, and a majority isn't."""
        minority = len(victims) <= (len(self.arena.node_ids) - 1) // 2
        return nemesis.ends_leadership and leader in victims and minority

    def _forgets(self, victims: tuple[str, ...]) -> bool:
        """Whether a majority would forget, with async, what the others have applied already:
        these would stop for good, as they should. So all lose their power at once."""
        return self.options.flush == "async" and 2 * len(victims) > len(self.arena.node_ids)

    async def _witness(self, end: int) -> str:
        """A reader of its own each time, so that it isn't one that went back."""
        self._witnesses += 1
        return await read_start(
            self.client,
            self.finished.history,
            self.now_us,
            self.options.load.queues,
            end,
            f"witness-{self._witnesses}",
            retained=self.options.retained,
        )

    # --- healing ------------------------------------------------------------------------------

    async def _heal(self, label: str) -> None:
        opened = self._open.pop(label, None)
        if opened is None:
            return  # its strike was skipped
        nemesis, blow, band = opened
        detail = await nemesis.heal(blow)
        band.detail = "; ".join(filter(None, (band.detail, detail)))
        band.end_us = self.now_us()
        self._clocks.end(label, band.end_us)
        if detail:
            self.tell(f"{nemesis.name}: {detail}")

    async def _heal_all(self) -> None:
        for label in reversed(list(self._open)):
            await self._heal(label)

    async def _heal_everything(self) -> None:
        """No fault is left, every node runs, and the group is whole."""
        self.tell("healing")
        for label in reversed(list(self._open)):
            try:
                await self._heal(label)
            except LocalGroupError as error:
                self._problem(str(error))
        self._look_at_processes()  # who is started now isn't seen to be missing
        for node_id in self.arena.node_ids:
            if not self.arena.is_running(node_id):
                try:
                    await self.arena.start(node_id)
                except LocalGroupError as error:
                    self._problem(str(error))
        if not await self.watch.whole(RECOVERY_TIMEOUT_S):
            self._problem(f"the healed group wasn't whole within {RECOVERY_TIMEOUT_S:g} s")

    async def _have_an_aftermath(self) -> None:
        """Of load on the healed group, until a message was sent to it: those that a fault has
        kept may take all the room that producers have until they are given up."""
        await asyncio.sleep(AFTERMATH_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                while (  # noqa: ASYNC110  it is a producer that sends
                    self.workload.last_sent_us < self.finished.healed_us
                ):
                    await asyncio.sleep(CATCH_UP_LOOK_S)

    async def _let_consumers_catch_up(self) -> None:
        """A consumer that can't go on shows in no poll: each is to get to what there is."""
        lasted_s = (self.now_us() - self.finished.faults_began_us) / 1e6
        patience, read = Patience(most_s=max(MOST_S, lasted_s)), 0
        behind: list[str] = ["nobody could be asked"]
        while not patience.is_over(read):
            with contextlib.suppress(ClientError):
                behind = await self.workload.behind()
            if not behind:
                return
            read = self.workload.read
            await asyncio.sleep(CATCH_UP_LOOK_S)
        self._problem(f"consumers didn't get to the end: {', '.join(behind)}")

    # --- consumer groups ----------------------------------------------------------------------

    @asynccontextmanager
    async def _crewed(self) -> AsyncIterator[None]:
        """Within it the members are at work, and what the brokers say of their groups is noted."""
        if not self.options.scenario.members:
            yield
            return
        self.crew.start_all()
        watching_groups = asyncio.create_task(self.crew.watch(self.client))
        try:
            yield
        finally:
            watching_groups.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching_groups  # an error of it is ours, and ends the run

    async def _dismiss(self) -> None:
        """The groups get through with everything; then their members go."""
        if not self.options.scenario.members:
            return
        self.tell("letting the groups get through")
        queues, lasted_s = self.options.load.queues, self.finished.ended_us / 1e6
        missing = await self.crew.drained(self.client, queues, lasted_s)
        if missing:
            self._problem(f"the groups didn't get through: {missing}")
        for problem in await self.crew.dismiss():
            self._problem(problem)
        self.crew.save(self.now_us.zero_us)

    # --- the end ------------------------------------------------------------------------------

    async def _read(self) -> None:
        self.tell("reading everything")
        try:
            within_ms = CLOCK_SLACK_MS + 2 * self._clocks.worst_ms
            history, queues = self.finished.history, self.options.load.queues
            retained = self.options.retained
            await read_everything(
                self.client, history, self.now_us, queues, within_ms, retained=retained
            )
        except ClientError as error:
            self._problem(f"the topic can't be read to its end: {error}")
        except (TimesGoBack, TimeFarOff) as error:
            self._problem(str(error))

    async def _await_equal_replicas(self) -> None:
        """Waits until all nodes have committed and applied the same."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_TIMEOUT_S):
                while not _are_level(self.watch, self.arena.node_ids):
                    await self.watch.next()
                return
        if not self.finished.problems:
            self._problem(f"the replicas weren't level within {RECOVERY_TIMEOUT_S:g} s")

    # --- what shouldn't happen ----------------------------------------------------------------

    def _take_over_problems(self) -> None:
        """What clients were told. With async a reader may stand behind the end of a cut log, and
        where old messages go, before what is kept."""
        for text, code in self.workload.problems.values():
            is_outside = code == "OFFSET_OUT_OF_RANGE"
            if is_outside and self.finished.power_cuts:
                self.finished.remarks.append(f"permitted, since flush is async: {text}")
            elif is_outside and self.options.retained is Retained.NEWER:
                self.finished.remarks.append(f"permitted, since old messages go: {text}")
            else:
                self.finished.problems.append(text)

    def _problem(self, text: str) -> None:
        self.finished.problems.append(text)
        self.tell(f"PROBLEM: {text}")

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Within it nodes that end by themselves are noticed."""
        guard = asyncio.create_task(self._guard())
        try:
            yield
        finally:
            guard.cancel()
            (error,) = await asyncio.gather(guard, return_exceptions=True)
            if isinstance(error, Exception):  # and nobody has looked since
                self._problem(f"what watches the nodes has failed: {error!r}")
            self._look_at_processes()

    async def _guard(self) -> None:
        while True:
            self._look_at_processes()
            await asyncio.sleep(GUARD_EVERY_S)

    def _look_at_processes(self) -> None:
        """Whoever ended by itself, or otherwise than it had to, is a problem."""
        for problem in self.arena.bad_ends():
            self._problem(problem)
        for node_id in self.arena.ended_by_themselves():
            lines = self.arena.log_since(node_id).strip().splitlines()[-3:]
            self._problem(f"{node_id} ended by itself; its log ends with: {' / '.join(lines)}")
        for problem in self.crew.ended_by_themselves():
            self._problem(problem)


def _are_level(watch: Watch, node_ids: tuple[str, ...]) -> bool:
    if any(not view.alive for view in watch.latest.values()):
        return False
    statuses = [watch.statuses[node_id] for node_id in node_ids]
    return len({(each.commit_index, each.applied_index, each.last_index) for each in statuses}) == 1
