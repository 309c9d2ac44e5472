"""How an audit command ends: the process boundary, where errors become a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from audit.errors import AuditError, UsageMistake
from store.errors import StoreError


@contextmanager
def errors_told() -> Iterator[None]:
    """Turns errors of the world into a line on standard error and an exit code."""
    try:
        yield
    except AuditError as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except (OSError, StoreError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def complain(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"dledger: {text}\n")


def write_page(path: Path, page: str) -> None:
    """The page is in the file, or the file is as it was."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(page, encoding="utf-8")
    fresh.replace(path)


def parse_size(text: str) -> int:
    """`200MB`, `64MiB`, `4096` in bytes; all units are powers of two.

    Raises:
        UsageMistake: it is none of these.
    """
    digits = text.strip().rstrip("ibkmgIBKMG/s").strip()
    unit = text.strip()[len(digits) :].strip().lower().removesuffix("/s").removesuffix("b")
    power = {"": 0, "k": 10, "ki": 10, "m": 20, "mi": 20, "g": 30, "gi": 30}.get(unit)
    if not digits.isdigit() or power is None:
        raise UsageMistake(f"{text!r} is not a size like 64MiB or 4096")
    return int(digits) << power
