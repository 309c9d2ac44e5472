"""`dledger audit history`: what the rounds of a watch came to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from audit.commands.outcome import check_target, errors_told, write_page
from audit.commands.watch import parse_duration
from audit.keeping.history import round_as_json, worst_exit
from audit.keeping.store import read_history
from audit.showing.terminal import history_lines
from audit.showing.trend_page import render_trend
from dledger.outcome import ExitCode
from dledger.terminal.outcome import complain


def history(
    reports: Annotated[
        Path, typer.Option("--reports", metavar="DIR", help="Where the watch writes.")
    ] = Path("audits"),
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Of the last 30m, 1d.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, help="So many rounds at most.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Each round as a line of JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the trend page.")
    ] = None,
) -> None:
    """Show the rounds of a watch, the last one last.

    It ends with the worst of those that it is asked about: all since a time, or the last ones. No
    round at all is incomplete, as nobody has looked, and so is one that can't be read any more.

    \b
    Examples:
      dledger audit history --since 1d
      dledger audit history --reports audits --html trend.html
    """
    with errors_told():
        if html is not None:
            check_target(html)
        oldest = 0.0 if since is None else time.time() - parse_duration(since)
        rounds, unreadable = read_history(reports)
        asked = [each for each in rounds if each.finished >= oldest]
        first = next((n for n, each in enumerate(rounds) if each.finished >= oldest), len(rounds))
        if html is not None:
            write_page(html, render_trend(asked, str(reports)))
        shown = asked[-last:]
        if since is None:
            asked, first = shown, len(rounds) - last + 1
        # Of one right before the first since a time nobody knows when it was.
        lost = sum(place >= first for place in unreadable)
        for line in (
            (json.dumps(round_as_json(each)) for each in shown) if as_json else history_lines(shown)
        ):
            typer.echo(line)
        if unreadable:
            complain(
                f"{len(unreadable)} rounds can't be read any more, {lost} of them in that time"
            )
        if len(asked) > len(shown):
            worst = worst_exit(each.exit_code for each in asked)
            complain(f"{len(asked)} rounds in that time, the worst with {int(worst)} (--last)")
        if not asked:
            complain("no round in that time")
        codes = [each.exit_code for each in asked]
        if lost or not asked:
            codes.append(int(ExitCode.INCOMPLETE))
        raise typer.Exit(int(worst_exit(codes)))
