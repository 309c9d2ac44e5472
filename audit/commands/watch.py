"""`dledger audit watch` and `dledger audit package`: what runs without anybody looking on."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from audit.commands.outcome import check_target, errors_told, make_folder, parse_size
from audit.commands.selection import run_audit, wanted_replicas
from audit.commands.watching import Watch, WatchMetrics
from audit.engines.choice import EngineName
from audit.engines.package import TASKS
from audit.errors import UsageMistake
from audit.proof.replicas import Options
from dledger.endpoint import Endpoint
from dledger.spark.package import write_package

_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d)")
_MAX_S = 366 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def watch(
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="10m, 1h.")] = "10m",
    reports: Annotated[
        Path, typer.Option("--reports", metavar="DIR", help="Where the reports go.")
    ] = Path("audits"),
    kept: Annotated[int, typer.Option("--keep", min=1, help="Reports that stay.")] = 48,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="For Prometheus.")
    ] = None,
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
    """Audit again and again; write reports, serve metrics. SIGTERM or Ctrl-C ends it.

    \b
    Example:
      dledger audit watch --every 10m --bootstrap 10.0.0.1:7001 --metrics-port 9109
    """
    with errors_told():
        every_s = parse_duration(every)
        options = Options(
            bytes_per_s=parse_size(rate), derived=derived, accept_retention=accept_retention
        )
        make_folder(reports)
        metrics = WatchMetrics()
        endpoint = Endpoint(lambda: (CONTENT_TYPE_PLAIN_0_0_4, generate_latest(metrics.registry)))
        if metrics_port is not None:
            try:
                port = endpoint.open("127.0.0.1", metrics_port)
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                raise UsageMistake(f"--metrics-port {metrics_port}: {reason}") from error
            sys.stderr.write(f"metrics on 127.0.0.1:{port}\n")
        over = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        Watch(
            # Asked anew each time: addresses of a local group change when it is made anew.
            lambda: run_audit(
                wanted_replicas(replica, directory, bootstrap, engine),
                (engine, master, None),
                options,
            ),
            reports,
            metrics,
            kept=kept,
            clock=time.time,
            wait=over.wait,
            told=lambda line: typer.echo(line),
        ).run(every_s)
        if metrics_port is not None:
            endpoint.close()


def package(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The zip to write.")],
) -> None:
    """Write what executors import, for `spark-submit --py-files`."""
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
