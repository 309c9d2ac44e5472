"""What a node takes from its machine: a file layer and a wall clock.

This owns the choice between the real ones and those of a node under test. The faulty ones live in
`chaos.faults`, which is imported only when the configuration asks for it: a node that isn't under
test doesn't even load that code (ADR 16).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from broker.config import NodeConfig
from store.files import FileSystem, OsFiles

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as the node sees it. `now_ms` is the wall clock: it may step."""

    files: FileSystem
    now_ms: Callable[[], int]


def machine_of(config: NodeConfig) -> Machine:
    """The real ones, or with a `[faults]` section those that fail on order.

    Raises:
        OSError: the folder of the faults can't be used.
    """
    if config.faults is None:
        return Machine(OsFiles(), lambda: int(time.time() * 1000))
    from chaos.faults import FaultyClock, FaultyFiles, Orders  # see the module

    log.warning("fault_injection_enabled", directory=str(config.faults.directory))
    orders = Orders(config.faults.directory)
    return Machine(FaultyFiles(orders), FaultyClock(orders).now_ms)
