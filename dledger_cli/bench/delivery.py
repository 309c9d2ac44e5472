"""`dledger bench members`, `rebalance`, `pop`, `topics`: what delivery costs, and how soon it goes
on when somebody comes or goes."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Final

import typer

from dledger.terminal.options import JsonOption
from dledger_cli.bench.arena import Arena
from dledger_cli.bench.command import (
    BootstrapOption,
    DirectoryOption,
    InFlightOption,
    NodesOption,
    Place,
    RoundsOption,
    SecondsOption,
    SizeOption,
    StrictOption,
    benchmark,
)
from dledger_cli.bench.figures import Report
from dledger_cli.bench.members import members as measure_members
from dledger_cli.bench.pop import Shape
from dledger_cli.bench.pop import pop as measure_pop
from dledger_cli.bench.rebalance import rebalance as measure_rebalance
from dledger_cli.bench.rounds import Tell
from dledger_cli.bench.topics import topics as measure_topics

MAX_STREAMS: Final = 2_048  # of a node


def register(app: typer.Typer) -> None:
    """Adds the commands to `dledger bench`."""
    for command in (members, pop, rebalance, topics):
        app.command()(command)


def members(
    count: Annotated[
        int, typer.Option("--members", min=1, max=MAX_STREAMS, help="Each with a stream.")
    ] = 1_000,
    groups: Annotated[int, typer.Option("--groups", min=1, max=10_000, help="Of consumers.")] = 100,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=64, help="In which the members are.")
    ] = 10,
    seconds: SecondsOption = 10.0,
    rounds: RoundsOption = 3,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """What idle members of consumer groups cost, and how soon all are back after a failover.

    \b
    Examples:
      dledger bench members
      dledger bench members --members 200 --groups 20 --processes 4 --seconds 5
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_members(
            place,
            echo,
            count=count,
            groups=groups,
            processes=processes,
            seconds=seconds,
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)


def pop(
    size: SizeOption = 1024,
    under_way: Annotated[
        int, typer.Option("--under-way", min=1, max=1_024, help="Receives at once, in all.")
    ] = 64,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=1_024, help="Messages of a receive.")
    ] = 32,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that receive.")
    ] = 2,
    messages: Annotated[
        int, typer.Option("--messages", min=1, help="In the full topic.")
    ] = 100_000,
    in_flight: InFlightOption = 512,
    seconds: SecondsOption = 15.0,
    rounds: RoundsOption = 3,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Messages a second that workers are handed one by one and acknowledge.

    From a topic that was filled before, and beside a producer.

    \b
    Examples:
      dledger bench pop
      dledger bench pop --messages 20000 --workers 1 --batch 1
    """
    if under_way < workers:
        raise typer.BadParameter("each worker has one at least", param_hint="--under-way")
    shape = Shape(size, under_way, batch, workers)

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_pop(
            place,
            echo,
            shape=shape,
            messages=messages,
            in_flight=in_flight,
            seconds=seconds,
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


def rebalance(
    count: Annotated[int, typer.Option("--members", min=2, max=64, help="Each a process.")] = 4,
    queues: Annotated[int, typer.Option("--queues", min=2, max=1_024, help="At work.")] = 32,
    many: Annotated[
        int, typer.Option("--many", min=1, max=1_000, help="Members that one more joins.")
    ] = 100,
    many_queues: Annotated[
        int, typer.Option("--many-queues", min=2, max=1_024, help="That these share.")
    ] = 1_000,
    rounds: RoundsOption = 5,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """How soon queues are worked on again when a member of their group dies, or another one comes.

    \b
    Examples:
      dledger bench rebalance
      dledger bench rebalance --members 8 --queues 64 --rounds 10
    """

    if many >= many_queues:
        raise typer.BadParameter("more than --many", param_hint="--many-queues")

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_rebalance(
            place,
            echo,
            members=count,
            queues=queues,
            many=(many, many_queues),
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, bootstrap, nodes), as_json=as_json, strict=strict)


def topics(
    count: Annotated[int, typer.Option("--topics", min=1, max=50_000, help="To make.")] = 10_000,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1_024, help="Of each.")] = 4,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=1_024, help="Creations at once.")
    ] = 64,
    rounds: RoundsOption = 3,
    nodes: NodesOption = 3,
    directory: DirectoryOption = None,
    as_json: JsonOption = False,
    strict: StrictOption = False,
) -> None:
    """Many topics: making them, starting a node with them, and the memory that they take.

    \b
    Examples:
      dledger bench topics
      dledger bench topics --topics 1000 --rounds 1
    """

    def measure(place: Arena, echo: str, tell: Tell) -> Coroutine[object, object, Report]:
        return measure_topics(
            place,
            echo,
            count=count,
            queues=queues,
            in_flight=in_flight,
            rounds=rounds,
            tell=tell,
        )

    benchmark([measure], Place(directory, None, nodes), as_json=as_json, strict=strict)
