"""`dledger bench`: the benchmarks' command line.

Each command picks the group to measure, runs one benchmark there and prints its report, as
tables or with --json as one JSON object (`dledger_cli.bench.figures` says which). Exit codes: 0
when what must hold holds, 1 when it doesn't (a message was lost, a send failed) or, with --strict,
when a target was missed. A slow machine is no failure otherwise.
"""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dledger.terminal.loops import sigterm_interrupts
from dledger.terminal.options import JsonOption, parse_size
from dledger.terminal.outcome import errors_told
from dledger.terminal.program import new_program
from dledger_cli.bench import delivery, lasting
from dledger_cli.bench.arena import Arena
from dledger_cli.bench.command import (
    TEMPORARY,
    BenchFolderOption,
    BootstrapOption,
    DirectoryOption,
    InFlightOption,
    Measure,
    MinutesOption,
    NodesOption,
    Place,
    RoundsOption,
    SecondsOption,
    SizeOption,
    StrictOption,
    benchmark,
    progress,
    quietly,
    tell_report,
)
from dledger_cli.bench.consume import consume as measure_consume
from dledger_cli.bench.e2e import end_to_end
from dledger_cli.bench.failover import failover as measure_failover
from dledger_cli.bench.figures import Report
from dledger_cli.bench.produce import PROMISES, Case
from dledger_cli.bench.produce import produce as measure_produce
from dledger_cli.bench.push import push as measure_push
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.starting import measure_import
from dledger_cli.bench.steady import steady as measure_steady
from dledger_cli.bench.turns import measure_turns

app = new_program(
    "Figures beside yardsticks of the same run: a bare gRPC echo, a bare write + fdatasync."
)
delivery.register(app)
lasting.register(app)


class FaultSignal(StrEnum):
    """What strikes the leader: its death, or that it hangs."""

    KILL = "KILL"
    STOP = "STOP"

    @property
    def number(self) -> signal.Signals:
        """The system's signal."""
        return signal.SIGKILL if self is FaultSignal.KILL else signal.SIGSTOP


@app.command()
def produce(
    size: Annotated[
        int | None, typer.Option("--size", min=1, max=4 << 20, help="Bytes of a body.")
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option("--in-flight", min=1, max=65_536, help="Messages outstanding at once."),
    ] = None,
    seconds: SecondsOption = 10.0,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Beside the same on a second new group, under TLS.")
    ] = False,
) -> None:
    """Messages a second with a future each, and the latency of one in flight.

    Without --size and --in-flight, the cases that were promised: 1 KiB and 128 bytes with 512 in
    flight, 1 KiB with one. With either, that case alone (1024 bytes, 512 in flight by default).

    \b
    Examples:
      dledger bench produce
      dledger bench produce --size 128 --in-flight 2048 --seconds 5 --json
      dledger bench produce --tls --rounds 10
    """
    alone = Case(1024 if size is None else size, 512 if in_flight is None else in_flight)
    cases = list(PROMISES) if size is None and in_flight is None else [alone]

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        if tls:
            # Brings a library with it that nothing else here needs.
            from dledger_cli.bench.under_tls import produce_beside_tls

            return produce_beside_tls(place, echo, cases, seconds=seconds, rounds=rounds, tell=tell)
        return measure_produce(place, echo, cases, seconds=seconds, rounds=rounds, tell=tell)

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


@app.command()
def consume(
    size: SizeOption = 1024,
    messages: Annotated[int, typer.Option("--messages", min=1, help="In the topic.")] = 200_000,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Messages a second that the client reads and decodes, from a topic filled before.

    \b
    Example:
      dledger bench consume --messages 100000
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_consume(
            place, echo, size_bytes=size, messages=messages, rounds=rounds, tell=tell
        )

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


@app.command()
def push(
    size: SizeOption = 1024,
    in_flight: InFlightOption = 512,
    members: Annotated[
        int, typer.Option("--members", min=1, max=64, help="Processes that work.")
    ] = 2,
    seconds: SecondsOption = 25.0,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Messages a second that are sent, handled by a group's members, and committed.

    Beside producing alone, in alternating halves of each round.

    \b
    Example:
      dledger bench push --members 4
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_push(
            place,
            echo,
            size_bytes=size,
            in_flight=in_flight,
            members=members,
            seconds=seconds,
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


@app.command()
def e2e(
    size: SizeOption = 1024,
    per_second: Annotated[
        int, typer.Option("--rate", min=1, help="Messages sent a second.")
    ] = 1000,
    seconds: SecondsOption = 10.0,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Latency from sending a message to having it, by a loop and by a handler.

    \b
    Example:
      dledger bench e2e --rate 100
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return end_to_end(
            place,
            echo,
            size_bytes=size,
            per_second=per_second,
            seconds=seconds,
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


@app.command()
def failover(
    kills: Annotated[int, typer.Option("--kills", min=1, help="How many faults.")] = 30,
    fault: Annotated[FaultSignal, typer.Option("--signal", help="What the leader gets.")] = (
        FaultSignal.KILL
    ),
    size: Annotated[
        int, typer.Option("--load-size", min=8, max=4 << 20, help="Bytes of a body.")
    ] = 1024,
    in_flight: InFlightOption = 512,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Time without an acknowledgement when the leader dies or hangs under full load.

    From the signal to the first acknowledgement by the next leader, as the client sees it. At
    the end everything is read back: exit code 1 if an acknowledged message is missing.

    \b
    Examples:
      dledger bench failover --kills 5
      dledger bench failover --signal STOP
    """
    measure = _failover(kills, fault, size, in_flight)
    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)


@app.command()
def steady(
    minutes: MinutesOption = 3.0,
    bytes_limit: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="SIZE", help="Stop sooner, after so much traffic (2GB, 500MiB)."
        ),
    ] = None,
    size: SizeOption = 1024,
    in_flight: InFlightOption = 512,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Full load without a fault: changes of leader, lateness of event loops, memory.

    \b
    Examples:
      dledger bench steady
      dledger bench steady --minutes 60 --bytes 2GB
    """
    limit = None if bytes_limit is None else parse_size(bytes_limit)
    measure = _steady(minutes, limit, size, in_flight)
    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)


@app.command(name="import")
def starting(
    rounds: RoundsOption = 7, as_json: JsonOption = False, strict: StrictOption = False
) -> None:
    """What importing the client costs a program beyond grpc's own import.

    \b
    Example:
      dledger bench import --rounds 15
    """
    report = measure_import(rounds)
    tell_report(report, Path.cwd(), as_json=as_json, strict=strict)


@app.command()
def turns(
    topics: Annotated[
        int, typer.Option("--topics", min=1_000, max=50_000, help="Topics of one queue each.")
    ] = 10_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds.")] = 1,
    directory: BenchFolderOption = TEMPORARY,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """The longest turn of a node's event loop under each load that could hold it.

    \b
    Example:
      dledger bench turns --topics 2000
    """
    with errors_told(), sigterm_interrupts(), quietly(), progress() as tell:
        report = measure_turns(directory, topics, rounds, tell)
    tell_report(report, directory, as_json=as_json, strict=strict)


@app.command(name="all")
def everything(
    kills: Annotated[int, typer.Option("--kills", min=1, help="Faults of either kind.")] = 30,
    minutes: MinutesOption = 3.0,
    seconds: SecondsOption = 10.0,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Everything that docs/performance.md holds, each on a new group unless --dir has one.

    Takes about ten minutes and 20 GB of disk; the reports come one by one. With --json there is
    one object at the end, {"format", "reports": [...]}.

    \b
    Example:
      dledger bench all --kills 5 --minutes 1 --seconds 5
    """

    def producing(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        cases = list(PROMISES)
        return measure_produce(place, echo, cases, seconds=seconds, rounds=rounds, tell=tell)

    def consuming(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_consume(
            place, echo, size_bytes=1024, messages=200_000, rounds=rounds, tell=tell
        )

    def both(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return end_to_end(
            place,
            echo,
            size_bytes=1024,
            per_second=1000,
            seconds=seconds,
            rounds=rounds,
            tell=tell,
        )

    faults = [_failover(kills, fault, 1024, 512) for fault in FaultSignal]
    measures = [producing, consuming, both, *faults, _steady(minutes, None, 1024, 512)]
    benchmark(measures, Place(directory, None, nodes), as_json=as_json, strict=strict)


def _failover(kills: int, fault: FaultSignal, size: int, in_flight: int) -> Measure:
    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_failover(
            place,
            echo,
            kills=kills,
            number=fault.number,
            size_bytes=size,
            in_flight=in_flight,
            tell=tell,
        )

    return measure


def _steady(minutes: float, bytes_limit: int | None, size: int, in_flight: int) -> Measure:
    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_steady(
            place,
            echo,
            minutes=minutes,
            bytes_limit=bytes_limit,
            size_bytes=size,
            in_flight=in_flight,
            tell=tell,
        )

    return measure
