"""The nemeses of consumer groups' members: killed, asked to go, paused; each comes back.

Whom a strike hits is drawn when it is made, and remembered under its label until the heal.
"""

from __future__ import annotations

from broker.local_group import LocalGroupError
from chaos.errors import NothingStruck
from chaos.real.blow import Blow
from chaos.real.crew import Crew, Process


def _crew(blow: Blow) -> Crew:
    """Those of a scenario that has any: others are refused before anything is started."""
    assert blow.crew is not None
    return blow.crew


def _draw(blow: Blow) -> Process:
    """Whom it hits.

    Raises:
        NothingStruck: nobody is there.
    """
    process = _crew(blow).draw(blow.chance)
    if process is None:
        raise NothingStruck("no member is at work")
    _crew(blow).struck[blow.label] = process
    return process


async def kill_member(blow: Blow) -> str:
    process = _draw(blow)
    _crew(blow).kill(process)
    return await _ended(blow, process)


async def dismiss_member(blow: Blow) -> str:
    process = _draw(blow)
    _crew(blow).terminate(process)
    return await _ended(blow, process)


async def _ended(blow: Blow, process: Process) -> str:
    if not await _crew(blow).gone(process):
        raise LocalGroupError(f"{process.name} doesn't end")
    return process.name


async def bring_back(blow: Blow) -> str:
    process = _crew(blow).struck.pop(blow.label, None)
    if process is not None:
        _crew(blow).start(process.group, process.member)
    return ""


async def pause_member(blow: Blow) -> str:
    process = _draw(blow)
    _crew(blow).pause(process)
    return process.name


async def resume_member(blow: Blow) -> str:
    process = _crew(blow).struck.pop(blow.label, None)
    if process is not None:
        _crew(blow).resume(process)
    return ""
