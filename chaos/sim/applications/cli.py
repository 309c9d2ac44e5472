"""`dledger chaos library`: seeds of the simulator in which the product's client library works."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from chaos.sim.applications.run import Outcome, run_library
from dledger.terminal.options import JsonOption

SHOWN_LINES = 60
EXIT_FAILED = 1


def command(
    seed: Annotated[int, typer.Option(help="The first seed; it decides everything.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 1,
    duration: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Virtual seconds under faults.")
    ] = 20.0,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e7, help="Start no further seed after so many seconds."),
    ] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the last run's transcript to this file."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the client library against simulated nodes: real code on both sides.

    \b
    Examples:
      dledger chaos library --seeds 100
      dledger chaos library --seed 42 --transcript seed42.txt
    """
    if transcript is not None:
        transcript.write_text("")  # now, and not after an hour of seeds
    started, done = time.monotonic(), 0
    accepted = processes = 0
    last: Outcome | None = None
    for number in range(seed, seed + seeds):
        last = run_library(number, round(duration * 1000))
        done, accepted, processes = done + 1, accepted + last.accepted, processes + last.processes
        if last.failure is not None:
            break
        if time_limit is not None and time.monotonic() - started >= time_limit:
            break
    assert last is not None
    if transcript is not None:
        transcript.write_text("".join(f"{line}\n" for line in last.transcript))
    facts: dict[str, object] = {
        "seeds": done,
        "first_seed": seed,
        "accepted": accepted,
        "processes": processes,
        "failure": last.failure and {"seed": last.seed, **asdict(last.failure)},
    }
    _tell(facts, last, as_json=as_json)
    raise typer.Exit(EXIT_FAILED if last.failure else 0)


def _tell(facts: dict[str, object], last: Outcome, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts))
        return
    if last.failure is None:
        typer.echo(
            f"{facts['seeds']} seeds from {facts['first_seed']}: {facts['accepted']} messages "
            f"accepted, {facts['processes']} processes, every promise kept"
        )
        return
    for line in last.transcript[-SHOWN_LINES:]:
        typer.echo(str(line))
    failure = last.failure
    typer.echo(
        f"seed {last.seed}, {failure.time_us / 1e6:.6f} s: {failure.check}: {failure.detail}"
    )
    typer.echo(f"again: dledger chaos library --seed {last.seed}")
