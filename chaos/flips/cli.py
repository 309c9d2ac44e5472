"""`dledger chaos flips`: bits that flip in members' files, and what becomes of each.

Exit codes: 0 nobody was given another byte and the members are the same again; 1 otherwise, or when
fewer flips were made than were asked for, or with --strict when one was never noticed; 2 used
wrongly; 3 the group never came to serve; 130 interrupted.
"""

from __future__ import annotations

import random
import shlex
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from chaos.errors import OutputInTheWay
from chaos.flips.campaign import FOUND, FlipOptions, Flipped, Outcome, flip_bits
from dledger.terminal.loops import sigterm_interrupts
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, end, errors_told, new_runner
from dledger.terminal.output import print_columns, print_json

MOST_EVENTS = 3  # of a kind's, that its row names


def command(
    flips: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="One at a time, in one member.")
    ] = 500,
    pairs: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="After them, in two members at once.")
    ] = 100,
    seed: Annotated[
        int | None, typer.Option(help="Decides which bits.", show_default="new")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Files of these kinds: log.", show_default="all"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the members' files here.", show_default="nowhere"),
    ] = None,
    as_json: JsonOption = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 1 if a flip was never noticed.")
    ] = False,
) -> None:
    """Flip random bits in the files of members that run: each has to be found and put right.

    \b
    Examples:
      dledger chaos flips --flips 50 --pairs 10 --seed 7
      dledger chaos flips --only log --only snapshot
      dledger chaos flips --strict --json
    """
    begun = time.monotonic()
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed

    def tell(text: str) -> None:
        typer.echo(f"{time.monotonic() - begun:7.1f} s  {text}", err=True)

    with errors_told():
        directory = _fresh(out)
        kinds = "".join(f" --only {shlex.quote(kind)}" for kind in only or ())
        tell(f"dledger chaos flips --flips {flips} --pairs {pairs} --seed {seed}{kinds}")
        try:
            options = FlipOptions(flips, pairs, seed, directory, tuple(only or ()))
            with sigterm_interrupts(), new_runner() as runner:
                done = runner.run(flip_bits(options, tell))
        finally:
            if out is None:
                shutil.rmtree(directory)
    if as_json:
        print_json(done.facts())
    else:
        _print(done)
    end(ExitCode.DONE if done.holds and (done.found_all or not strict) else ExitCode.FAILED)


def _fresh(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="dledger-flips-"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise OutputInTheWay(out)
    except OSError as error:
        raise OutputInTheWay(out, str(error)) from error
    return out.absolute()


def _print(done: Flipped) -> None:
    print_columns(
        ("FILE", "FLIPS", *(each.value.upper() for each in Outcome), "TOLD BY"),
        [
            (
                kind,
                counts.total(),
                *(counts[each] or None for each in Outcome),
                ", ".join(name for name, _ in done.events[kind].most_common(MOST_EVENTS)) or None,
            )
            for kind, counts in sorted(done.outcomes.items())
        ],
    )
    found = sum(done.total(each) for each in FOUND)
    typer.echo(
        f"\n{found:,} found, {done.total(Outcome.WRITTEN_OVER):,} written over, "
        f"{done.total(Outcome.MEANINGLESS):,} where nothing is, "
        f"{done.total(Outcome.UNNOTICED):,} never noticed; {done.read:,} messages read"
    )
    for text in done.left:
        typer.echo(f"never noticed: {text}")
    for text in done.problems:
        typer.echo(f"PROBLEM: {text}")
    made = "met" if done.made_all else f"NOT MET, {done.made:,} of {done.asked:,}"
    typer.echo(f"each flip and pair made: {made}")
    typer.echo(f"each found: {'met' if done.found_all else 'not met'}")
    is_sound = not done.problems
    typer.echo(f"none served, members the same afterwards: {'met' if is_sound else 'NOT MET'}")
