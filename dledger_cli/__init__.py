"""The `dledger` program: one module a command group, put together in `app`.

`main` is all that may be imported without the extra `node`, which brings what the commands need.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from dledger.terminal.standard_streams import hold_standard_streams

# Before anything imports grpc: its C core writes a line to standard error for each connection
# that a dying node closes. What went wrong is ours to say. Who debugs grpc sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


OURS = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")
INTERRUPTED = 130  # `dledger.outcome.ExitCode`, which may not be imported yet


def main() -> None:
    """The program; Ctrl-C ends it with 130 and without a traceback from here on.

    Importing what the commands need takes most of a second. Nothing is begun in that time, so
    nothing has to be tidied up, and an exception would surface wherever a module is half made.
    """
    hold_standard_streams()  # first of all: whatever is opened takes the place of a closed one
    # Ignored in the background of a script: it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
        program = _imported()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        program = _imported()
    try:
        program()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _imported() -> Callable[[], None]:
    """The program's commands. Where only the client is installed, it says what is missing and
    ends with 2."""
    try:
        from dledger_cli.app import main as program
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in OURS:
            raise
        sys.stderr.write(
            f"dledger: the program needs more than the client does ({missing} is missing): "
            "pip install 'dledger[node]'\n"
        )
        sys.exit(2)
    return program


__all__ = ["main"]
