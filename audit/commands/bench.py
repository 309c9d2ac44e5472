"""`dledger audit bench`: options in, a table or JSON out. What is measured is
`audit.measuring.bench`'s."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audit.commands.outcome import errors_told, parse_size
from audit.engines.choice import EngineName
from audit.errors import EngineUnavailable, UsageMistake
from dledger.terminal.figures import human_bytes

if TYPE_CHECKING:
    from audit.measuring.bench import Bench, Figure  # brings what writes logs with it

_MIN_BYTES = 16 << 20
_MAX_BYTES = 1 << 40


def bench(
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Of each replica's log.")
    ] = "256MiB",
    replicas: Annotated[int, typer.Option("--replicas", min=2, max=9, help="How many.")] = 3,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Of each figure.")] = 5,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="spark: measure the Spark engine too.")
    ] = EngineName.LOCAL,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Where the replicas are made, in a new folder that is removed at the end.",
            show_default="where temporary files go",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts as JSON.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 if a target was missed.")
    ] = False,
) -> None:
    """Measure audits, hashing, decoding and locating beside bare readers and a plain decoder.

    \b
    Examples:
      dledger audit bench
      dledger audit bench --engine spark --size 1GiB
    """
    with errors_told():
        size_bytes = parse_size(size)
        if not _MIN_BYTES <= size_bytes <= _MAX_BYTES:
            raise UsageMistake(f"--size {size}: {human_bytes(_MIN_BYTES)} at least, 1 TiB at most")
        if folder is not None and not folder.is_dir():
            raise UsageMistake(f"--folder {folder}: there is no such folder")
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise EngineUnavailable(
                f"bench needs the extra 'audit' ({error}): pip install 'dledger[audit]'"
            ) from error
        from audit.measuring.bench import measure

        with tempfile.TemporaryDirectory(prefix="dledger-audit-bench-", dir=folder) as made:
            result = measure(
                Path(made),
                size=size_bytes,
                replicas=replicas,
                rounds=rounds,
                with_spark=engine is EngineName.SPARK,
                tell=_tell,
            )
        facts = result.facts()
        sys.stdout.write(json.dumps(facts) + "\n" if as_json else _table(result))
        raise typer.Exit(1 if strict and not facts["targets_reached"] else 0)


def _tell(line: str) -> None:
    """What is being done, on standard error and only for somebody who watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def _table(result: Bench) -> str:
    """A line a figure."""
    head = (
        f"{result.replicas} replicas of {human_bytes(result.replica_bytes)}, files warm, "
        f"{result.cpus} processors, load {result.load:.1f} at the start; best of the rounds, and "
        "their median"
    )
    rows = [("WHAT", "FIGURE", "MEDIAN", "TO ITS YARDSTICK", "TARGET")]
    for each in result.figures:
        ratio = ""
        if each.yardstick is not None:
            times = f"{each.share} x " if each.share > 1 else ""
            ratio = f"{each.ratio:.2f} of {times}{each.yardstick.name}"
        digits = _digits(each)
        figure, middle = f"{each.value:,.{digits}f} {each.unit}", f"{each.middle:,.{digits}f}"
        rows.append((each.name, figure, middle, ratio, _said(each)))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([head, *lines, ""])


def _digits(figure: Figure) -> int:
    return 2 if figure.value < 100 else 0


def _said(figure: Figure) -> str:
    """The target, and whether it was met."""
    if figure.is_reached is None:
        return ""
    word, bound = (
        ("at least", figure.at_least) if figure.at_most is None else ("at most", figure.at_most)
    )
    return f"{word} {bound:,g}: {'met' if figure.is_reached else 'MISSED'}"
