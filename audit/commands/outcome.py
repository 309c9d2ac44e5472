"""How an audit command ends: the process boundary, where errors become a line and an exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from audit.errors import UsageMistake
from dledger.outcome import ExitCode
from dledger.terminal import outcome
from dledger.terminal.sizes import size_in_bytes


@contextmanager
def errors_told() -> Iterator[None]:
    """Turns errors of the world into a line on standard error and an exit code: what can't be read
    or written leaves an audit incomplete, and proves nothing against a replica. Nor does what
    nobody foresaw, a bug of ours: it keeps its traceback."""
    try:
        with outcome.errors_told(unreadable=ExitCode.INCOMPLETE):
            yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise  # arguments that are wrong are told by who has parsed them, by name
    except Exception as error:  # noqa: BLE001  # This is the process boundary.
        traceback.print_exception(error)
        outcome.complain(f"not foreseen, so that nothing is known: {error!r}")
        outcome.end(ExitCode.INCOMPLETE)


def check_target(path: Path) -> None:
    """A file can be made at `path`, as far as can be told before the work that it is to hold.

    Raises:
        UsageMistake: it is a folder, or would lie where nothing can be written.
    """
    if path.is_dir():
        raise UsageMistake(f"{path} is a folder; the name of a file is wanted")
    if not path.parent.is_dir():
        raise UsageMistake(f"{path} can't be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageMistake(f"{path} can't be written: no permission in {path.parent}")


def make_folder(path: Path) -> None:
    """The folder is there.

    Raises:
        UsageMistake: it can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageMistake(f"{path} can't be made a folder: {error.strerror}") from error


def write_page(path: Path, page: str) -> None:
    """The page is in the file, or the file is as it was."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(page, encoding="utf-8", errors="backslashreplace")
    fresh.replace(path)


def parse_size(text: str) -> int:
    """`200MB`, `64MiB`, `4096` in bytes, of a rate `200MB/s`; all units are powers of two.

    Raises:
        UsageMistake: it is none of these.
    """
    try:
        return size_in_bytes(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise UsageMistake(str(error)) from error
