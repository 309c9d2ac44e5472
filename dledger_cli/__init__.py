"""The `dledger` program: one module a command group, put together in `app`.

`main` is all that may be imported without the extra `node`, which brings what the commands need.
"""

import os
import sys

from dledger.terminal.importing import INTERRUPTED, importing
from dledger.terminal.standard_streams import hold_standard_streams

# Before anything imports grpc: its C core writes a line to standard error for each connection
# that a dying node closes. What went wrong is ours to say. Who debugs grpc sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

COMPLETE = "_DLEDGER_COMPLETE"  # as Typer names it: a shell asks how a line goes on


def main() -> None:
    """The program; Ctrl-C ends it with 130 and without a traceback from here on.

    Importing what a command needs takes up to a second. Nothing is begun in that time, so nothing
    has to be tidied up.
    """
    hold_standard_streams()  # first of all: whatever is opened takes the place of a closed one
    with importing():
        if COMPLETE in os.environ:
            from dledger_cli.completion import complete as program
        else:
            from dledger_cli.app import main as program
    try:
        program()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


__all__ = ["main"]
