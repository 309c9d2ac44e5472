"""A simulated process whose log a start has found to have gaps: `broker.holed` without its doors.

What is asked and written is the product's (`broker.refilling`). Here is what the process around it
does: it fills, or is asked to stop, and closes its directory, on which nothing is at work then.
"""

from __future__ import annotations

import asyncio

from broker.refilling import Refilling
from chaos.sim.defect import Defect
from chaos.sim.loop import ProcessLoop
from chaos.sim.worker import Workers


class HoledProcess:
    """One process: `until_whole` once; `ask_to_stop` at any time."""

    def __init__(self, refilling: Refilling, workers: Workers, loop: ProcessLoop) -> None:
        self._refilling = refilling
        self._workers = workers
        self._stop_asked: asyncio.Future[None] = loop.create_future()

    def ask_to_stop(self) -> None:
        """`until_whole` returns."""
        if not self._stop_asked.done():
            self._stop_asked.set_result(None)

    async def until_whole(self) -> bool:
        """Whether the log has no gaps any more; False when asked to stop. The directory is closed.

        Raises:
            BeyondRepair, CorruptionFound, OSError: see `Refilling.fill`.
            Defect: the process is to end, and its disk's hand is at work.
        """
        try:
            return await self._filled()
        finally:
            await self._refilling.close()
            if not self._workers.is_idle or self._workers.disk.is_locked:
                raise Defect("stop", "a directory is closed, and somebody is at work on it")

    async def _filled(self) -> bool:
        filling = asyncio.ensure_future(self._refilling.fill())
        try:
            await asyncio.wait((filling, self._stop_asked), return_when=asyncio.FIRST_COMPLETED)
            if filling.done():
                filling.result()
                return not self._stop_asked.done()
            return False
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
