"""`dledger audit watch` and `dledger audit package`: what runs without anybody looking on."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from audit.commands.outcome import check_target, errors_told, make_folder, parse_size, write_page
from audit.commands.selection import run_audit, wanted_replicas
from audit.commands.watching import Bounds, Watch, WatchMetrics, in_words
from audit.engines.choice import EngineName
from audit.engines.package import TASKS
from audit.errors import UsageMistake
from audit.keeping.history import Round
from audit.keeping.remembering import Remembering
from audit.keeping.store import WatchStore, read_history
from audit.proof.replicas import Options
from audit.showing.trend_page import render_trend
from dledger.endpoint import Endpoint
from dledger.spark.package import write_package

_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d)")
_MAX_S = 366 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TREND = "trend.html"


class _Ended(BaseException):
    """SIGTERM: the end that a service manager asks for, and no failure. Like Ctrl-C it passes every
    handler of errors, so that a round of hours doesn't keep the machine from being shut down."""


def watch(
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="10m, 1h.")] = "10m",
    full_every: Annotated[
        str,
        typer.Option(
            "--full-every", metavar="TIME", help="What was proved is read again within this."
        ),
    ] = "7d",
    full: Annotated[
        bool, typer.Option("--full", help="Believe nothing: read everything each round.")
    ] = False,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, help="End after so many.", show_default="never")
    ] = 0,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after so long.")
    ] = None,
    reports: Annotated[
        Path, typer.Option("--reports", metavar="DIR", help="Where the reports go.")
    ] = Path("audits"),
    kept: Annotated[
        int, typer.Option("--keep", min=1, help="Reports of each exit code that stay.")
    ] = 48,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="For Prometheus.")
    ] = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option("--metrics-file", metavar="FILE", help="The same, for a textfile collector."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Each round as a line of JSON.")] = False,
    replica: Annotated[list[str] | None, typer.Option("--replica")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", show_default="run")] = None,
    bootstrap: Annotated[str | None, typer.Option("--bootstrap")] = None,
    engine: Annotated[EngineName, typer.Option("--engine")] = EngineName.LOCAL,
    master: Annotated[str | None, typer.Option("--master")] = None,
    rate: Annotated[str, typer.Option("--rate", metavar="SIZE", help="Bytes a second.")] = "100MB",
    derived: Annotated[
        bool | None, typer.Option("--derived/--log-only", show_default="what can be read")
    ] = None,
    accept_retention: Annotated[bool, typer.Option("--accept-retention")] = False,
) -> None:
    """Audit again and again: what is new, and by turns what was proved before.

    Reports, history and a trend page go to a folder, metrics to Prometheus. It ends with the worst
    of its rounds; Ctrl-C ends it with 130.

    \b
    Examples:
      dledger audit watch --every 10m --bootstrap host:7001 --metrics-port 9109
      dledger audit watch --dir run --rounds 1 --metrics-file /srv/audit.prom
    """
    with errors_told():
        every_s = parse_duration(every)
        bounds = Bounds(rounds, 0 if lasting is None else parse_duration(lasting))
        period_s = 0 if full else parse_duration(full_every)
        options = Options(
            bytes_per_s=parse_size(rate), derived=derived, accept_retention=accept_retention
        )
        if bootstrap is None:
            wanted_replicas(replica, directory, bootstrap, engine)  # a mistake leaves no folder
        make_folder(reports)
        if metrics_file is not None:
            check_target(metrics_file)
        metrics = WatchMetrics()
        with _store_of(reports) as store, _served(metrics.registry, metrics_port):
            memory = Remembering(store, period_s, clock=time.time)
            watching = Watch(
                # Asked anew each time: addresses of a local group change when it is made anew.
                lambda: run_audit(
                    wanted_replicas(replica, directory, bootstrap, engine),
                    (engine, master, None),
                    options,
                    memory.audit,
                ),
                reports,
                metrics,
                kept=kept,
                clock=time.time,
                steady=time.monotonic,
                wait=threading.Event().wait,
                told=lambda line: typer.echo(line),
                history=_Kept(store, reports, metrics.registry, metrics_file),
                as_json=as_json,
            )
            _until_ended(lambda: watching.run(every_s, bounds))
        raise typer.Exit(int(watching.exit_code))


class _Kept:
    """Puts a round wherever it is looked for: the store, the trend page, the metrics' file."""

    def __init__(
        self, store: WatchStore, folder: Path, registry: CollectorRegistry, file: Path | None
    ) -> None:
        self._store = store
        self._folder = folder
        self._registry = registry
        self._file = file

    def add(self, each: Round) -> list[str]:
        """See `audit.commands.watching.History`."""
        self._store.add(each)
        problems = self._store.problems()
        try:
            rounds, _ = read_history(self._folder)
            write_page(self._folder / TREND, render_trend(rounds, str(self._folder)))
        except Exception as error:  # noqa: BLE001 - The store has the round.
            problems.append(f"no trend page: {in_words(error)}")
        if self._file is not None:
            try:
                write_to_textfile(str(self._file), self._registry)
            except Exception as error:  # noqa: BLE001 - as above
                problems.append(f"no metrics in {self._file}: {in_words(error)}")
        return problems


@contextmanager
def _store_of(folder: Path) -> Iterator[WatchStore]:
    store = WatchStore(folder)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _served(registry: CollectorRegistry, port: int | None) -> Iterator[None]:
    """The metrics can be asked for, if a port is given.

    Raises:
        UsageMistake: it can't be had.
    """
    if port is None:
        yield
        return
    endpoint = Endpoint(lambda: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)))
    try:
        found = endpoint.open("127.0.0.1", port)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UsageMistake(f"--metrics-port {port}: {reason}") from error
    sys.stderr.write(f"metrics on 127.0.0.1:{found}\n")
    try:
        yield
    finally:
        endpoint.close()


def _until_ended(run: Callable[[], None]) -> None:
    """Runs it to its end, or until SIGTERM; Ctrl-C is the caller's."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        run()
    except _Ended:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def package(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The zip to write.")],
) -> None:
    """Write what executors import, for `spark-submit --py-files`.

    \b
    Example:
      dledger audit package audit.zip
    """
    with errors_told():
        check_target(target)
        typer.echo(write_package(target, TASKS))


def parse_duration(text: str) -> int:
    """`30s`, `10m`, `1h`, `1d` in seconds.

    Raises:
        UsageMistake: it is none of these, no time at all, or more than a year.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= _MAX_S:
        raise UsageMistake(f"{text!r} is not a time like 30s, 10m or 1h, of a year at most")
    return seconds
