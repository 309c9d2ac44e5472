"""How an audit command ends: the process boundary, where errors become a line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from audit.errors import AuditError, UsageMistake
from dledger.reading.errors import ReadingError
from dledger.records.errors import FormatError
from store.errors import StoreError

MAX_SIZE: Final = (1 << 63) - 1  # What travels to nodes is an int64.
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


@contextmanager
def errors_told() -> Iterator[None]:
    """Turns errors of the world into a line on standard error and an exit code: what can't be read
    or written leaves an audit incomplete, and proves nothing against a replica."""
    try:
        yield
    except AuditError as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except (ReadingError, StoreError, FormatError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        raise typer.Exit(3) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def complain(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"dledger: {text}\n")


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
    fresh.write_text(page, encoding="utf-8")
    fresh.replace(path)


def parse_size(text: str) -> int:
    """`200MB`, `64MiB`, `4096` in bytes; all units are powers of two.

    Raises:
        UsageMistake: it is none of these, or more than `MAX_SIZE`.
    """
    digits = text.strip().rstrip("ibkmgIBKMG/s").strip()
    unit = text.strip()[len(digits) :].strip().lower().removesuffix("/s").removesuffix("b")
    power = {"": 0, "k": 10, "ki": 10, "m": 20, "mi": 20, "g": 30, "gi": 30}.get(unit)
    if power is None or not _DIGITS.fullmatch(digits) or int(digits) << power > MAX_SIZE:
        raise UsageMistake(f"{text!r} is not a size like 64MiB or 4096")
    return int(digits) << power
