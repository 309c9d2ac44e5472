"""How a command ends: its exit code, and one line on standard error for what went wrong.

This is the process boundary, the only place where errors are turned into text. It knows no
package's errors: each family says by `exit_code` how a command ends that meets one
(`dledger.outcome.ExitCode`). An error that says nothing is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

import typer
import uvloop

from dledger.outcome import ExitCode
from dledger.terminal.interrupts import heard
from dledger.terminal.loops import default_ctrl_c
from dledger.terminal.output import shown

__all__ = [
    "ExitCode",
    "complain",
    "end",
    "errors_told",
    "exit_code_of",
    "in_words",
    "interruption_told",
    "new_runner",
    "run",
    "terminable",
]

T = TypeVar("T")

BY_SIGTERM = "ended by SIGTERM"


class Terminated(BaseException):
    """SIGTERM has come. Like Ctrl-C it passes whoever handles errors."""


def exit_code_of(error: Exception, unreadable: ExitCode = ExitCode.FAILED) -> ExitCode | None:
    """The exit code that stands for `error`; None for one that has no business to be here.

    Args:
        unreadable: for what the operating system refuses: a file, a port.
    """
    # Only our own enum counts: typer's exceptions have an `exit_code`, too, which is theirs.
    if isinstance(code := getattr(error, "exit_code", None), ExitCode):
        return code
    return unreadable if isinstance(error, OSError) else None


def in_words(error: Exception) -> str:
    """The file first, and no number, where the operating system refused one."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def complain(text: str) -> None:
    """One line (or what the text has) on standard error. Nothing in it speaks to the terminal: an
    answer of somebody else's node may be in it, or the name of a file."""
    for line in f"dledger: {text}".split("\n"):
        typer.echo(shown(line) if line else line, err=True)


def end(code: ExitCode) -> NoReturn:
    """Ends the command with `code`."""
    raise typer.Exit(int(code))


@contextmanager
def errors_told(*, unreadable: ExitCode = ExitCode.FAILED) -> Iterator[None]:
    """Turns the errors of the world into a line and an exit code; `unreadable` as above. Ctrl-C and
    SIGTERM end the command with 130, whatever it is doing, and what is within may tidy up."""
    try:
        with _sigterm_raises():
            yield
    except KeyboardInterrupt:
        end(ExitCode.INTERRUPTED)
    except Terminated as ended:
        complain(str(ended))
        end(ExitCode.INTERRUPTED)
    except BrokenPipeError as error:
        if error.filename is not None:  # of a file that the command works on
            complain(in_words(error))
        end(ExitCode.FAILED)  # nobody reads its output any more, so there is nobody to be told
    except Exception as error:
        code = exit_code_of(error, unreadable)
        if code is None:
            raise
        complain(in_words(error))
        end(code)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM raises `Terminated`, unless somebody else handles it: by itself it would
    end the process where it stands, and no `finally` would be heard of. Threads have no say."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated(BY_SIGTERM)


@contextmanager
def new_runner() -> Iterator[asyncio.Runner]:
    """The event loop of a command; there is one per process (grpc.aio's poller is global)."""
    with default_ctrl_c(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


def run(work: Coroutine[object, object, T]) -> T:
    """Runs `work` on the command's event loop; errors of the world end the command. So do Ctrl-C
    and SIGTERM, both with 130: `work` is cancelled, and may tidy up."""
    with errors_told(), new_runner() as runner:
        return runner.run(terminable(work))


async def terminable(work: Coroutine[object, object, T]) -> T:
    """As `work`, which may have a handler of its own, and is cancelled by SIGTERM: an exception
    would surface in whatever the loop was at.

    Raises:
        Terminated: it was ended by SIGTERM.
    """
    task = asyncio.current_task()
    was_told = False

    def terminate() -> None:
        nonlocal was_told
        was_told = True
        if task is not None:
            task.cancel()

    with heard(signal.SIGTERM, terminate):
        try:
            return await work
        except asyncio.CancelledError:
            if was_told:
                raise Terminated(BY_SIGTERM) from None
            raise


@contextmanager
def interruption_told(text: str) -> Iterator[None]:
    """Who ends what is within before it is done is told `text`: what holds then, and what to do."""
    try:
        yield
    except typer.Exit as ended:
        if ended.exit_code == ExitCode.INTERRUPTED:
            complain(text)
        raise
