"""The nemeses: what goes wrong, by name.

Each strikes its victims and heals them again; `docs/chaos.md` has the table. A nemesis does one
thing to processes, links or disks through the `Arena` and knows nothing of schedules. Where
something is drawn, it is drawn from the strike's own random source, so that a seed repeats it as
far as real time allows.

Source: the fault vocabulary of `shared/durability.md`; Jepsen's nemeses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from broker.local_group import NodeDied
from chaos.faults import FaultOrders
from chaos.real.blow import Act, Blow
from chaos.real.links import (
    around,
    bridge,
    clear,
    cutting,
    deaf,
    isolated,
    lossy,
    mute,
    repeating,
    ring,
    scattered,
    slow,
    worsening,
)
from chaos.real.scenario import Option
from dledger.client import ClientError
from store.files import CHUNK_BYTES

TRANSFER_DEADLINE_S: Final = 3.0
MUST_STOP: Final = frozenset({"pwritev", "fdatasync"})  # every append needs both


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault.

    Attributes:
        target: whom it strikes unless the scenario says otherwise; empty: nobody in particular.
        options: names and defaults.
        strike, heal: do it, and say in a few words what was done (may be empty).
        is_momentary: whether the strike is all of it: there is nothing to heal.
        ends_leadership: whether a leader that is hit leads no longer, so that the time to the
            next leader's first acknowledgement is worth measuring.
    """

    name: str
    summary: str
    target: str
    options: Mapping[str, Option]
    strike: Act
    heal: Act
    ends_leadership: bool = False
    is_momentary: bool = False


# --- processes --------------------------------------------------------------------------------


async def _kill(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.kill(victim)
    await asyncio.gather(*map(blow.arena.gone, blow.victims))
    return ""


async def _start(blow: Blow) -> str:
    results = await asyncio.gather(*map(blow.arena.start, blow.victims), return_exceptions=True)
    for result in results:  # the others have been started all the same
        if result is not None:
            raise result
    return ""


async def _terminate(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.terminate(victim)
    await asyncio.gather(*map(blow.arena.gone, blow.victims))
    return ""


async def _restart_again_and_again(blow: Blow) -> str:
    times = int(blow.number("times"))
    for _ in range(times):
        await _kill(blow)
        await _start(blow)
    return f"{times} times"


async def _pause(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.pause(victim)
    return ""


async def _resume(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.resume(victim)
    return ""


async def _transfer(blow: Blow) -> str:
    try:
        leader = await blow.client.transfer_leadership(deadline_s=TRANSFER_DEADLINE_S)
    except ClientError as error:
        return f"refused: {error.message}"
    return f"to {leader.node_id}"


async def _nothing(_: Blow) -> str:
    return ""


# --- disks and clocks -------------------------------------------------------------------------


async def _cut_power(blow: Blow) -> str:
    await _kill(blow)
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
    return replace(orders, clock_offset_ms=int(blow.number("offset_ms")))


async def _fail_disk(blow: Blow) -> str:
    """A disk that fails a write or a sync stops its node (D8): one that runs on is a finding."""
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
    await _start(blow)
    return f"{', '.join(stopped) or 'nobody'} stopped"


async def _rot(blow: Blow) -> str:
    """Flips bits in, or shortens, a sealed segment of each victim, which is down meanwhile."""
    await _kill(blow)
    done = [_spoil(blow.arena.data_directory(victim), blow) for victim in blow.victims]
    return "; ".join(done)


async def _start_or_replace(blow: Blow) -> str:
    """A node that finds corruption must not start. It gets an empty disk, as the operations page
    says, while all others run."""
    done: list[str] = []
    for victim in blow.victims:
        log_end = blow.arena.log_end(victim)
        try:
            await blow.arena.start(victim)
            done.append(f"{victim} started")
        except NodeDied:
            if "orrupt" not in blow.arena.log_since(victim, log_end):
                raise
            await blow.arena.start_anew(victim)
            done.append(f"{victim} refused to start and was given an empty disk")
    return "; ".join(done)


def _spoil(data_directory: Path, blow: Blow) -> str:
    """Flips one bit, or cuts the file, in the oldest segment: long committed, long not read."""
    segment = min((data_directory / "commitlog").glob("[0-9]" * 20))
    if blow.options["how"] == "cut":
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        return f"{segment.name} cut in half"
    with segment.open("r+b") as file:
        used = len(file.read(CHUNK_BYTES).rstrip(b"\0"))
        at = blow.chance.randrange(max(1, used))
        file.seek(at)
        byte = file.read(1)[0] ^ 1 << blow.chance.randrange(8)
        file.seek(at)
        file.write(bytes((byte,)))
    return f"a bit of {segment.name} flipped at {at}"


_NONE: Final[Mapping[str, Option]] = {}

NEMESES: Final[dict[str, Nemesis]] = {
    each.name: each
    for each in (
        Nemesis("kill", "SIGKILL", "leader", _NONE, _kill, _start, True),
        Nemesis("terminate", "SIGTERM, and waits for the end", "one", _NONE, _terminate, _start),
        Nemesis(
            "restart-loop",
            "SIGKILL and start, several times",
            "one",
            {"times": 3},
            _restart_again_and_again,
            _start,
        ),
        Nemesis("pause", "SIGSTOP", "leader", _NONE, _pause, _resume, True),
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
            "cuts the victims from all others",
            "leader",
            _NONE,
            cutting(isolated),
            clear,
            True,
        ),
        Nemesis("scatter", "cuts everybody from everybody", "", _NONE, cutting(scattered), clear),
        Nemesis(
            "deafen", "victims send and don't hear", "leader", _NONE, cutting(deaf), clear, True
        ),
        Nemesis("mute", "victims hear and can't send", "leader", _NONE, cutting(mute), clear, True),
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
            _start,
            True,
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
            {"operation": "fdatasync", "errno": "EIO"},
            _fail_disk,
            _replace_failed_disk,
            True,
        ),
        Nemesis(
            "rot",
            "SIGKILL, and a cold segment is spoilt (how: flip or cut)",
            "follower",
            {"how": "flip"},
            _rot,
            _start_or_replace,
        ),
        Nemesis(
            "clock-step",
            "the wall clock jumps",
            "one",
            {"offset_ms": -60_000},
            _ordering(_stepped_clock),
            _rescind,
        ),
    )
}
