"""The nemeses: what goes wrong, by name.

Each strikes its victims and heals them again; `docs/chaos.md` has the table. A nemesis does one
thing to processes, links or disks through the `Arena` and knows nothing of schedules. Where
something is drawn, it is drawn from the strike's own random source, so that a seed repeats it as
far as real time allows.

Source: Jepsen's nemeses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from chaos.faults import ClockFault, FaultOrders
from chaos.faults.orders import FAILABLE
from chaos.real.blow import Act, Blow
from chaos.real.damage import (
    FILES,
    HOW,
    WHERE,
    put_back,
    replace_rotten,
    rot,
    rot_below,
    set_aside,
)
from chaos.real.links import (
    around,
    bridge,
    clear,
    cut_off,
    cutting,
    deaf,
    isolated,
    lossy,
    mute,
    repeating,
    ring,
    scattered,
    silencing,
    slow,
    unanswered,
    unheard,
    unreached,
    worsening,
)
from chaos.real.processes import (
    kill,
    pause,
    restart_again_and_again,
    resume,
    retime,
    start,
    terminate,
    time_as_before,
)
from chaos.real.scenario import Choices, Option
from dledger.client import ClientError

TRANSFER_DEADLINE_S: Final = 3.0
OPERATIONS: Final = tuple(sorted(FAILABLE, key=lambda each: each != "fdatasync"))
MUST_STOP: Final = frozenset({"pwritev", "fdatasync"})  # every append needs both


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault.

    Attributes:
        target: whom it strikes unless the scenario says otherwise; empty: nobody in particular.
        options: names and defaults; of a choice, everything there is, the default first.
        strike, heal: do it, and say in a few words what was done (may be empty).
        is_momentary: whether the strike is all of it: there is nothing to heal.
        ends_leadership: whether a leader that is hit leads no longer, so that the time to the
            next leader's first acknowledgement is worth measuring.
    """

    name: str
    summary: str
    target: str
    options: Mapping[str, Option | Choices]
    strike: Act
    heal: Act
    ends_leadership: bool = False
    is_momentary: bool = False

    def defaults(self) -> dict[str, Option]:
        """Each option as it is unless a scenario says otherwise."""
        return {
            name: value[0] if isinstance(value, tuple) else value
            for name, value in self.options.items()
        }


async def _transfer(blow: Blow) -> str:
    try:
        leader = await blow.client.transfer_leadership(deadline_s=TRANSFER_DEADLINE_S)
    except ClientError as error:
        return f"refused: {error.message}"
    return f"to {leader.node_id}"


async def _nothing(_: Blow) -> str:
    return ""


# --- leadership, disks and clocks -----------------------------------------------------------------


async def _cut_power(blow: Blow) -> str:
    await kill(blow)
    losses = [blow.arena.cut_power(victim, blow.chance) for victim in blow.victims]
    lost, torn = sum(each.lost for each in losses), sum(each.torn for each in losses)
    return f"{lost} writes lost, {torn} torn, {sum(each.names for each in losses)} names lost"


def _ordering(change: Callable[[Blow, FaultOrders], FaultOrders]) -> Act:
    async def strike(blow: Blow) -> str:
        for victim in blow.victims:
            blow.arena.order(blow.label, victim, partial(change, blow))
        return ""

    return strike


async def _rescind(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.order(blow.label, victim, None)
    return ""


def _slow_disk(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, sync_delay_ms=int(blow.number("delay_ms")))


def _full_disk(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, free_bytes=int(blow.number("free_bytes")))


def _stepped_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, clock=(ClockFault(offset_ms=int(blow.number("offset_ms"))),))


def _drifting_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    since_ms = time.time() * 1000
    return replace(orders, clock=(ClockFault(rate=blow.number("rate"), since_ms=since_ms),))


def _flipping_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    off, period = int(blow.number("offset_ms")), int(blow.number("period_ms"))
    return replace(orders, clock=(ClockFault(strobe_ms=off, strobe_period_ms=period),))


async def _fail_disk(blow: Blow) -> str:
    """A disk that fails a write or a sync stops its node (ADR 8): one that runs on is a finding."""
    operation, code = str(blow.options["operation"]), str(blow.options["errno"])
    blow.arena.meant_to_be_down.update(blow.victims)
    for victim in blow.victims:
        blow.arena.order(
            blow.label, victim, lambda orders: replace(orders, failing={operation: code})
        )
    if operation in MUST_STOP:
        await asyncio.gather(*map(blow.arena.gone, blow.victims))
    return f"{operation} fails with {code}"


async def _replace_failed_disk(blow: Blow) -> str:
    await _rescind(blow)
    stopped = [victim for victim in blow.victims if not blow.arena.is_running(victim)]
    await start(blow)
    return f"{', '.join(stopped) or 'nobody'} stopped"


_NONE: Final[Mapping[str, Option | Choices]] = {}

NEMESES: Final[dict[str, Nemesis]] = {
    each.name: each
    for each in (
        Nemesis("kill", "SIGKILL", "leader", _NONE, kill, start, ends_leadership=True),
        Nemesis("terminate", "SIGTERM, and waits for the end", "one", _NONE, terminate, start),
        Nemesis(
            "restart-loop",
            "SIGKILL and start, several times",
            "one",
            {"times": 3},
            restart_again_and_again,
            start,
        ),
        Nemesis("pause", "SIGSTOP", "leader", _NONE, pause, resume, ends_leadership=True),
        Nemesis(
            "transfer",
            "hands leadership over",
            "",
            _NONE,
            _transfer,
            _nothing,
            is_momentary=True,
        ),
        Nemesis(
            "isolate",
            "cuts the victims from all other nodes",
            "leader",
            _NONE,
            cutting(isolated),
            clear,
            ends_leadership=True,
        ),
        Nemesis("scatter", "cuts everybody from everybody", "", _NONE, cutting(scattered), clear),
        Nemesis(
            "silence",
            "drops every packet between nodes; connections notice the heal as TCP does",
            "",
            _NONE,
            silencing(scattered),
            clear,
        ),
        Nemesis(
            "deafen",
            "victims send and don't hear",
            "leader",
            _NONE,
            cutting(deaf),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "mute",
            "victims hear and can't send",
            "leader",
            _NONE,
            cutting(mute),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "cut-off",
            "cuts the victims from peers and clients",
            "leader",
            _NONE,
            cutting(cut_off),
            clear,
            ends_leadership=True,
        ),
        Nemesis(
            "client-cut",
            "cuts clients from the victims, whose peers reach them",
            "leader",
            _NONE,
            cutting(unreached),
            clear,
        ),
        Nemesis(
            "client-deaf",
            "what clients ask arrives, the answers don't",
            "leader",
            _NONE,
            cutting(unanswered),
            clear,
        ),
        Nemesis(
            "client-mute",
            "what clients ask doesn't arrive",
            "leader",
            _NONE,
            cutting(unheard),
            clear,
        ),
        Nemesis("ring", "each sees a majority, no two the same", "", _NONE, cutting(ring), clear),
        Nemesis("bridge", "two halves, one node sees both", "", _NONE, cutting(bridge), clear),
        Nemesis(
            "slow-network",
            "packets of the victims take longer",
            "all",
            {"delay_ms": 20, "jitter_ms": 30},
            worsening(around, slow),
            clear,
        ),
        Nemesis(
            "lossy-network",
            "packets of the victims get lost and are sent again",
            "all",
            {"loss": 0.05},
            worsening(around, lossy),
            clear,
        ),
        Nemesis(
            "repeating-network",
            "connections break after delivery, so that messages are sent twice",
            "all",
            {"chance": 0.02},
            worsening(around, repeating),
            clear,
        ),
        Nemesis(
            "power-cut",
            "SIGKILL, and what was not synced is lost",
            "one",
            _NONE,
            _cut_power,
            start,
            ends_leadership=True,
        ),
        Nemesis(
            "slow-disk",
            "each fsync takes longer",
            "one",
            {"delay_ms": 300},
            _ordering(_slow_disk),
            _rescind,
        ),
        Nemesis(
            "full-disk",
            "files can't grow beyond so many more bytes",
            "one",
            {"free_bytes": 3 << 20},
            _ordering(_full_disk),
            _rescind,
        ),
        Nemesis(
            "failing-disk",
            "an operation fails, and the node must stop",
            "one",
            {"operation": OPERATIONS, "errno": "EIO"},
            _fail_disk,
            _replace_failed_disk,
            ends_leadership=True,
        ),
        Nemesis(
            "rot",
            "SIGKILL, and a cold segment is spoilt",
            "follower",
            {"how": HOW},
            rot,
            replace_rotten,
        ),
        Nemesis(
            "live-rot",
            "a bit of a cold segment flips below a node that runs",
            "leader",
            {"where": WHERE},
            rot_below,
            replace_rotten,
        ),
        Nemesis(
            "old-copy",
            "a file is copied; at the heal SIGKILL, and the copy is put back",
            "follower",
            {"file": FILES},
            set_aside,
            put_back,
        ),
        Nemesis(
            "clock-step",
            "the wall clock jumps",
            "one",
            {"offset_ms": -60_000},
            _ordering(_stepped_clock),
            _rescind,
        ),
        Nemesis(
            "clock-drift",
            "the wall clock runs too fast or too slow",
            "one",
            {"rate": 1.25},
            _ordering(_drifting_clock),
            _rescind,
        ),
        Nemesis(
            "clock-strobe",
            "the wall clock flips to and fro",
            "one",
            {"offset_ms": 200, "period_ms": 5},
            _ordering(_flipping_clock),
            _rescind,
        ),
        Nemesis(
            "timer-drift",
            "SIGTERM; elections and heartbeats go by ticks of another length",
            "one",
            {"tick_ms": 8},
            retime,
            time_as_before,
        ),
    )
}
