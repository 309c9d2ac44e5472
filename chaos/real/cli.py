"""`dledger chaos run`, `list` and `report`: faults on real processes, from the command line.

`run` puts what it found into a fresh folder: `report.json`, `report.html`, `history.jsonl`, the
books of consumer groups' members, and the nodes' logs; their data only with --keep, or when
something was found. Exit codes: 0 nothing was found; 1 an anomaly or a problem; 2 used wrongly (an
unknown scenario, node or nemesis, a history or a book cut short, a port in use); 3 the group never
came to a leader; 130 interrupted.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from broker.local_group import LocalGroup, PortInUse
from chaos.checkers.history import History, read_history
from chaos.errors import OutputInTheWay, RunBroken
from chaos.real.audited import GROUP_FOLDER, HISTORY_FILE, audited, audits, chosen_audits
from chaos.real.crew import BOOKS_FOLDER, CREW_FILE, Deliveries, read_deliveries
from chaos.real.deliveries import check_deliveries, faults_of
from chaos.real.finished import Finished, RunOptions
from chaos.real.measure import FORMAT, anomaly_facts, event_count, power_cuts, report_facts
from chaos.real.nemeses import NEMESES
from chaos.real.page import page
from chaos.real.reading import Retained
from chaos.real.runner import run_chaos
from chaos.real.scenario import MAX_NODES, Choices, Option, Scenario, find, packaged, plan_steps
from chaos.real.terminal import print_report
from chaos.real.verdict import ending, judge
from dledger.terminal.loops import sigterm_interrupts
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, complain, end, errors_told, new_runner
from dledger.terminal.output import print_columns, print_json
from store.atomic_file import replace_file
from store.files import OsFiles

REPORT_FILE: Final = "report.json"
PAGE_FILE: Final = "report.html"
LOGS_FOLDER: Final = "logs"
DEFAULT_PARENT: Final = Path("run/chaos")
DEFAULT_SECONDS: Final = 30.0
MAX_AT_ONCE: Final = 100  # runs of a scenario that begin within a second
# Nodes listen on successive ports, and serve metrics a thousand above.
LAST_BASE_PORT: Final = 65_535 - 1_000 - (MAX_NODES - 1)
# What `report` reads of an old report's facts; it is written with all the others.
NEEDED: Final = frozenset({"problems", "remarks", "counts", "history_events"})


class Flush(StrEnum):
    """The nodes' `store.flush`."""

    SYNC = "sync"
    ASYNC = "async"


class Engine(StrEnum):
    """Who does the audits' work."""

    LOCAL = "local"
    SPARK = "spark"


def register(app: typer.Typer) -> None:
    """Adds the commands to `dledger chaos`."""
    app.command()(run)
    app.command(name="list")(list_scenarios)
    app.command()(report)


def run(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A name of `chaos list`, or a file.py.")
    ],
    seconds: Annotated[
        float, typer.Option(min=1, max=86_400, help="How long faults happen.")
    ] = DEFAULT_SECONDS,
    seed: Annotated[
        int | None, typer.Option(help="Decides the schedule and the victims.", show_default="new")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_NODES, help="How many.", show_default="the scenario's"),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help="Messages a second.", show_default="the scenario's"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where results go.", show_default="below run/chaos"),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=LAST_BASE_PORT, help="Nodes listen from here on.", show_default="free ports"
        ),
    ] = None,
    flush: Annotated[
        Flush,
        typer.Option(help="How nodes flush; what async may lose in power cuts is no anomaly."),
    ] = Flush.SYNC,
    audit: Annotated[
        Engine | None,
        typer.Option(
            help="Audit what the nodes leave on this engine.",
            show_default="none; where old messages go, deliveries on local",
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' data.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Do harm to a group of real nodes under load, and check what its clients saw.

    \b
    Examples:
      dledger chaos run kill-leader --seconds 60
      dledger chaos run everything --nodes 5 --seed 7
      dledger chaos run years --seconds 3600 --audit spark
      dledger chaos run my_scenario.py --json
    """
    say = Console(stderr=True, highlight=False)
    with told():
        chosen = find(scenario)
        options = _options(chosen, out, seconds, seed, nodes, rate)
        options = replace(options, base_port=base_port, flush=flush.value)
        directory = options.directory
        say.print(_replay(options, scenario), markup=False, soft_wrap=True)
        finished = _perform(options, say)
        _audit(finished, audit, say)
    facts = report_facts(finished)
    _write(directory, facts)
    kept = _tidy(directory, keep=keep or not finished.holds)
    if as_json:
        print_json(facts | {"directory": str(directory)})
    else:
        _print(facts, directory, kept=kept)
    end(finished.ending)


def _audit(finished: Finished, engine: Engine | None, say: Console) -> None:
    """What audits of what the nodes have left found is told with the rest."""
    options = finished.options
    chosen = chosen_audits(
        options.directory,
        engine,
        retains_all=options.retained is Retained.ALL,
        may_lose=bool(finished.power_cuts),
    )
    finished.remarks += chosen.remarks
    if chosen.commands:
        say.print(f"auditing on {chosen.engine}", markup=False)
        problems, remarks = audited(chosen.commands, chosen.engine)
        finished.problems += problems
        finished.remarks += remarks


def _print(facts: dict[str, object], directory: Path, *, kept: bool) -> None:
    """The report, where it lies, and how to audit what was `kept`."""
    print_report(facts, Console(highlight=False))
    typer.echo(f"report: {directory / PAGE_FILE}{', with the data of the nodes' * kept}")
    retains_all = not facts["retain_bytes"]
    for words in audits(directory, retains_all=retains_all) if kept else ():
        typer.echo(f"  {shlex.join(('dledger', *words))}")


def list_scenarios(as_json: JsonOption = False) -> None:
    """Show the packaged scenarios, and the nemeses that a scenario may use.

    \b
    Example:
      dledger chaos list --json | jq '.scenarios'
    """
    with told():
        scenarios = packaged()
    if as_json:
        print_json(
            {
                "scenarios": {each.name: each.summary for each in scenarios},
                "nemeses": {
                    each.name: {
                        "summary": each.summary,
                        "target": each.target,
                        "options": dict(each.options),
                    }
                    for each in NEMESES.values()
                },
            }
        )
        return
    print_columns(
        ("SCENARIO", "NODES", "WHAT HAPPENS"),
        [(each.name, each.nodes, each.summary) for each in scenarios],
    )
    typer.echo()
    print_columns(
        ("NEMESIS", "STRIKES", "OPTIONS", "WHAT IT DOES"),
        [
            (
                each.name,
                each.target or None,
                _in_words(each.options) or None,
                each.summary,
            )
            for each in NEMESES.values()
        ],
    )


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    as_json: JsonOption = False,
) -> None:
    """Check a run's history again, and draw its report anew.

    \b
    Example:
      dledger chaos report run/chaos/kill-leader-20260101-120000
    """
    with told():
        facts = _read_facts(directory / REPORT_FILE)
        history = _read_whole(directory / HISTORY_FILE, facts["history_events"])
        cuts = power_cuts(facts)
        verdict = judge(history, cuts)
        anomalies, undecided = verdict.anomalies, verdict.undecided
        deliveries = _read_books(directory / BOOKS_FOLDER, had_any=bool(facts.get("deliveries")))
        if deliveries is not None:
            queues = facts["load"]["queues"]
            delivered = check_deliveries(
                deliveries, history, queues, faults_of(facts), may_lose=bool(cuts)
            )
            anomalies, undecided = anomalies + delivered.anomalies, undecided + delivered.undecided
            facts["deliveries"] = delivered.facts
            verdict.remarks.extend(delivered.remarks)
        facts |= anomaly_facts(anomalies)
        facts["remarks"] += [each for each in verdict.remarks if each not in facts["remarks"]]
        facts["undecided"] = undecided
        ended = ending((*facts["anomalies"], *facts["problems"]), facts["undecided"])
        facts["holds"] = ended is ExitCode.DONE
        facts["counts"]["anomalies"] = sum(facts["anomaly_counts"].values())
        _write(directory, facts)
    if as_json:
        print_json(facts)
    else:
        print_report(facts, Console(highlight=False))
    end(ended)


def _in_words(options: Mapping[str, Option | Choices]) -> str:
    """Names with their defaults; of a choice, everything there is."""
    return ", ".join(
        f"{name}={'|'.join(value) if isinstance(value, tuple) else value}"
        for name, value in options.items()
    )


@contextmanager
def told() -> Iterator[None]:
    """Turns what went wrong into a line and an exit code."""
    with errors_told():
        try:
            yield
        except PortInUse as error:
            complain(str(error))
            end(ExitCode.USAGE)


# --- doing it ---------------------------------------------------------------------------------


def _options(
    scenario: Scenario,
    out: Path | None,
    seconds: float,
    seed: int | None,
    nodes: int | None,
    rate: int | None,
) -> RunOptions:
    """What is done, in a folder that is this run's from now on."""
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    count = nodes or scenario.nodes
    known = {name: nemesis.options for name, nemesis in NEMESES.items()}
    steps = plan_steps(scenario, nodes=count, seconds=seconds, seed=seed, known=known)
    load = scenario.load
    if rate is not None:
        load = replace(load, rate=rate)
    directory = claimed(out, scenario.name)  # once nothing else is wrong
    return RunOptions(scenario, tuple(steps), count, seconds, seed, load, directory)


def _perform(options: RunOptions, say: Console) -> Finished:
    """The run; what was made is taken away again if it can't be finished."""
    begun = time.monotonic()

    def tell(text: str) -> None:
        say.print(f"{time.monotonic() - begun:7.1f} s  {text}", markup=False, soft_wrap=True)

    try:
        with sigterm_interrupts(), new_runner() as runner:
            return runner.run(run_chaos(options, tell))
    except BaseException:
        _remove(options.directory)
        raise


def _replay(options: RunOptions, scenario: str) -> str:
    return (
        f"dledger chaos run {scenario} --seed {options.seed} --seconds {options.seconds:g} "
        f"--nodes {options.nodes} --rate {options.load.rate}"
        + (f" --flush {options.flush}" if options.flush != Flush.SYNC.value else "")
    )


def claimed(out: Path | None, name: str) -> Path:
    """A folder for one run: it has a history that nobody else writes. Two runs may begin at once.

    Args:
        out: the folder; None: one that is called by the scenario's `name` and the time.

    Raises:
        OutputInTheWay: it holds something, can't be made, or another run took it just now.
    """
    directory = out
    try:
        directory = out or _new_folder(name)
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise OutputInTheWay(directory)
        (directory / HISTORY_FILE).touch(exist_ok=False)
    except (FileExistsError, NotADirectoryError):
        raise OutputInTheWay(directory or DEFAULT_PARENT) from None
    except OSError as error:
        raise OutputInTheWay(directory or DEFAULT_PARENT, str(error)) from error
    return directory


def _new_folder(name: str) -> Path:
    """One that wasn't there: of runs that begin within a second each gets its own."""
    DEFAULT_PARENT.mkdir(parents=True, exist_ok=True)
    wanted = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, MAX_AT_ONCE + 1):
        directory = DEFAULT_PARENT / (wanted if number == 1 else f"{wanted}-{number}")
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise OutputInTheWay(DEFAULT_PARENT / wanted)


def _write(directory: Path, facts: dict[str, Any]) -> None:
    """Each file is as a whole what it was or what it is now: of a run that is over, nothing else
    has the facts."""
    text = json.dumps(facts, ensure_ascii=False, indent=1)
    for name, content in ((REPORT_FILE, text + "\n"), (PAGE_FILE, page(facts))):
        replace_file(OsFiles(), directory / name, content.encode())


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunBroken(path, "there is no such file: the run wasn't finished") from None
    except ValueError as error:
        raise RunBroken(path, f"is no JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise RunBroken(path, f"is no report of the format {FORMAT}")
    if missing := sorted(NEEDED - facts.keys()):
        raise RunBroken(path, f"lacks {', '.join(missing)}")
    return facts


def _read_whole(path: Path, events: int) -> History:
    """The history, as long as it was when its run ended: one that stops between two lines, or a
    run's whose last reading is gone, would show nothing and hold."""
    if not path.exists():
        raise RunBroken(path, "there is no such file")
    history = read_history(path)
    if (found := event_count(history)) != events:
        raise RunBroken(path, f"cut short: it has {found:,} events, the run wrote {events:,}")
    return history


def _read_books(folder: Path, *, had_any: bool) -> Deliveries | None:
    """What members did. Where the run had any, nothing but their books shows it: without them, what
    was found in them would be forgotten, and the run might hold."""
    found = read_deliveries(folder)
    if found is None and had_any:
        raise RunBroken(folder / CREW_FILE, "there is no such file, and the run had members")
    return found


def _tidy(directory: Path, *, keep: bool) -> bool:
    """The logs are kept by name, the data only if asked for; whether it is there still."""
    group = LocalGroup.open(directory / GROUP_FOLDER)
    logs = directory / LOGS_FOLDER
    logs.mkdir()
    for node in group.nodes:
        shutil.copyfile(node.log_file, logs / f"{node.id}.log")
    if not keep:
        shutil.rmtree(group.directory)
    return keep


def _remove(directory: Path) -> None:
    """Takes away what an unfinished run has made."""
    shutil.rmtree(directory / GROUP_FOLDER, ignore_errors=True)
    shutil.rmtree(directory / BOOKS_FOLDER, ignore_errors=True)
    (directory / HISTORY_FILE).unlink(missing_ok=True)
    if directory.exists() and not any(directory.iterdir()):
        directory.rmdir()
