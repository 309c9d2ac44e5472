"""The commands below `dledger chaos`: the simulator, and what else tests the product on purpose.

Commands parse, call what does the work, print and pick an exit code; see `dledger_cli`. `sim` runs
seeds; a failure is shrunk, told with its transcript and with the command that replays it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from chaos.flips import cli as flips
from chaos.fuzz import cli as fuzz
from chaos.real import cli as real
from chaos.sim.applications import cli as library
from chaos.sim.run import Report, run_plan
from chaos.sim.shrink import Recipe, shrink
from chaos.sim.tally import Tally
from dledger.terminal.program import new_program

SHOWN_LINES = 60
EXIT_FAILED = 1
EXIT_USAGE = 2

app = new_program(
    "Break things on purpose and check that every promise still holds.",
    name="chaos",
)


real.register(app)  # run, list and report: on real processes
app.command(name="fuzz")(fuzz.command)
app.command(name="flips")(flips.command)
app.command(name="library")(library.command)


@app.callback()
def chaos() -> None:
    """Break things on purpose and check that every promise still holds."""


@app.command()
def sim(
    seed: Annotated[int, typer.Option(help="The first seed; it decides everything.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 1,
    duration: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Virtual seconds under faults.")
    ] = 20.0,
    rate: Annotated[int, typer.Option(min=1, max=1000, help="Operations a second.")] = 50,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=7, help="Nodes; default: the seed's.")
    ] = None,
    producers: Annotated[int | None, typer.Option(min=0, max=20)] = None,
    consumers: Annotated[int | None, typer.Option(min=0, max=20)] = None,
    queues: Annotated[int | None, typer.Option(min=1, max=64)] = None,
    faults: Annotated[
        str | None, typer.Option(help="Only these of the seed's faults: 3,7,12, or none.")
    ] = None,
    fair: Annotated[bool, typer.Option("--fair", help="A network without loss.")] = False,
    no_admin: Annotated[bool, typer.Option("--no-admin", help="No topic changes.")] = False,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="Leave a failure large.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, max=1e7, help="Start no further seed after so many seconds."),
    ] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the last run's transcript to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Run the deterministic simulator.

    \b
    Examples:
      dledger chaos sim --seeds 100
      dledger chaos sim --seed 42 --duration 4.2 --faults 3,7
    """
    recipe = Recipe(
        seed,
        duration_ms=round(duration * 1000),
        rate=rate,
        nodes=nodes,
        producers=producers,
        consumers=consumers,
        queues=queues,
        faults=_fault_numbers(faults),
        is_fair=fair,
        without_admin=no_admin,
    )
    _check_faults(recipe, seeds)
    if transcript is not None:
        _write(transcript, ())  # now, and not after an hour of seeds
    tally = _run_seeds(recipe, seeds, time_limit)
    recipe, failed = _made_small(recipe, tally.last, is_small=no_shrink)
    if transcript is not None:
        _write(transcript, (failed or tally.last).transcript)
    _tell(_facts(tally, failed, recipe), failed, as_json=as_json)
    raise typer.Exit(EXIT_FAILED if failed else 0)


def _made_small(recipe: Recipe, last: Report, *, is_small: bool) -> tuple[Recipe, Report | None]:
    """The recipe and the report of what failed, shrunk unless it is small enough; the recipe as it
    is and None when nothing did: only the last run can have failed."""
    if last.failure is None:
        return recipe, None
    broken = _at_seed(recipe, last.plan.seed)
    return (broken, last) if is_small else shrink(broken, last)


def _fault_numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if text == "none":
        return ()
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no list of numbers", param_hint="--faults"
        ) from error


def _check_faults(recipe: Recipe, seeds: int) -> None:
    """A number that no seed has would be left out, and the run be another than was meant."""
    if not recipe.faults or seeds > 1:
        return  # other seeds have other faults
    known = {fault.number for fault in replace(recipe, faults=None).plan().faults}
    if missing := [str(number) for number in recipe.faults if number not in known]:
        there = f"it has {len(known)}, from 0 on" if known else "it has none"
        raise typer.BadParameter(
            f"seed {recipe.seed} has no fault {', '.join(missing)} within "
            f"{recipe.duration_ms / 1000:g} s: {there}",
            param_hint="--faults",
        )


def _write(file: Path, lines: Sequence[object]) -> None:
    try:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--transcript") from error


def _at_seed(recipe: Recipe, seed: int) -> Recipe:
    return Recipe(**{**asdict(recipe), "seed": seed})


def _run_seeds(recipe: Recipe, seeds: int, time_limit_s: float | None) -> Tally:
    """Up to the first failure, the last seed or the time limit; one at least."""
    started = time.monotonic()
    tally = Tally(run_plan(recipe.plan()))
    for number in range(recipe.seed + 1, recipe.seed + seeds):
        is_late = time_limit_s is not None and time.monotonic() - started > time_limit_s
        if tally.last.failure or is_late:
            break
        tally.add(run_plan(_at_seed(recipe, number).plan()))
    return tally


def _facts(tally: Tally, failed: Report | None, recipe: Recipe) -> dict[str, object]:
    facts = {**tally.facts(), "failure": None}
    if failed is not None and failed.failure is not None:
        facts["failure"] = {**asdict(failed.failure), "seed": failed.plan.seed}
        facts["trace"] = failed.trace
        facts["replay"] = recipe.command()
    return facts


def _tell(facts: dict[str, object], failed: Report | None, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print_text(facts, failed)


def _print_text(facts: dict[str, object], failed: Report | None) -> None:
    if failed is not None and failed.failure is not None:
        for line in failed.transcript[-SHOWN_LINES:]:
            typer.echo(str(line))
        typer.echo(f"\nseed {failed.plan.seed} FAILED at {failed.failure.time_us / 1e6:.6f} s")
        typer.echo(failed.failure.detail)
        typer.echo(f"replay: {facts['replay']}")
        return
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:18} {value}")
