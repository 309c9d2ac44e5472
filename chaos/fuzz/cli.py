"""`dledger chaos fuzz`: strangers at every port of a group under good load.

Exit codes: 0 nobody who behaved noticed; 1 somebody did; 2 used wrongly; 130 interrupted.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from chaos.errors import OutputInTheWay
from chaos.fuzz.run import Fuzzed, FuzzOptions, fuzz
from dledger.terminal.loops import sigterm_interrupts
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, end, errors_told, new_runner
from dledger.terminal.output import print_json


def command(
    requests: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="How many, at most.")
    ] = 1_000_000,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="How long, at most.")] = 600.0,
    seed: Annotated[
        int | None, typer.Option(help="Decides what strangers say.", show_default="new")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the group here.", show_default="nothing is kept"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send malformed and hostile traffic to every port of a group under good load.

    \b
    Examples:
      dledger chaos fuzz --requests 20000 --seconds 20
      dledger chaos fuzz --seed 7 --json
    """
    begun = time.monotonic()
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed

    def tell(text: str) -> None:
        typer.echo(f"{time.monotonic() - begun:7.1f} s  {text}", err=True)

    with errors_told(), tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        directory = Path(made) if out is None else _fresh(out)
        tell(f"dledger chaos fuzz --seed {seed} --requests {requests} --seconds {seconds:g}")
        options = FuzzOptions(seed, requests, seconds, directory.absolute())
        with sigterm_interrupts(), new_runner() as runner:
            done = runner.run(fuzz(options, tell))
    if as_json:
        print_json(done.facts())
    else:
        _print(done)
    end(ExitCode.DONE if done.holds else ExitCode.FAILED)


def _fresh(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise OutputInTheWay(out)
    except OSError as error:
        raise OutputInTheWay(out, str(error)) from error
    return out


def _print(done: Fuzzed) -> None:
    kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(done.requests.items()))
    typer.echo(f"{done.requests.total():,} requests in {done.seconds:.1f} s: {kinds}")
    typer.echo(f"good messages: {done.good_sent:,} sent, {done.good_stored:,} stored and read")
    for node in done.nodes:
        typer.echo(
            f"{node.node}: {node.resident_bytes / (1 << 20):.0f} MiB, {node.descriptors} "
            f"descriptors, {node.log_bytes:,} bytes logged, {node.tracebacks} tracebacks"
        )
    for problem in done.problems:
        typer.echo(f"PROBLEM: {problem}")
    typer.echo("holds" if done.holds else "DOES NOT HOLD")
