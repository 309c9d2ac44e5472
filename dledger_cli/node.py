"""`dledger node`: one node in the foreground, for service managers and `group up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.config import load_config
from broker.logging import configure_logging
from dledger.terminal.importing import interrupts_end
from dledger.terminal.outcome import ExitCode, errors_told, run

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The node's configuration, in TOML.")
]


def node(config: ConfigOption) -> None:
    """Run one node until SIGTERM or Ctrl-C.

    SIGTERM hands leadership over, answers who waits, flushes and stops; SIGKILL is safe at any
    moment; SIGHUP opens log.file anew, and stops the node if there is none. Exit codes: 0 stopped,
    1 couldn't start or failed, 2 wrong configuration, 4 its disk failed. Keys of the file:
    docs/operations.md.

    \b
    Example:
      dledger node --config /etc/dledger/n1.toml
    """
    code = int(ExitCode.DONE)
    try:
        with errors_told():
            # Nothing is begun yet, and the node's parts (numpy among them) take longer to import
            # than most commands take to run.
            with interrupts_end(ExitCode.DONE):
                loaded = load_config(config)
                log = loaded.log
                facts = {"broker_group": loaded.broker_group, "node": loaded.node_id}
                log_file = configure_logging(log.level, log.format, log.file, **facts)
                from broker.node import run_node

            reopen = None if log_file is None else log_file.reopen
            code = run(run_node(loaded, reopen_log=reopen))
    except typer.Exit as ended:
        if ended.exit_code != ExitCode.INTERRUPTED:
            raise
        # It was asked to stop before it heard that by itself, or once more when it was done.
    raise typer.Exit(code)
