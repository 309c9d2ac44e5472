"""`python -m chaos.node`: one node on a disk and a clock that fail on order (ADR 16).

The same node as `dledger node` runs, built from the same configuration, given `chaos.faults` for
its machine. Nothing in a configuration leads here, so no file that was copied from a test can make
a real node lie about its disk; and without `DLEDGER_FAULT_INJECTION=1` in the environment it
refuses to start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import structlog
import typer

from broker.config import load_config
from broker.logging import configure_logging
from broker.node import Machine, run_node
from chaos.faults import FAULT_INJECTION_VARIABLE, FaultyClock, FaultyFiles, Orders
from dledger.terminal.outcome import errors_told, run
from dledger.terminal.standard_streams import hold_standard_streams

log = structlog.get_logger(__name__)


def machine_under_test(folder: Path) -> Machine:
    """A machine that takes its orders from `folder`.

    Raises:
        OSError: the folder can't be used.
    """
    orders = Orders(folder)
    return Machine(FaultyFiles(orders), FaultyClock(orders).now_ms)


def node(
    config: Annotated[Path, typer.Option(metavar="FILE", help="The node's configuration.")],
    faults: Annotated[Path, typer.Option(metavar="DIR", help="Where the orders are.")],
) -> None:
    """Run one node whose disk and clock fail on order, until SIGTERM."""
    if os.environ.get(FAULT_INJECTION_VARIABLE) != "1":
        raise typer.BadParameter(
            f"{FAULT_INJECTION_VARIABLE}=1 is not in the environment: this node would lie about "
            "its disk",
            param_hint="--faults",
        )
    with errors_told():
        loaded = load_config(config)
        log_to = loaded.log
        facts = {"broker_group": loaded.broker_group, "node": loaded.node_id}
        configure_logging(log_to.level, log_to.format, log_to.file, **facts)
        machine = machine_under_test(faults)
    log.warning("fault_injection_enabled", directory=str(faults))
    raise typer.Exit(run(run_node(loaded, machine)))


if __name__ == "__main__":
    hold_standard_streams()
    typer.run(node)
