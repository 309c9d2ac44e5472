"""Exceptions that nobody foresaw, in the midst of the library: what would be a defect of it.

Whatever the library runs for its users has a boundary for these (`dledger.client.faults`): who
waits for it is told, with what is known, and all else goes on. Here a rule fails as it is called,
before it has done anything, once in a while. Promises have to be kept all the same: nothing is
called settled, finished or not stored that isn't, and nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from dledger.client.dispatch import Dispatcher
from dledger.client.lane import Lane
from dledger.client.members.finished import Finished
from dledger.client.members.member import Member
from dledger.client.members.process_queue import ProcessQueue
from dledger.client.progress import Progress
from dledger.client.receives import Receives

RULES: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (Lane, ("seal", "take", "on_stored", "on_error", "settle", "expire", "withdraw")),
    (Dispatcher, ("_request",)),
    (Receives, ("_deliveries", "_settle", "_deal")),
    (Member, ("on_gained", "on_lost", "take", "succeed", "fail", "to_pull", "to_commit")),
    (ProcessQueue, ("on_fetched", "take", "succeed", "fail")),
    (Finished, ("finish", "name")),
    (Progress, ("hand_over", "finish", "on_committed")),
)


class Slip(Exception):
    """What nobody foresaw."""


def slipping(rule: Callable[..., Any], slips: Callable[[], bool]) -> Callable[..., Any]:
    """`rule`, which fails where `slips` says so."""

    @wraps(rule)
    def called(*args: Any, **named: Any) -> Any:
        if slips():
            raise Slip(f"in {rule.__qualname__}")
        return rule(*args, **named)

    return called
