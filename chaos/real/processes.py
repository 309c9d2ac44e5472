"""The nemeses of processes: killed, stopped, paused, started again, and started with other timers.

Each does one thing to its victims through the `Arena`; what it means for the schedule is said in
the table of `chaos.real.nemeses`. No process is signalled here that the arena didn't start.
"""

from __future__ import annotations

import asyncio

from chaos.real.blow import Blow


async def kill(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.kill(victim)
    await asyncio.gather(*map(blow.arena.gone, blow.victims))
    return ""


async def start(blow: Blow) -> str:
    results = await asyncio.gather(*map(blow.arena.start, blow.victims), return_exceptions=True)
    for result in results:  # the others have been started all the same
        if result is not None:
            raise result
    return ""


async def terminate(blow: Blow) -> str:
    arena = blow.arena
    running = {each: arena.log_end(each) for each in blow.victims if arena.is_running(each)}
    for victim in blow.victims:
        arena.terminate(victim)
    await asyncio.gather(*map(arena.gone, blow.victims))
    for victim, log_from in running.items():
        arena.ended_well(victim, log_from)
    return ""


async def restart_again_and_again(blow: Blow) -> str:
    times = int(blow.number("times"))
    for _ in range(times):
        await kill(blow)
        await start(blow)
    return f"{times} times"


async def pause(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.pause(victim)
    return ""


async def resume(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.resume(victim)
    return ""


async def retime(blow: Blow) -> str:
    """As many ticks as before, of another length: what the victims' elections and heartbeats go
    by runs too fast or too slow, which is what a monotonic clock of another pace would do."""
    return await _with_ticks(blow, int(blow.number("tick_ms")))


async def time_as_before(blow: Blow) -> str:
    await _with_ticks(blow, None)
    return ""


async def _with_ticks(blow: Blow, tick_ms: int | None) -> str:
    await terminate(blow)
    rates = [blow.arena.retime(victim, tick_ms) for victim in blow.victims]
    await start(blow)
    return ", ".join(
        f"{victim}'s timers run at {rate:.2f}"
        for victim, rate in zip(blow.victims, rates, strict=True)
    )
