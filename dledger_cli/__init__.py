"""The `dledger` program: one module a command group, put together in `app`.

`main` is all that may be imported without the extra `node`, which brings what the commands need.
"""

import os
import sys

# Before anything imports grpc: its C core writes a line to standard error for each connection
# that a dying node closes. What went wrong is ours to say. Who debugs grpc sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


OURS = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")


def main() -> None:
    """The program. Its commands are imported only here: where only the client is installed, it
    says what is missing and ends with 2."""
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
    program()


__all__ = ["main"]
