"""One simulated node: the product's replica on a simulated machine.

Nothing of a replica is built, joined, kept or stopped here: that is `broker.replica`, the very file
that runs in production. This hands it its ports (a simulated disk and the threads on it, links over
the simulator's network, clocks in virtual time) and owns the machine's life: boot, kill, power cut,
pause, SIGTERM. What is a defect and what is a fault's consequence is decided here by one rule: a
node may stop for what was done to its disk, and for nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Protocol

from broker.doors.grpc.bounds import SERVER_GRACE_S
from broker.doors.grpc.broker import BrokerDoor
from broker.doors.grpc.cluster import wire_view
from broker.doors.grpc.consumers import ConsumersDoor
from broker.doors.grpc.deliveries import DeliveriesDoor
from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.groups import GroupsDoor
from broker.errors import BrokerError, ErrorCode
from broker.leader.budget import ANSWER_BYTES
from broker.leader.units import ProposedUnit
from broker.ports import OnBroken, OnMessage, ReplicaPorts, Rhythm
from broker.refilling import Refilling
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from chaos.sim.defect import Defect
from chaos.sim.disk import MachineDied, SimulatedDisk
from chaos.sim.endings import (
    check_doubt,
    check_rot_was_found,
    check_suspicion,
    check_the_end,
    goes_on_behind,
    is_excused,
    is_for_a_start,
    judge_ending,
    may_be_internal,
)
from chaos.sim.holed import HoledProcess
from chaos.sim.loop import ProcessLoop
from chaos.sim.machine import (
    CallContext,
    Life,
    Links,
    Machine,
    NoLatencies,
    OpenCall,
    Surroundings,
    Told,
)
from chaos.sim.machine_config import DATA
from chaos.sim.plan import MEMBER_DELAYS_MS, MEMBER_PACE, Plan
from chaos.sim.timeline import ActorDied
from chaos.sim.turns import CountedTurns
from chaos.sim.worker import Workers
from dledger.core.errors import CoreError
from dledger.core.types import NodeId
from dledger.errors import HardStateCorrupt
from dledger.greeting import Identity
from dledger.promises import Start
from store.errors import (
    BeyondRepair,
    CorruptionFound,
    GapFound,
    StorageFailed,
    StorageFull,
    StoreError,
    WrongIdentity,
)
from store.files import FULL_ERRNOS
from store.out_of_service import FILE_NAME as OUT_OF_SERVICE
from store.starting.errors import NotAMember, OutOfService

DRAIN_S = 1.0
WRITE_UNIT = "write_unit"
SNAPSHOT_RETRY_S = 0.5
SCRUB_PAUSE_S = 0.005
SCRUB_BESIDE_EVERY = 8  # each look reads every queue, and the next pass is close
SCRUB_LONGEST_PAUSE_S = 1.0
SCRUB_NOTE_S = 0.3
READ_S = (0.0, 0.0, 0.02, 0.3)  # how long a slow reader takes
LOOK_S = 0.02  # between two looks at whether the calls under way have their answers


class _FoundOut(Exception):
    """What a start found is known; the rest of it doesn't happen."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.start = start


class World(Surroundings, Protocol):
    """What a node is in."""

    def on_boot(self, node: SimNode) -> None: ...
    def on_stopped(self, node: SimNode) -> None: ...
    def reopen(self, node: SimNode) -> None: ...


class SimNode(Machine):
    """The process that comes and goes on a machine."""

    world: World

    def __init__(self, world: World, name: NodeId, number: int, plan: Plan) -> None:
        super().__init__(world, name, number, plan)
        self._calls = 0
        self._holed: HoledProcess  # the last one
        self._readers = plan.random(f"slow-readers/{name}")

    def boot(self) -> None:
        """The process starts: it recovers and joins, or fails to start."""
        if self.life is not None or self.refill is not None or self.is_ruined:
            return
        self.disk.power_on()
        if self.is_spare or self.is_kept_down or (self.is_past and self.is_taken_away()):
            return
        self._let_rot_pass()
        self._rot_looked_at = None
        self.boots += 1
        self.identity = replace(self.identity, level=self.known_level)
        timeline = self.world.timeline
        before = timeline.current
        number = self.number + 1
        loop = self.loop = ProcessLoop(timeline, self.name, number, self.plan.tuning.turn_us)
        loop.drift(self.drift)
        loop.wall_offset_ms = self.wall_offset_ms
        timeline.switch(loop)
        try:
            self._start(loop)
        except MachineDied:
            loop.die()
            self.life = None
            self.world.log(self.name, "died while it started")
            if self.disk.keeps_cache:
                self.disk.kill()
                self.disk.power_on()
            else:
                self.disk.power_off(self._disk_chance)
        except (StorageFull, StorageFailed, OSError, CorruptionFound, HardStateCorrupt) as error:
            loop.die()
            self.life = None
            self._failed_to_start(error)
        except (NotAMember, WrongIdentity) as error:
            loop.die()
            self.life = None
            if not (self.is_lost if isinstance(error, NotAMember) else self.is_swapped):
                raise Defect("no member", f"{self.name}: {error}") from error
            self.world.log(self.name, f"doesn't take part: {error}")
            self.disk.kill()
        except OutOfService as error:
            loop.die()
            self.life = None
            is_given_up = self.was_given_up and bool(error.divergence.recoveries)
            if not (self.altered_from or is_given_up):
                raise Defect("out of service", f"{self.name}: {error}") from error
            self.world.log(self.name, f"stays out of service: {error.divergence}")
            self.disk.kill()
        except Defect:
            raise
        except Exception as error:
            raise Defect("start", f"{self.name}: {error!r}") from error
        else:
            loop.leave()
        finally:
            timeline.switch(before)

    def _let_rot_pass(self) -> None:
        """What was read wrongly by the process before is read rightly."""
        if self.is_swapped:
            return  # it is on the other disk
        for path, at in self.passing_rot:
            before = self.rot.pop((path, at), None)
            if before is not None and self.disk.has(path):
                self.disk.regain(path)
                self.disk.spoil(path, at, bytes((before,)))
        self.passing_rot.clear()

    def _start(self, loop: ProcessLoop) -> None:
        made: list[Links] = []

        def connect(identity: Identity, on_message: OnMessage, on_broken: OnBroken) -> Links:
            self.identity = identity
            made.append(Links(self.world, self, on_message, on_broken))
            return made[0]

        turns = self._turns(loop)
        workers = Workers(self.world.timeline, loop, self.disk)
        ports = self._ports(workers, loop, turns, connect)
        try:
            replica = Replica.open(self.config, ports)
        except GapFound as found:
            if not self.has_log_rot:
                raise Defect("false corruption", f"{self.name}: {found}") from found
            refilling = Refilling(self.config, ports, found)
            self.world.log(self.name, f"asks its peers for {found.missing}")
            self.refill = loop
            self._holed = HoledProcess(refilling, workers, loop)
            process = loop.create_task(self._get_back(self._holed))
            process.add_done_callback(partial(_tell_of_crash, loop))
            return
        self.disk.take_latency()
        self.has_started = True
        if self.disk.has(DATA / OUT_OF_SERVICE):
            raise Defect("back in service", f"{self.name} starts as a member again")
        life = self.life = Life(
            loop,
            replica,
            made[0],
            BrokerDoor(replica.services),
            GroupsDoor(replica.services),
            ConsumersDoor(replica.services),
            DeliveriesDoor(replica.services),
            turns,
        )
        report = replica.log.recovery
        self.world.log(
            self.name,
            f"started: log to {report.last_index}, cut {report.cut_bytes} bytes, "
            f"applied {replica.machine.applied_index}",
        )
        if not report.clean_shutdown:
            check_rot_was_found(self)
        self.world.on_boot(self)
        replica.start()
        check_doubt(self, replica)
        check_suspicion(self, replica)
        process = loop.create_task(self._live(life))
        process.add_done_callback(partial(_tell_of_crash, loop))

    def _turns(self, loop: ProcessLoop) -> CountedTurns:
        steps, calm_us = self.plan.tuning.turn_steps, self.plan.duration_ms * 1_000
        late = Random(f"{self.plan.seed}/late-pauses/{self.name}")
        return CountedTurns(self.world.timeline, loop, steps, late, calm_us)

    def _ports(
        self,
        workers: Workers,
        loop: ProcessLoop,
        turns: CountedTurns,
        connect: Callable[[Identity, OnMessage, OnBroken], Links],
    ) -> ReplicaPorts:
        tuning = self.plan.tuning
        return ReplicaPorts(
            files=workers.disk,
            hand=workers,
            connect=connect,
            store_host=(bytes((10, 0, 0, self.number + 1)), 7000),
            call_soon=loop.post,
            turns=turns,
            call_from_worker=workers.announce,
            now_ms=loop.wall_ms,
            random=Random(self.draw()),
            latencies=NoLatencies(),
            machinery=replace(self.machinery, workers=workers.make, clock=loop.time),
            rhythm=Rhythm(
                housekeeping_s=tuning.housekeeping_ms / 1e3,
                drain_s=DRAIN_S,
                apply_slice_bytes=tuning.apply_slice_bytes,
                snapshots=SnapshotPace(tuning.snapshot_entries, retry_s=SNAPSHOT_RETRY_S),
                scrub=ScrubPace(
                    shortest_pause_s=SCRUB_PAUSE_S,
                    longest_pause_s=SCRUB_LONGEST_PAUSE_S,
                    between_s=tuning.scrub_between_ms / 1e3,
                    beside_every=SCRUB_BESIDE_EVERY,
                    note_s=SCRUB_NOTE_S,
                ),
                log_start_s=tuning.log_start_ms / 1e3,
                retention_s=tuning.retention_ms / 1e3,
                topic_slack_ms=tuning.topic_slack_ms,
                groups=MEMBER_PACE,
                delays_ms=MEMBER_DELAYS_MS,
                answer_bytes=tuning.answer_bytes or ANSWER_BYTES,
                part_weight=1,  # each batch of a Send has a turn of its own
                hastens_first_election=tuning.hastens_first_election,
            ),
            known_level=self.known_level,
        )

    async def _get_back(self, holed: HoledProcess) -> None:
        """What a node's process does that has found gaps in its log, up to its next start."""
        self.disk.take_latency()
        failure: Exception | None = None
        is_whole = False
        try:
            is_whole = await holed.until_whole()
        except (BeyondRepair, CorruptionFound, OSError) as error:
            failure = error
        if failure is None:
            self.refills += is_whole
            self._bury(
                "has got back what was missing" if is_whole else "stopped before it is whole"
            )
            self.disk.kill()
            if is_whole:
                self.world.reopen(self)
            return
        self.world.log(self.name, f"starts no more: {failure}")
        if not is_excused(self, failure):
            raise Defect("not refilled", f"{self.name}: {failure!r}") from failure
        self.is_ruined = not isinstance(failure, OSError)
        self._bury("ended without what is missing")
        self.disk.kill()

    async def _live(self, life: Life) -> None:
        """What a node's process does once it has started, to its end."""
        await life.replica.wait()
        is_clean = await life.replica.stop(partial(self._shut_doors, life))
        check_the_end(self, life, is_clean=is_clean)
        self._bury("stopped" if is_clean else "ended by a failure")
        self.disk.kill()
        if life.replica.wants_reopening and is_clean and not life.is_stopping:
            self.installs += 1
            self.world.reopen(self)

    async def _shut_doors(self, life: Life) -> None:
        """Takes no more calls. Those under way end within the product's grace: the replica has
        answered who waited, and a long pull has its pieces left."""
        life.is_shut = True
        life.turns.hurry()
        await asyncio.sleep(LOOK_S)
        for _ in range(round(SERVER_GRACE_S / LOOK_S)):
            if not (life.calls or life.streams):
                break
            await asyncio.sleep(LOOK_S)
        if life.streams:
            raise Defect("unanswered", f"{self.name} stops, and streams of members go on")
        if life.calls:
            methods = sorted(call.method for call in life.calls.values())
            raise Defect("unanswered", f"{self.name} stops, and {', '.join(methods)} wait")

    def _failed_to_start(self, error: Exception) -> None:
        self.world.log(self.name, f"failed to start: {error}")
        if isinstance(error, (CorruptionFound, HardStateCorrupt)):
            if not self.spoiled:
                raise Defect("false corruption", f"{self.name}: {error}") from error
            is_asked_for = isinstance(error, GapFound)  # and there is nobody to ask
            if not (is_asked_for or self.is_foreign or self.has_lied) and goes_on_behind(self):
                raise Defect("not asked for", f"{self.name}: {error}") from error
            self.is_ruined = True
        elif not self._may_not_start(error):
            raise Defect("start", f"{self.name}: {error!r}") from error
        self.disk.kill()

    def _may_not_start(self, error: Exception) -> bool:
        """Whether a call of the start was made to fail; for want of space it fails only on a disk
        that it has never started on."""
        was_made_to = self.disk.failures.have_caused(error)
        if not _is_for_space(error):
            return was_made_to
        return (was_made_to or self.disk.is_limited) and not self.has_started

    # --- how it ends -------------------------------------------------------------------------

    def kill(self, why: str = "killed") -> None:
        """SIGKILL: the memory is gone, the page cache stays."""
        if self.life is not None or self.refill is not None:
            self._bury(why)
            self.disk.kill()

    def cut_power(self, why: str = "lost power") -> None:
        """The machine is off: what was not synced is lost."""
        self._bury(why)
        self.disk.power_off(self._disk_chance)

    def die_midway(self) -> None:
        """The end that the disk has met in the midst of an operation."""
        if self.disk.keeps_cache:
            self.kill("killed in the midst of a disk operation")
            self.disk.power_on()
        else:
            self.cut_power("lost power in the midst of a disk operation")

    def stop(self) -> None:
        """SIGTERM."""
        life = self.life
        if self.refill is not None:
            self.world.timeline.after(0, self.refill, self._holed.ask_to_stop)
        if life is not None and not life.is_stopping:
            life.is_stopping = True
            self.world.timeline.after(0, life.loop, life.replica.ask_to_stop)

    def hand_over(self, target: NodeId | None) -> None:
        """An operator asks for leadership to move; a refusal is fine."""
        with contextlib.suppress(CoreError):
            self._alive.replica.driver.transfer_leadership(target)

    def move_start(self, index: int) -> None:
        """Whoever keeps the log's bounds asks for its front to go; a refusal is fine."""
        life = self._alive

        async def ask() -> None:
            with contextlib.suppress(BrokerError):
                await life.replica.propose_log_start(index)

        life.loop.create_task(ask())

    def judge(self, life: Life) -> None:
        """A part failed for good, and the process is on its way to its end: was there a reason?"""
        error = life.failed
        if error is None or life.is_judged:
            return
        life.is_judged = True
        if isinstance(error, Defect):
            raise error
        self.world.log(self.name, f"failed: {type(error).__name__}: {error}")
        if not is_excused(self, error):
            raise Defect("node failed", f"{self.name}: {type(error).__name__}: {error}") from error
        judge_ending(self, error)
        if isinstance(error, (CorruptionFound, BeyondRepair)):
            self.is_ruined = not is_for_a_start(error)

    def _bury(self, why: str) -> None:
        if self.refill is not None:
            self.world.log(self.name, why)
            self.refill.die()
            self.refill = None
            self.world.network.on_process_gone(self.name)
            return
        life, self.life = self.life, None
        if life is None:
            return
        self.world.log(self.name, why)
        life.loop.die()
        self.world.on_stopped(self)

    def start_on(self, disk: SimulatedDisk) -> Start | None:
        """What a process that was started on `disk` would find there; None: it wouldn't start."""
        timeline = self.world.timeline
        loop = ProcessLoop(timeline, self.name, self.number + 1, self.plan.tuning.turn_us)
        before = timeline.current

        def connect(identity: Identity, on_message: OnMessage, on_broken: OnBroken) -> Links:
            raise _FoundOut(identity.start)

        turns = self._turns(loop)
        timeline.switch(loop)
        try:
            workers = Workers(timeline, loop, disk)
            Replica.open(self.config, self._ports(workers, loop, turns, connect))
        except _FoundOut as found:
            return found.start
        except (StoreError, HardStateCorrupt, NotAMember, OSError) as error:
            self.world.log(self.name, f"wouldn't start on a copy: {error}")
        finally:
            loop.die()
            timeline.switch(before)
        return None

    def pause(self) -> None:
        """SIGSTOP."""
        if self.life is not None:
            self.life.loop.paused = True
            self.world.log(self.name, "paused")

    def resume(self) -> None:
        """SIGCONT."""
        if self.life is not None and self.life.loop.paused:
            self.world.log(self.name, "resumed")
            self.world.timeline.resume(self.life.loop)

    # --- calls -------------------------------------------------------------------------------

    @property
    def _alive(self) -> Life:
        if self.life is None:
            raise RuntimeError(f"{self.name} is down")
        return self.life

    async def serve(self, method: str, request: object) -> object:
        """The answer of a service's method.

        Raises:
            BrokerError: as the client learns it.
        """
        life = self._alive
        context, told = CallContext(), request
        if isinstance(told, Told):
            context.told, request = told.metadata, told.request
            heed_epoch(life.replica.services.cluster, request, context)  # type: ignore[arg-type]
        if method == "view":
            return wire_view(life.replica.leadership.view())
        handler = (
            self._write_unit
            if method == WRITE_UNIT
            else getattr(life.door, method, None)
            or getattr(life.groups_door, method, None)
            or getattr(life.consumers_door, method, None)
            or getattr(life.deliveries_door, method)
        )
        self._calls += 1
        number = self._calls
        life.calls[number] = OpenCall(method, request, asyncio.current_task())
        try:
            answer: object = await handler(request, context)
            if isinstance(told, Told):
                told.answered = context.answered
                told.served_in = life.core.configuration.epoch.number
                told.was_shut = life.replica.leadership.fence.is_shut
            return answer
        except BrokerError:
            raise
        except (CorruptionFound, StorageFailed, OSError) as error:
            if may_be_internal(self, error):
                raise BrokerError(ErrorCode.INTERNAL, str(error)) from error
            raise
        finally:
            del life.calls[number]
            self._finish(life, context)

    def _finish(self, life: Life, context: CallContext) -> None:
        """The call is over; while there are faults, for who reads slowly after a while."""
        is_calm = self.world.timeline.now >= self.plan.duration_ms * 1_000
        if is_calm or not self.plan.tuning.answer_bytes:
            context.finish()
        else:
            life.loop.call_later(self._readers.choice(READ_S), context.finish)

    async def _write_unit(self, wanted: object, context: object) -> bool:
        """Whether a unit took effect, written past the door, which has no such call yet."""
        assert isinstance(wanted, ProposedUnit)
        result = await self._alive.replica.appender.units.propose(wanted)
        return result.refusal is None


def _is_for_space(error: Exception) -> bool:
    """What a full disk is told by."""
    if isinstance(error, StorageFull):
        return not error.scarce
    return isinstance(error, OSError) and error.errno in FULL_ERRNOS


def _tell_of_crash(loop: ProcessLoop, process: asyncio.Task[None]) -> None:
    """An error of a process, its stop included, ends the run."""
    error = None if process.cancelled() else process.exception()
    if error is not None and not isinstance(error, ActorDied):
        loop.crashes.append(error)
