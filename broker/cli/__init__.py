"""The `dledger` program: one module a command group, put together in `app`."""


def main() -> None:
    """The program. The commands are imported only here, so that others can use this package's
    parts (options, exit codes) without all the commands."""
    from broker.cli.app import main as program

    program()


__all__ = ["main"]
