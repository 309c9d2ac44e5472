"""How a command ends: its exit code, and one line on standard error for what went wrong.

This is the process boundary, the only place where errors of every package are turned into
text. An error that is ours (a bug) is not in its table and keeps its traceback.

    0   done, or holds                      1   failed, or doesn't hold
    2   used wrongly: arguments,            3   no quorum, or no node, could be reached
        configuration, no such group      130   interrupted (Ctrl-C): 128 + SIGINT, as shells do
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import NoReturn, TypeVar

import typer
import uvloop

from broker.config import ConfigError
from broker.local_group import LocalGroupError, NoAnswer, NoSuchNode, NotAGroup
from dledger.client import ClientError, DeadlineExceeded, GroupUnreachable
from dledger.errors import ReplicationError
from dledger.records.errors import FormatError
from store.errors import StoreError

T = TypeVar("T")


class ExitCode(IntEnum):
    """What the program tells its caller."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


# The first match decides; a subclass stands before its base.
EXIT_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (NotAGroup, ExitCode.USAGE),
    (NoSuchNode, ExitCode.USAGE),
    (NoAnswer, ExitCode.UNREACHABLE),
    (LocalGroupError, ExitCode.FAILED),
    (GroupUnreachable, ExitCode.UNREACHABLE),
    (DeadlineExceeded, ExitCode.UNREACHABLE),
    (ClientError, ExitCode.FAILED),
    (StoreError, ExitCode.FAILED),
    (FormatError, ExitCode.FAILED),
    (ReplicationError, ExitCode.FAILED),
    (OSError, ExitCode.FAILED),
)


def exit_code_of(error: Exception) -> ExitCode | None:
    """The exit code that stands for `error`; None for one that has no business to be here."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)


def complain(text: str) -> None:
    """One line (or what the text has) on standard error."""
    typer.echo(f"dledger: {text}", err=True)


def end(code: ExitCode) -> NoReturn:
    """Ends the command with `code`."""
    raise typer.Exit(int(code))


@contextmanager
def errors_told() -> Iterator[None]:
    """Turns the errors of the world into a line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        end(ExitCode.INTERRUPTED)
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        complain(str(error))
        end(exit_code_of(error) or ExitCode.FAILED)


def new_runner() -> AbstractContextManager[asyncio.Runner]:
    """The event loop of a command; there is one per process (grpc.aio's poller is global)."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(work: Coroutine[object, object, T]) -> T:
    """Runs `work` on the command's event loop; errors of the world end the command."""
    with errors_told(), new_runner() as runner:
        return runner.run(work)
