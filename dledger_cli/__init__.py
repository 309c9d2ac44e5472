"""The `dledger` program: one module a command group, put together in `app`."""

import os

# Before anything imports grpc: its C core writes a line to standard error for each connection
# that a dying node closes. What went wrong is ours to say. Who debugs grpc sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def main() -> None:
    """The program. The commands are imported only here, so that others can use this package's
    parts (options, exit codes) without all the commands."""
    from dledger_cli.app import main as program

    program()


__all__ = ["main"]
