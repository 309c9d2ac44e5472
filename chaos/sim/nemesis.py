"""Makes faults happen: one method a kind, each with what ends it.

This owns when a fault begins and ends, and the two limits that keep the promises testable: a
majority of disks never rots, and at the end everything is healed. Whom a fault meets is drawn from
the fault's own randomness at the moment it happens.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Protocol

from broker.ending import DISK_ERRNOS
from broker.errors import BrokerError
from broker.leader.changes import Change
from chaos.sim import network
from chaos.sim.altered import AlteredLogs
from chaos.sim.churn import Churn
from chaos.sim.clock_watch import BELIEVED_US
from chaos.sim.copies import Copies, may_harm
from chaos.sim.defect import Defect
from chaos.sim.disk_swaps import find_again, lose_disk, put_right
from chaos.sim.links import Thief
from chaos.sim.machine import Life
from chaos.sim.machine_config import DATA
from chaos.sim.network import FAIR, Garbling, Link
from chaos.sim.node import SimNode
from chaos.sim.operator import Operator
from chaos.sim.plan import Fault, FaultEvent
from chaos.sim.restored import spoil_a_snapshot
from chaos.sim.rot import LogRot, cold_bytes
from chaos.sim.timeline import ActorDied
from chaos.sim.world import NOBODY, World
from dledger.core.types import Configuration, NodeId, Role
from dledger.records.layout import UNIT, file_name

SLOW_SYNC_US = 200_000
STALLED_SYNC_US = 700_000
REVIVE_US = 200_000
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
YEAR_MS = 365 * DAY_MS
# Of calls that fail though the disk is there and has room; those of `DISK_ERRNOS` come first.
ODD_ERRNOS = (
    *(errno.EIO, errno.EIO, errno.EROFS),
    *(errno.EACCES, errno.EPERM),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
# Where there is one machine these pass: they are between two, or somebody else has to tell.
BETWEEN_TWO = frozenset(
    {
        *(Fault.BREAK_STREAMS, Fault.MUTE_STREAMS, Fault.STOLEN_STREAM),
        *(Fault.SWAP, Fault.OLDER_COPY),
    }
)


class _Strike(Protocol):
    def __call__(self, chance: Random) -> None: ...


class Nemesis:
    """Carries out a plan's faults on a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_over = False
        self._righted: dict[NodeId, int] = {}  # until when somebody may believe a clock's past
        self._operator = Operator(world)
        self.copies = Copies(world, self._operator)
        self.churn = Churn(world, world.plan.random("churn/lingering"))
        self._strikes: dict[Fault, _Strike] = {
            Fault.KILL: self._kill,
            Fault.KILL_MAJORITY: self._kill_majority,
            Fault.POWER: self._power,
            Fault.POWER_MIDWAY: self._power_midway,
            Fault.POWER_ALL: self._power_all,
            Fault.RESTART_LOOP: self._restart_loop,
            Fault.TERMINATE: self._terminate,
            Fault.PAUSE: self._pause,
            Fault.PAUSE_LEADER: self._pause_leader,
            Fault.HALVES: self._halves,
            Fault.ISOLATE_LEADER: self._isolate_leader,
            Fault.ISOLATE: self._isolate,
            Fault.RING: self._ring,
            Fault.BRIDGE: self._bridge,
            Fault.ONE_WAY: self._one_way,
            Fault.BREAK_STREAMS: self._break_streams,
            Fault.TRANSFER: self._transfer,
            Fault.CLIENT_CUT: self._client_cut,
            Fault.CLOCK_STEP: self._clock_step,
            Fault.CLOCK_LEAP: self._clock_leap,
            Fault.CLOCKS_LEAP: self._clocks_leap,
            Fault.CLOCK_DRIFT: self._clock_drift,
            Fault.SLOW_DISK: self._slow_disk,
            Fault.WRITE_ERROR: self._write_error,
            Fault.SYNC_ERROR: self._sync_error,
            Fault.ODD_ERROR: self._odd_error,
            Fault.DISK_FULL: self._disk_full,
            Fault.BIT_FLIP: self._bit_flip,
            Fault.KILL_MIDWAY: self._kill_midway,
            Fault.STALE_LEADER: self._stale_leader,
            Fault.KILLER: self._killer,
            Fault.SILENCE: self._silence,
            Fault.MUTE_STREAMS: self._mute_streams,
            Fault.STOLEN_STREAM: self._stolen_stream,
            Fault.SLOW_CONNECT: self._slow_connect,
            Fault.GARBLE: self._garble,
            Fault.LIAR: self._liar,
            Fault.WIPE: self._wipe,
            Fault.SWAP: self._swap,
            Fault.OLDER_COPY: self._older_copy,
            Fault.RETURNED: self._returned_disk,
            Fault.QUEUE_ROT: self._queue_rot,
            Fault.CHURN: self.churn.change,
            Fault.MOVE_START: self._move_start,
            Fault.SNAPSHOT_ROT: self._snapshot_rot,
            Fault.PRIORITY: self._priority,
            Fault.ALTERED_LOG: AlteredLogs(world, self._operator).strike,
            Fault.LOG_ROT: LogRot(world, self._later, self._power_on).strike,
        }

    def schedule(self, events: Iterable[FaultEvent]) -> None:
        """All of `events` are going to happen."""
        for event in events:
            self._world.timeline.at(event.time_ms * 1000, NOBODY, self._strike, event)

    def make_peace(self) -> None:
        """No more faults; what is broken and can be healed is healed."""
        self._is_over = self.copies.is_over = self.churn.is_over = True
        world = self._world
        world.network.heal(FAIR)
        world.client_cuts.clear()
        self._look_at_clocks()
        for node in world.nodes.values():
            node.disk.heal()
            node.sync_us = world.plan.tuning.sync_us
            node.drift, node.wall_offset_ms = 1.0, 0
            if node.life is not None:
                node.life.loop.drift(1.0)
                node.life.loop.wall_offset_ms = 0
            node.resume()
            if node.has_rotten_queues:
                node.kill("is started again, to find what nobody has read")
        world.log("nemesis", "everything is healed")
        self._revive()

    def _revive(self) -> None:
        """A supervisor starts what is down, again and again: a stop may be under way."""
        for node in self._nodes:
            node.boot()
        self._world.timeline.after(REVIVE_US, NOBODY, self._revive)

    # --- how ---------------------------------------------------------------------------------

    def _strike(self, event: FaultEvent) -> None:
        if self._is_over or (event.kind in BETWEEN_TWO and len(self._nodes) < 2):
            return
        chance = self._world.plan.random(f"fault/{event.number}")
        self._world.log("nemesis", f"#{event.number} {event.kind.value}")
        self._strikes[event.kind](chance)

    def _later(self, delay_ms: float, call: Callable[..., object], *arguments: object) -> None:
        """`call` after a while, unless peace has come."""

        def unless_over() -> None:
            if not self._is_over:
                call(*arguments)

        self._world.timeline.after(int(delay_ms * 1000), NOBODY, unless_over)

    @property
    def _nodes(self) -> list[SimNode]:
        return list(self._world.nodes.values())

    def _any(self, chance: Random) -> SimNode:
        """Some node; often the leader, where most can go wrong."""
        leader = self._leader()
        return (
            leader if leader is not None and chance.random() < 0.4 else chance.choice(self._nodes)
        )

    def _leader(self) -> SimNode | None:
        for node in self._nodes:
            if node.life is not None and node.life.core.role is Role.LEADER:
                return node
        return None

    def _names(self, chance: Random) -> list[NodeId]:
        names = list(self._world.members)
        chance.shuffle(names)
        return names

    # --- processes ---------------------------------------------------------------------------

    def _down_and_up(self, node: SimNode, chance: Random) -> None:
        self._later(chance.choice((1, 50, 500, 2000)) * (0.5 + chance.random()), node.boot)

    def _kill(self, chance: Random) -> None:
        node = self._any(chance)
        node.kill()
        self._down_and_up(node, chance)

    def _kill_majority(self, chance: Random) -> None:
        for name in self._names(chance)[: len(self._nodes) // 2 + 1]:
            self._world.nodes[name].kill()
            self._down_and_up(self._world.nodes[name], chance)

    def _power(self, chance: Random) -> None:
        node = self._any(chance)
        node.cut_power()
        self._down_and_up(node, chance)

    def _power_midway(self, chance: Random) -> None:
        node = self._any(chance)
        node.disk.cut_power_in(chance.randrange(1, 40))
        self._later(2_000, self._power_on, node)

    def _kill_midway(self, chance: Random) -> None:
        node = self._any(chance)
        node.disk.cut_power_in(chance.randrange(1, 40), keeps_cache=True)
        self._later(2_000, self._power_on, node)

    def _power_on(self, node: SimNode) -> None:
        if node.disk.is_off:
            node.boot()
            if node.life is None and node.disk.is_off:
                self._later(100, self._power_on, node)
        elif node.life is None:
            node.boot()

    def _power_all(self, chance: Random) -> None:
        for node in self._nodes:
            node.cut_power()
            self._down_and_up(node, chance)

    def _restart_loop(self, chance: Random) -> None:
        node = self._any(chance)
        for turn in range(5):
            self._later(turn * 150, node.kill)
            self._later(turn * 150 + chance.randrange(1, 140), node.boot)

    def _terminate(self, chance: Random) -> None:
        node = self._any(chance)
        node.stop()
        self._later(3_000, node.boot)

    def _pause(self, chance: Random) -> None:
        node = self._any(chance)
        node.pause()
        self._later(chance.choice((20, 200, 1500)), node.resume)

    def _pause_leader(self, chance: Random) -> None:
        leader = self._leader()
        if leader is not None:
            leader.pause()
            self._later(chance.choice((200, 600, 2500)), leader.resume)

    def _stale_leader(self, chance: Random) -> None:
        """A leader sleeps through its own end, and wakes up where only clients reach it
        (etcd #20418)."""
        leader = self._leader()
        if leader is None:
            return
        links = network.between([leader.name], self._world.members)
        self._world.network.cut.update(links)
        self._world.log("network", f"{leader.name} is cut off from its peers")
        leader.pause()
        asleep_ms = chance.choice((400, 800, 1500))
        self._later(asleep_ms, leader.resume)
        self._later(asleep_ms + chance.choice((100, 400, 1000)), self._heal, links)

    def _transfer(self, chance: Random) -> None:
        leader = self._leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        target = chance.choice([None, *self._world.members])
        self._world.log("nemesis", f"asks {leader.name} to hand over to {target or 'anyone'}")
        self._world.timeline.after(0, leader.life.loop, leader.hand_over, target)

    def _priority(self, chance: Random) -> None:
        """An operator says who is preferred as the leader; a refusal is fine."""
        leader = self._leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        voters = sorted(leader.life.core.configuration.voters)
        prefer = chance.choice([*voters, *voters, ""])
        self._world.log("operator", f"asks {leader.name} to prefer {prefer or 'nobody'}")
        self._world.timeline.after(0, leader.life.loop, self._ask_to_prefer, leader.life, prefer)

    def _ask_to_prefer(self, leader: Life, prefer: str) -> None:
        """On the leader's event loop: its answer is awaited there."""
        task = leader.loop.create_task(leader.replica.membership.change(Change(prefer=prefer)))
        task.add_done_callback(self._on_preferred)

    def _on_preferred(self, done: asyncio.Task[Configuration]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, (BrokerError, ActorDied)):
            raise Defect("preferring", repr(error)) from error

    def _move_start(self, chance: Random) -> None:
        leader = self._leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        replica = leader.life.replica
        first, applied = replica.machine.log_start.first_index, replica.machine.applied_index
        index = first + chance.randrange(1, max(2, applied - first + 1))
        self._world.log("nemesis", f"asks {leader.name} to let entries before {index} go")
        self._world.timeline.after(0, leader.life.loop, leader.move_start, index)

    # --- partitions --------------------------------------------------------------------------

    def _cut(self, links: list[Link], chance: Random) -> None:
        cut = self._world.network.cut
        cut.update(links)
        names = sorted({name for link in links for name in link})
        self._world.log("network", f"{len(links)} links are cut among {', '.join(names)}")
        self._later(chance.choice((100, 700, 3000)) * (0.5 + chance.random()), self._heal, links)
        if chance.random() < 0.3:  # a connection that is noticed to be dead
            for one, other in links:
                self._later(chance.randrange(10, 1000), self._notice, one, other)

    def _notice(self, one: NodeId, other: NodeId) -> None:
        if (one, other) in self._world.network.cut:
            self._world.network.give_up(one, other)

    def _heal(self, links: list[Link]) -> None:
        self._world.network.cut.difference_update(links)
        self._world.log("network", f"{len(links)} links work again")

    def _halves(self, chance: Random) -> None:
        names = self._names(chance)
        middle = len(names) // 2
        self._cut(network.between(names[:middle], names[middle:]), chance)

    def _isolate_leader(self, chance: Random) -> None:
        leader = self._leader()
        if leader is not None:
            self._cut(network.between([leader.name], self._world.members), chance)

    def _isolate(self, chance: Random) -> None:
        self._cut(network.between(self._names(chance)[:1], self._world.members), chance)

    def _ring(self, chance: Random) -> None:
        self._cut(network.ring(self._names(chance)), chance)

    def _bridge(self, chance: Random) -> None:
        self._cut(network.bridge(self._names(chance)), chance)

    def _one_way(self, chance: Random) -> None:
        victim = self._any(chance).name
        others = [name for name in self._world.members if name != victim]
        self._cut(network.one_way(victim, others, sends=chance.random() < 0.5), chance)

    def _break_streams(self, chance: Random) -> None:
        one, other = self._names(chance)[:2]
        self._world.log("network", f"streams between {one} and {other} break")
        self._world.network.reset(one, other)

    def _silence(self, chance: Random) -> None:
        links = network.between(self._world.members, self._world.members)
        self._world.network.cut.update(links)
        self._world.log("network", "nobody hears of anybody")
        self._later(chance.choice((300, 1_000, 4_000)), self._heal, links)

    def _mute_streams(self, chance: Random) -> None:
        names = self._names(chance)
        for one, other in pairwise(names[: chance.randint(2, len(names))]):
            self._world.log("network", f"streams between {one} and {other} carry nothing any more")
            self._world.network.mute(one, other)

    def _stolen_stream(self, chance: Random) -> None:
        world = self._world
        thief = Thief(world.network, world.timeline, NOBODY, chance)
        for _ in range(chance.choice((1, 1, 2, 6))):
            name, victim = self._names(chance)[:2]
            world.log("nemesis", f"somebody calls {victim} as {name}")
            thief.steal(self._world.nodes[name].identity, victim)

    def _slow_connect(self, chance: Random) -> None:
        self._world.network.connecting_us = chance.choice((300_000, 3_000_000))
        self._later(chance.choice((1_000, 4_000)), setattr, self._world.network, "connecting_us", 0)

    # --- what is said ------------------------------------------------------------------------

    def _garble(self, chance: Random) -> None:
        """Bits flip on all links, for a while."""
        network = self._world.network
        network.garbling = Garbling(chance.choice((0.001, 0.01, 0.1)), chance)
        self._later(chance.randrange(200, 3000), setattr, network, "garbling", None)

    def _liar(self, chance: Random) -> None:
        """One member says absurd and contradictory things among the true ones, for a while. As a
        rule the leader, whose word moves most."""
        leader = self._leader()
        node = leader if leader and chance.random() < 0.6 else self._any(chance)
        if node.is_foreign or not self._may_harm(node):
            return  # it may be shut out for what it says of itself, like a disk that is lost
        node.has_lied = True
        self.copies.suspect(node)
        liars = self._world.network.liars
        liars[node.name] = chance
        self._world.watch.clocks.distrust(node.name)
        self._world.log("nemesis", f"{node.name} lies")
        self._later(chance.randrange(200, 4000), liars.pop, node.name, None)

    # --- clients -----------------------------------------------------------------------------

    def _client_cut(self, chance: Random) -> None:
        node = self._any(chance).name
        clients = [f"producer-{i}" for i in range(4)] + [f"consumer-{i}" for i in range(3)]
        cuts = [(client, node) for client in clients if chance.random() < 0.5]
        ends_ms = chance.randrange(200, 2000)
        cuts += [(name, node) for name in self._world.members_of_crews if chance.random() < 0.5]
        self._world.client_cuts.update(cuts)
        self._later(ends_ms, self._world.client_cuts.difference_update, cuts)

    # --- clocks and disks --------------------------------------------------------------------

    def _clock_step(self, chance: Random) -> None:
        node = self._any(chance)
        by_ms = chance.choice((-3_600_000, -500, 500, 86_400_000))
        self._set_clock(node, node.wall_offset_ms + by_ms)

    def _clock_leap(self, chance: Random) -> None:
        """Far enough that whatever is forgotten by time would be; back before 1970, too. Of a
        minority at a time: if that many are wrong, or were a moment ago, one is put right."""
        node, now_us = self._any(chance), self._world.now_us
        wrong = [
            each
            for each in self._nodes
            if each is not node
            and (each.wall_offset_ms or self._righted.get(each.name, 0) > now_us)
        ]
        if len(wrong) >= (len(self._nodes) - 1) // 2:
            self._set_clock(chance.choice(wrong), 0)
            return
        self._set_clock(node, _leap_ms(chance))
        if chance.random() < 0.5:
            self._later(chance.randrange(500, 6_000), self._set_clock, node, 0)

    def _clocks_leap(self, chance: Random) -> None:
        """Of any number of clocks: to the same time, each to another, or to the right one."""
        names = self._names(chance)
        leaping = [self._world.nodes[name] for name in names[: chance.randint(1, len(names))]]
        is_together = chance.random() < 0.5
        same_ms = chance.choice((0, _leap_ms(chance), _leap_ms(chance)))
        for node in leaping:
            self._set_clock(node, same_ms if is_together else _leap_ms(chance))
        if chance.random() < 0.3:
            after_ms = chance.randrange(500, 6_000)
            for node in leaping:
                self._later(after_ms, self._set_clock, node, 0)

    def _set_clock(self, node: SimNode, offset_ms: int) -> None:
        self._look_at_clocks()
        node.wall_offset_ms = offset_ms
        self._righted[node.name] = self._world.now_us + BELIEVED_US
        if node.life is not None:
            node.life.loop.wall_offset_ms = offset_ms
        self._look_at_clocks()

    def _look_at_clocks(self) -> None:
        self._world.watch.clocks.look(self._world.now_us)

    def _clock_drift(self, chance: Random) -> None:
        node = self._any(chance)
        self._look_at_clocks()
        node.drift = chance.choice((0.8, 0.98, 1.02, 1.25))
        if node.life is not None:
            node.life.loop.drift(node.drift)

    def _slow_disk(self, chance: Random) -> None:
        node = self._any(chance)
        before = self._world.plan.tuning.sync_us
        node.sync_us = chance.choice((10_000, SLOW_SYNC_US, STALLED_SYNC_US))
        node.disk.failures.append("slow")
        self._later(chance.randrange(300, 3000), setattr, node, "sync_us", before)

    def _fail_disk(self, chance: Random, operation: str) -> None:
        node = self._any(chance)
        name = chance.choice(("", "0000", "hard_state"))
        node.disk.fail_next(operation, chance.choice(sorted(DISK_ERRNOS)), name)
        self._later(2_500, node.boot)
        self._later(5_000, node.boot)

    def _write_error(self, chance: Random) -> None:
        self._fail_disk(chance, "pwritev")

    def _sync_error(self, chance: Random) -> None:
        self._fail_disk(chance, chance.choice(("fdatasync", "fsync", "fsync_directory")))

    def _odd_error(self, chance: Random) -> None:
        """Soon, or in the midst of the next start, and now and then for a good while."""
        node = self._any(chance)
        count = chance.choice((1, 1, 1, 2, 5, 40))
        node.disk.fail_calls(chance.randrange(1, 300), chance.choice(ODD_ERRNOS), count)
        if chance.random() < 0.3:
            node.kill()
            self._later(chance.randrange(100), node.boot)
        self._later(2_500, node.boot)
        self._later(5_000, node.boot)

    def _disk_full(self, chance: Random) -> None:
        node = self._any(chance)
        disk = node.disk
        disk.capacity_bytes = disk.used_bytes() + chance.choice((0, 1_000, 20_000))
        disk.failures.append("no space")
        if chance.random() < 0.3:  # found out by the fsync, as where blocks are given late
            disk.fail_next("fsync", errno.ENOSPC, "consumequeue")
        if chance.random() < 0.6:
            # To the byte, in the midst of whatever it does, and nothing that it frees comes back.
            room = chance.choice((0, 0, 1, 19, 21, 300, 600, chance.randrange(20_000)))
            disk.fill_up(room, in_operations=chance.randrange(60))
        self._later(chance.randrange(500, 4000), disk.make_room)
        self._later(4_100, node.boot)

    def _may_harm(self, node: SimNode) -> bool:
        return may_harm(node, self._world)

    def _is_one_altered(self) -> bool:
        return any(each.altered_from for each in self._nodes)

    def _returned_disk(self, chance: Random) -> None:
        """A disk that was replaced is found again and started, as if nothing had happened. It knows
        no better; whoever knows of its successor may not listen to it."""
        found = [
            each
            for each in self._nodes
            if each.replaced and not each.is_harmed and not each.is_swapped and each.is_running
        ]
        if not found or not self._may_harm(found[0]) or self._is_one_altered():
            return
        node = chance.choice(found)
        find_again(node)
        node.boot()
        self.copies.watch()
        back_us = chance.randrange(300_000, 2_500_000)  # also when the faults are over
        self._world.timeline.after(back_us, NOBODY, partial(put_right, node))

    def _older_copy(self, chance: Random) -> None:
        """A copy is taken now, and put back later if everybody else can tell by then; in the same
        start of the process, or after others."""
        node = self._any(chance)
        if not node.is_running or node.is_harmed or node.is_swapped or self._is_one_altered():
            return
        if chance.random() < 0.4 and self._corner(node, chance):
            return
        age_us = 1_000 * chance.choice((50, 300, 1_000, 3_000))
        witness = self._world.nodes[next(name for name in self._names(chance) if name != node.name)]
        then = partial(self._forget, witness if chance.random() < 0.5 else None)
        self.copies.take(node, int(age_us * (0.5 + chance.random())), chance, then)
        if chance.random() < 0.3:
            self._later(chance.randrange(1, 200), node.kill)
            self._later(chance.randrange(200, 400), node.boot)

    def _forget(self, witness: SimNode | None) -> None:
        """Whoever knows of a promise is started again before it needs to."""
        if witness is not None and witness.is_running:
            witness.kill()
            witness.boot()

    def _corner(self, node: SimNode, chance: Random) -> bool:
        """The schedule to which an older copy is worst: a majority with `node` in it goes on
        without the rest, which hears of it by `node` alone; when that has been put back, it is left
        with those who lag. Not if `node` leads."""
        leader = self._leader()
        if leader is None or leader is node:
            return False
        others = [name for name in self._names(chance) if name not in (node.name, leader.name)]
        holders = [leader.name, *others[: len(self._nodes) // 2 - 1]]
        laggards = others[len(holders) - 1 :]
        first = network.between(holders, laggards)
        second = network.between(holders, [node.name])
        cut = self._world.network.cut
        cut.update(first)
        self._world.log("network", f"{', '.join(laggards)} hear of nobody but {node.name}")
        self.copies.take(
            node, chance.choice((1_300_000, 2_500_000)), chance, partial(cut.update, second)
        )
        self._later(chance.choice((4_000, 6_000)), self._heal, [*first, *second])
        return True

    def _wipe(self, chance: Random) -> None:
        """A disk is lost, or isn't mounted: the program starts on an empty one, and an operator
        replaces it. Nothing acknowledged is lost while a majority of disks is intact."""
        node = self._any(chance)
        if not node.is_running or node.is_lost or node.is_swapped or not self._may_harm(node):
            return
        if node.is_past or node.is_returned or any(each.is_past for each in self._nodes):
            return  # the new disk would know nothing of the older copy's promises
        if self._is_one_altered():
            return  # it may be who leads for a moment, and gives its own to who has nothing
        lose_disk(node)
        self._down_and_up(node, chance)
        self._operator.replace(node)

    def _swap(self, chance: Random) -> None:
        """Two disks are mixed up: neither node starts until they are put right."""
        one, other = chance.sample(self._nodes, 2)
        pair = (one, other)
        if any(each.is_foreign or each.is_swapped or each.is_ruined for each in pair):
            return
        if self._is_one_altered():
            return
        self._exchange(one, other)
        for node in (one, other):
            self._later(chance.randrange(10, 500), node.boot)
        # Also when the faults are over.
        back_us = chance.randrange(300_000, 2_000_000)
        self._world.timeline.after(back_us, NOBODY, self._exchange, one, other)

    def _exchange(self, one: SimNode, other: SimNode) -> None:
        self._world.log("nemesis", f"{one.name} and {other.name} change disks")
        for node in (one, other):
            node.kill("is switched off")
            node.disk.power_on()
            node.is_swapped = not node.is_swapped
        one.disk, other.disk = other.disk, one.disk
        if not one.is_swapped:
            one.boot()
            other.boot()

    def _bit_flip(self, chance: Random) -> None:
        """A bit of a cold part of the log, the hard state or the checkpoint rots."""
        if chance.random() < 0.25:
            self._queue_rot(chance)
            return
        node = chance.choice(self._nodes)
        if not self._may_harm(node):
            return
        disk = node.disk
        limit = cold_bytes(node)
        if limit == 0:
            return
        at = chance.randrange(limit)
        base = at - at % self._world.plan.tuning.segment_bytes
        path = DATA / "commitlog" / file_name(base)
        if chance.random() < 0.2:
            path, at, base = DATA / "raft" / "hard_state", chance.randrange(16), 0
        # Behind a filler there is nothing that could rot.
        if path in disk.paths() and at - base < len(disk.content(path)):
            node.flip(path, at - base, chance)

    def _queue_rot(self, chance: Random) -> None:
        """A ConsumeQueue isn't what was derived: of any node, up or down, of as many as there are.
        It is no excuse for anything: derived files are made again."""
        node = self._any(chance)
        disk, folder = node.disk, DATA / "consumequeue"
        files = [
            path
            for path in disk.paths()
            if folder in path.parents and not path.relative_to(folder).parts[0].startswith(".")
        ]
        if not files:
            return
        path = chance.choice(files)
        size = len(disk.content(path))
        full = self._world.plan.tuning.units_per_file * UNIT.size
        at = chance.randrange(max(1, size))
        what = chance.choice(("flip", "flip", "flip", "zeros", "noise", "cut", "grow"))
        match what:
            case "flip" if size:
                disk.flip(path, at, chance.randrange(8))
            case "zeros":
                disk.spoil(path, at, bytes(chance.choice((1, 20, 200))))
            case "noise":
                disk.spoil(path, at, chance.randbytes(chance.choice((1, 20, 200))))
            case "cut":
                disk.cut_short(path, at)
            case "grow":
                disk.spoil(path, full + chance.randrange(100), chance.randbytes(30))
        node.note_queue_rot()
        name = path.relative_to(folder)
        self._world.log("nemesis", f"{what} at byte {at} of {name} on {node.name}")

    def _snapshot_rot(self, chance: Random) -> None:
        """A snapshot of state isn't what was written: of any node, up or down, the newest as a
        rule. It is no excuse for anything: the node has its log."""
        node = self._any(chance)
        self._world.log("nemesis", f"{spoil_a_snapshot(node, self._nodes, chance)} on {node.name}")

    # --- the killer schedule -----------------------------------------------------------------

    def _killer(self, chance: Random) -> None:
        """Isolate a minority, write, power-fail one of the majority, isolate the rest of it,
        restart the crashed one together with the minority, write, heal: what
        `chaos.scenarios.killer` does to real nodes."""
        names = self._names(chance)
        world = self._world
        minority = names[: (len(names) - 1) // 2]
        victim, *holders = names[len(minority) :]
        first = network.between(minority, [victim, *holders])
        second = network.between(holders, [victim, *minority])
        step = chance.choice((400, 1000, 2000))
        world.network.cut.update(first)
        world.log("network", f"minority {', '.join(minority)} is isolated")

        def swap() -> None:
            world.nodes[victim].cut_power()
            world.network.cut.difference_update(first)
            world.network.cut.update(second)
            world.log("network", f"{', '.join(holders)} are isolated")
            self._later(100, world.nodes[victim].boot)

        self._later(step, swap)
        self._later(2 * step + 100, self._heal, second)


def _leap_ms(chance: Random) -> int:
    """So far that whatever is forgotten by time would be; back before 1970, too."""
    far_ms = chance.choice((5 * MINUTE_MS, DAY_MS, 8 * DAY_MS, YEAR_MS, 60 * YEAR_MS))
    return chance.choice((-far_ms, far_ms, far_ms))
