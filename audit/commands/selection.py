"""From the options of a command to an audit: which replicas, with which engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from audit.engines.choice import EngineName, make_engine
from audit.engines.engine import Engine, PassStarted
from audit.errors import UsageMistake
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Audit
from audit.reading.live import Over, replicas_of_directory, replicas_of_group
from audit.reading.replica import Replica, parse_replica
from audit.showing.terminal import progress_shown
from dledger.addresses import parse_addresses
from dledger.terminal.tls import forget

DEFAULT_DIRECTORY: Final = Path("run")

# Whoever makes an audit of replicas: with an engine, options, and somebody told of its passes.
Auditing = Callable[[list[Replica], Engine, Options, PassStarted], Audit]


def wanted_replicas(
    named: list[str] | None,
    directory: Path | None,
    bootstrap: str | None,
    engine: EngineName,
    over: Over = Over.AUTO,
) -> list[Replica]:
    """The replicas that one of the three ways names; the group in `run` if none is used.

    Raises:
        UsageMistake: more than one is used, or it names nothing.
        Unreachable: nodes that were to be asked don't answer.
    """
    if sum(way is not None for way in (named or None, directory, bootstrap)) > 1:
        raise UsageMistake("--replica, --dir and --bootstrap exclude each other")
    if named and over is Over.GRPC:
        raise UsageMistake("--over grpc asks nodes that run: name them with --bootstrap or --dir")
    if named:
        return [parse_replica(text) for text in named]
    if bootstrap is not None:
        addresses = _addresses(bootstrap)
        return replicas_of_group(addresses, on_hosts=engine is EngineName.SPARK, over=over)
    forget()
    return replicas_of_directory(directory or DEFAULT_DIRECTORY, over)


def _addresses(text: str) -> list[str]:
    """`HOST:PORT,...`, one by one.

    Raises:
        UsageMistake: it names nobody, or something else.
    """
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise UsageMistake(f"--bootstrap: {error}") from error


def run_audit(
    replicas: list[Replica],
    engine: tuple[EngineName, str | None, int | None],
    options: Options,
    auditing: Auditing = audit_replicas,
) -> Audit:
    """One audit with an engine of its own, its progress shown."""
    runner = make_engine(*engine)
    try:
        with progress_shown() as started:
            return auditing(replicas, runner, options, started)
    finally:
        runner.close()
