"""The schedule: programs in processes of their own, nodes and networks under faults, then peace.

The plan's faults strike nodes as in every run; beside them processes are killed and started again,
stopped past their sessions and cut off from nodes. When peace has come every program has to work
off what there is and to end when it is told, within a bound of virtual time; then the books are
held against the log.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, Final

from broker.state.topics import TopicRef
from chaos.sim.applications.books import Held, SentBook, WorkBook
from chaos.sim.applications.channel import Network
from chaos.sim.applications.process import ClientProcess, library_in
from chaos.sim.applications.programs import (
    TOPIC,
    Looping,
    Operating,
    Popping,
    Program,
    Sending,
    Shared,
    Working,
    WorkingInOrder,
)
from chaos.sim.cast import AnyClient
from chaos.sim.defect import Defect
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.machine import Life
from chaos.sim.plan import Plan
from chaos.sim.quiet import collecting_garbage_by_hand, quiet_logs
from chaos.sim.replicas import Models
from chaos.sim.retry_model import ATTEMPTS
from chaos.sim.run import PEACE_US, Failure, Run
from chaos.sim.timeline import ActorDied
from chaos.sim.world import Line
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import dead_letter_topic
from store.errors import CorruptionFound, StorageFailed

LEAST_SEGMENT_BYTES: Final = 64 << 10  # batches aren't cut to the least that there are
DEFAULT_DURATION_MS: Final = 20_000
THROUGH_US: Final = 120_000_000  # from peace on, within which more is worked off
PAUSES_US: Final = (50_000, 800_000, 4_000_000, 9_000_000, 12_000_000, 14_000_000)
CUTS_US: Final = (100_000, 1_000_000, 5_000_000, 12_000_000, 15_000_000)
SLIP_SHARES: Final = (1e-4, 1e-3, 1e-2)
LOOK_US: Final = 250_000  # between looks at whether it is so
END_US: Final = 90_000_000  # within which programs end that are told to
PUSHED: Final = (Working.GROUP, WorkingInOrder.GROUP)
KINDS: Final[Sequence[type[Program]]] = (Working, WorkingInOrder, Popping, Looping)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave; but for `cpu_s`, processor seconds, the same for the same seed."""

    seed: int
    failure: Failure | None
    trace: str
    accepted: int
    stored: int
    handled: dict[str, int]  # by group: messages that were finished
    again: dict[str, int]  # by group: how often one was begun again
    processes: int
    cpu_s: float
    transcript: tuple[Line, ...]


def library_plan(seed: int, duration_ms: int) -> Plan:
    """The faults that the seed draws, and nobody but the library at work."""
    drawn = draw_plan(seed, duration_ms=duration_ms)
    tuning = replace(
        drawn.tuning,
        flush="sync",
        retention_age_ms=0,
        retention_bytes=0,
        retention_disk_percent=0,
        segment_bytes=max(drawn.tuning.segment_bytes, LEAST_SEGMENT_BYTES),
    )
    return Plan(
        seed,
        nodes=drawn.nodes,
        spares=drawn.spares,
        duration_ms=duration_ms,
        producers=0,
        consumers=0,
        queues=drawn.queues,
        admin=False,
        weather=drawn.weather,
        tuning=tuning,
        faults=tuple(f for f in drawn.faults if f.kind.name not in ("MOVE_START", "ALTERED_LOG")),
    )


class LibraryRun(Run):
    """One run of the schedule."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        chance = self.chance = plan.random("library")
        self.network = Network(self.world)
        self.programs: list[Program] = []
        self.processes: list[ClientProcess] = []
        groups = chance.sample(KINDS, chance.randint(1, 2))
        self._has_slips = chance.random() < 0.4
        self.sent = SentBook()
        self.books = {
            kind.GROUP: WorkBook(  # type: ignore[attr-defined]
                kind.GROUP,  # type: ignore[attr-defined]
                partial(self._frontier, kind.GROUP),  # type: ignore[attr-defined]
                is_exclusive=kind is not Popping,
                before=self.sent.before if kind is WorkingInOrder else None,
            )
            for kind in groups
        }
        self.told = Shared(self.network.addresses, plan.queues, self.sent, self.books)
        self.told.is_hard = plan.random("hard work").random() < 0.5
        kinds: list[type[Program]] = [Sending] * chance.randint(1, 3)
        for kind in groups:
            kinds += [kind] * chance.choice((1, 2, 2, 3))
        if chance.random() < 0.4:
            kinds.append(Operating)
        for number, kind in enumerate(kinds):
            name = f"{kind.__name__.lower()}-{number}"
            whims = plan.random(f"{name}/whims")
            self.programs.append(kind(self.told, name, plan.random(name), whims))

    def _clients(self) -> list[AnyClient]:
        for number, program in enumerate(self.programs):
            self.world.timeline.at(1_000 * number, self.world.clients, self._start, program)
            self._plan_mischief(program)
        return []

    # --- processes ----------------------------------------------------------------------------

    def _start(self, program: Program) -> None:
        if program.process is not None and program.process.alive:
            return
        program.life += 1
        name, timeline = f"{program.name}.{program.life}", self.world.timeline
        chance = Random(f"{self.plan.seed}/{name}")
        process = ClientProcess(timeline, program.name, len(self.processes), chance)
        if self._has_slips and chance.random() < 0.5 and not self.told.stopping:
            process.slip_share = chance.choice(SLIP_SHARES)
        self.processes.append(process)
        program.process = process
        self.world.log(program.name, "starts")
        timeline.after(0, process, self._run_program, process, program)

    def _run_program(self, process: ClientProcess, program: Program) -> None:
        task = process.create_task(program.run())
        task.add_done_callback(partial(self._on_program_end, process, program))

    def _on_program_end(self, process: ClientProcess, program: Program, task: Any) -> None:
        if task.cancelled():
            raise Defect("library", f"{program.name} was cancelled by nobody")
        error = task.exception()
        if isinstance(error, Defect):
            raise error
        if error is not None and not isinstance(error, ActorDied):
            raise Defect("library", f"{program.name} ended: {error!r}") from error
        self.world.log(program.name, "ends")

    def _kill(self, program: Program) -> None:
        process = program.process
        if process is None or not process.alive or program.name in self.told.ended:
            return
        self.world.log(program.name, "killed")
        process.die()
        program.die()
        self._break_streams(process)

    def _break_streams(self, process: ClientProcess) -> None:
        for node in self.world.nodes.values():
            for stream in list(self.world._streams.get(node.name, {})):
                owner = getattr(stream, "_loop", None)
                if owner is process:
                    stream.hang_up()

    # --- what is done to them -----------------------------------------------------------------

    def _plan_mischief(self, program: Program) -> None:
        chance = self.plan.random(f"mischief/{program.name}")
        at, end = 0, self.plan.duration_ms * 1_000
        calm = chance.random() < 0.2
        while not calm:
            at += int(chance.expovariate(1 / 2_500_000)) + 200_000
            if at >= end:
                return
            self._strike(program, chance, at)

    def _strike(self, program: Program, chance: Random, at: int) -> None:
        timeline, clients = self.world.timeline, self.world.clients
        what = chance.random()
        if what < 0.25:
            timeline.at(at, clients, self._kill, program)
            again = at + chance.choice((1_000, 300_000, 3_000_000))
            timeline.at(again, clients, self._start, program)
        elif what < 0.55:
            timeline.at(at, clients, self._pause, program)
            until = at + chance.choice(PAUSES_US)
            timeline.at(until, clients, self._resume, program)
        else:
            nodes = list(self.world.nodes)
            some = chance.sample(nodes, chance.randint(1, len(nodes)))
            links = {(program.name, node) for node in some}
            cuts = chance.choice((self.network.cuts, self.network.deaf))
            timeline.at(at, clients, cuts.update, links)
            until = at + chance.choice(CUTS_US)
            timeline.at(until, clients, cuts.difference_update, links)

    def _pause(self, program: Program) -> None:
        if program.process is not None and program.process.alive:
            program.process.pause()

    def _resume(self, program: Program) -> None:
        if program.process is not None and program.process.alive:
            program.process.resume()

    # --- peace --------------------------------------------------------------------------------

    def _come_to_rest(self, until_us: int, when: str = "") -> None:
        """Programs end first: a log to which somebody writes doesn't come to rest."""
        if not self.told.closing:
            self._work_off()
            until_us = self.world.now_us + PEACE_US
        super()._come_to_rest(until_us, when)

    def _work_off(self) -> None:
        """Programs stop sending, work everything off, and end."""
        self.network.cuts.clear()
        self.network.deaf.clear()
        for program in self.programs:
            self._resume(program)
            self._start(program)
        for process in self.processes:
            process.slip_share = 0.0
        self.told.stopping = True
        senders = [each.name for each in self.programs if isinstance(each, Sending)]
        self._until(lambda: set(senders) <= set(self.told.ended), END_US, "senders don't end")
        self._until(self._is_given, THROUGH_US, "nobody gives what the log holds")
        stored = self._all_stored()
        left = self._left(stored)
        while left:  # one queue in order takes its time: as long as it goes on it is no defect
            self._until(partial(self._is_fewer, stored, left), THROUGH_US, "")
            left = self._left(stored)
        self.told.closing = True
        names = {each.name for each in self.programs}
        self._until(lambda: names <= set(self.told.ended), END_US, "programs don't end")

    def _until(self, holds: Callable[[], bool], bound_us: int, what: str) -> None:
        for _ in range(bound_us // LOOK_US):
            if holds():
                return
            self._advance(self.world.now_us + LOOK_US)
        if not holds():
            raise Defect("library", f"{what}: {self._at_work()}" if what else self._what_is_left())

    def _at_work(self) -> str:
        """Whose programs haven't ended, and where each of their tasks waits."""
        left = [each for each in self.programs if each.name not in self.told.ended]
        return "; ".join(
            f"{each.name} in {', '.join(each.process.waits() if each.process else ())}"
            for each in left
        )

    def _is_fewer(self, stored: set[bytes], left: int) -> bool:
        return self._left(stored) < left

    def _left(self, stored: set[bytes]) -> int:
        """How many times somebody has still to handle what is stored."""
        left = {group: set(book.missing(stored)) for group, book in self.books.items()}
        return sum(len(bodies - self._dead(group)) for group, bodies in left.items() if bodies)

    def _is_given(self) -> bool:
        """Whether who serves gives all that is held. What nobody can give would be worked off, and
        nobody would have lost it."""
        lives = [node.life for node in self.world.nodes.values() if node.life is not None]
        is_served = any(life.replica.leadership.serving for life in lives)
        return is_served and self._given(TOPIC) is not None

    def _all_stored(self) -> set[bytes]:
        """What every group has to be through with: what is held, and what went with its queue,
        which goes only once everybody has read it."""
        held = self._held()
        return {*held.messages.values(), *self.sent.gone(held)}

    def _what_is_left(self) -> str:
        stored = self._all_stored()
        left = {group: sorted(book.missing(stored)) for group, book in self.books.items()}
        return "nobody has handled " + "; ".join(
            f"{group}: {len(bodies)} of {len(stored)}, {bodies[:3]}"
            for group, bodies in left.items()
        )

    def _look(self) -> Models:
        models = super()._look()
        held = self._held()
        self.sent.check(held, has_moved=self.told.has_moved)
        for group, book in self.books.items():
            book.check_order(set(held.messages.values()), self._dead(group))
            if group in PUSHED and not self._has_slips:  # a rule that fails is a handler that does
                letters = self._letters(group)
                book.check_dead(letters, ATTEMPTS, models.leases.vanished)
        return models

    def _letters(self, group: str) -> list[DecodedRecord]:
        """The group's dead letters, of a member whose log is sound; none where there is none."""
        lives = [node.life for node in self.world.nodes.values() if not node.has_another_log]
        for life in filter(None, lives):
            with suppress(CorruptionFound, StorageFailed, OSError):
                return [each for _, each in _records(life, dead_letter_topic(group))]
        return []

    def _dead(self, group: str) -> set[bytes]:
        """The group's dead letters, as far as anybody gives them now."""
        given = self._given(dead_letter_topic(group))
        return set() if given is None else set(given.messages.values())

    def _held(self) -> Held:
        """All that is held.

        Raises:
            Defect: nobody gives it.
        """
        given = self._given(TOPIC)
        if given is None:
            raise Defect("library", "no member gives what the log holds")
        return given

    def _given(self, name: str) -> Held | None:
        """What a member that serves holds of a topic; or, where that has rotted, another one; None
        where none gives it."""
        lives = [node.life for node in self.world.nodes.values() if node.life is not None]
        lives.sort(key=lambda life: not life.replica.leadership.serving)
        for life in lives:
            with suppress(CorruptionFound, StorageFailed, OSError):
                return self._held_by(life, name)
        return None

    def _held_by(self, life: Life, name: str) -> Held:
        topic = life.replica.machine.topics.get(name)
        found = Held({}, {})
        if topic is None:
            return found
        ref = TopicRef(name, topic.incarnation)
        for queue_id in range(len(topic.next_offsets)):
            found.fronts[queue_id] = life.replica.reader.bounds(ref, queue_id)[0]
        for queue_id, record in _records(life, name):
            found.messages[queue_id, record.queue_offset] = record.body
        return found

    def _frontier(self, group: str, queue_id: int) -> int:
        """Up to where the group is through with the queue, as far as anybody has applied."""
        lives = [node.life for node in self.world.nodes.values() if node.life is not None]
        return max(
            (life.replica.machine.offsets.of(group, TOPIC).get(queue_id, 0) for life in lives),
            default=0,
        )


def _records(life: Life, name: str) -> Iterator[tuple[int, DecodedRecord]]:
    """All that a member gives of a topic, each with its queue."""
    topic = life.replica.machine.topics.get(name)
    ref = TopicRef(name, 0 if topic is None else topic.incarnation)
    for queue_id in range(0 if topic is None else len(topic.next_offsets)):
        at, end = life.replica.reader.bounds(ref, queue_id)
        while at < end:
            pulled = life.replica.reader.pull(ref, queue_id, at, 1_000, 1 << 20)
            for record in decode_records(pulled.records):
                yield queue_id, record
            at = pulled.next_offset


def run_library(seed: int, duration_ms: int = DEFAULT_DURATION_MS) -> Outcome:
    """The schedule of `seed`."""
    started = time.process_time()
    run = LibraryRun(library_plan(seed, duration_ms))
    with quiet_logs(), collecting_garbage_by_hand(), library_in(run.network):
        try:
            failure = run.to_the_end()
        finally:
            for process in run.processes:
                process.die()
        outcome = _outcome(run, failure, started)
        del run
        gc.collect()  # what killed processes have left open is nobody's to be warned of
    return outcome


def _outcome(run: LibraryRun, failure: Failure | None, started: float) -> Outcome:
    return Outcome(
        seed=run.plan.seed,
        failure=failure,
        trace=run.world.timeline.trace,
        accepted=len(run.sent.told),
        stored=sum(told is not None and told.place is not None for told in run.sent.told.values()),
        handled={group: len(book.done) for group, book in run.books.items()},
        again={group: sum(n - 1 for n in book.begun.values()) for group, book in run.books.items()},
        processes=len(run.processes),
        cpu_s=time.process_time() - started,
        transcript=tuple(run.world.transcript),
    )
