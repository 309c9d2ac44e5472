"""The main job, shown: the standard library goes through a group whose leader is killed twice.

Every line of every top-level module of the running Python is sent as a message, keyed by file.
When a third and when two thirds of the lines are acknowledged, the leader's process gets a
SIGKILL while lines are under way, and is started again three seconds later; sending goes on
meanwhile. Then a consumer that has never met the sender reads the topic from its beginning, puts
the files together and compares their SHA-256 with the originals'.

Beside it two push consumers, a process each, work as a group; one of them is killed in the midst of
it. The other gets through with everything: no line is forgotten, and what is handled twice had been
handled by the dead one and not committed yet.

The load is never slowed. Because a third of the lines may take less time than a restart, the
sender stops before the second kill until the first node has caught up (a majority must survive
each kill), and the kill waits until lines are being acknowledged again. A kill happens while half
of the sender's window is under way, or the run fails: it would have shown nothing.

    python -m chaos.demo        exit code 0: every file is identical and no promise was broken
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.local_group import LocalGroup, LocalGroupError
from chaos.account import Received, Settlement, settle
from chaos.corpus import Corpus, standard_library
from chaos.demo_load import TOPIC, Kill, Killer, Load, say
from chaos.demo_members import Handled, Members, members_of
from chaos.errors import DemoFailed
from dledger.client import (
    Client,
    ClientError,
    ProducerOptions,
    StartFrom,
)

QUEUES = 8
READ_IDLE_TIMEOUT_S = 20.0
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Report:
    """What a run showed."""

    settlement: Settlement
    kills: tuple[Kill, ...]
    handled: Handled
    send_duration_s: float
    through_duration_s: float  # from the last acknowledgement until the group had committed all
    read_duration_s: float

    @property
    def flawless(self) -> bool:
        """Whether every promise was kept."""
        return self.settlement.flawless and self.handled.flawless


async def run_demo(group: LocalGroup, corpus: Corpus, console: Console) -> Report:
    """One run against a group that isn't started yet; it is left running.

    Raises:
        DemoFailed, LocalGroupError, ClientError: it came to no settlement.
    """
    await group.up()
    with _progress() as progress:
        begun = time.monotonic()
        async with Client.connect(group.addresses) as client:
            await client.create_topic(TOPIC, queues=QUEUES)
            with members_of(group.directory, group.addresses, TOPIC, QUEUES) as members:
                await members.at_work()
                async with client.producer(ProducerOptions(close_timeout_ms=1)) as producer:
                    load = Load(producer, corpus, progress)
                    killer = Killer(group, client, load, progress.console)
                    kills = await _send_and_kill(load, killer, members)
                sent_at = time.monotonic()
                await members.through(client)
                through_at = time.monotonic()
                await members.dismiss()
                handled = members.account(load.sent)
        reading_at = time.monotonic()
        received = await _read_everything(group.addresses, progress)
        read_at = time.monotonic()
    return Report(
        settle(corpus, load.sent, received),
        kills,
        handled,
        sent_at - begun,
        through_at - sent_at,
        read_at - reading_at,
    )


async def _send_and_kill(load: Load, killer: Killer, members: Members) -> tuple[Kill, ...]:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            killing = tasks.create_task(killer.run())
            tasks.create_task(_lose_one(load, members, killer.console))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the other task was cancelled because of it
    return tuple(killing.result())


async def _lose_one(load: Load, members: Members, console: Console) -> None:
    handled = await members.lose_one(load, load.total // 2)
    say(console, f"killed one of two consumers, which had handled {handled:,} lines")


async def _read_everything(addresses: list[str], progress: Progress) -> Received:
    """The topic from its beginning to its present end, by a consumer that is new to it."""
    received = Received()
    async with Client.connect(addresses) as client:
        described = await client.describe_topic(TOPIC)
        missing = {queue.queue_id: queue.max_offset for queue in described.queues}
        total = sum(missing.values())
        task = progress.add_task("reading", total=total)
        consumer = client.pull_consumer(
            TOPIC, start=StartFrom.FIRST, idle_timeout_s=READ_IDLE_TIMEOUT_S
        )
        async with consumer:
            async for batch in consumer.batches():
                for message in batch:
                    received.on_message(message.properties, message.body)
                    if message.queue_offset + 1 >= missing.get(message.queue_id, 0):
                        missing.pop(message.queue_id, None)
                progress.update(task, advance=len(batch))
                if not any(missing.values()):
                    return received
    raise DemoFailed(f"nothing came for {READ_IDLE_TIMEOUT_S:g} s, of queues {sorted(missing)}")


def _progress() -> Progress:
    console = Console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("lines"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def show(report: Report, console: Console) -> None:
    """The table at the end."""
    found = report.settlement
    table = Table(show_header=False, title="the standard library, through two dead leaders")
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("sent", found.sent),
        ("acknowledged", found.acknowledged),
        ("failed", found.failed),
        ("unknown", found.unknown),
        ("lost", found.lost),
        ("duplicated", found.duplicated),
        ("out of order", found.out_of_order),
        ("never sent, yet received", found.phantom),
    ):
        table.add_row(name, f"{value:,}")
    table.add_row("files identical", f"{found.files_identical} of {found.files}")
    for number, kill in enumerate(report.kills, 1):
        table.add_row(
            f"kill {number} ({kill.node_id}, {kill.under_way:,} under way) to the first\n"
            "acknowledgement by the next leader",
            f"{kill.gap_ms:.0f} ms",
        )
    handled = report.handled
    table.add_row("lines handled by two consumers, one killed", f"{handled.lines:,}")
    table.add_row("handled by nobody", f"{handled.forgotten:,}")
    table.add_row("handled again, as the dead one hadn't committed", f"{handled.again:,}")
    table.add_row("handled again for no reason", f"{handled.without_reason:,}")
    table.add_row("sending, kills and restarts", f"{report.send_duration_s:.1f} s")
    table.add_row("until the consumers were through", f"{report.through_duration_s:.1f} s")
    table.add_row("reading", f"{report.read_duration_s:.1f} s")
    console.print(table)


@contextmanager
def scratch_group(parent: Path, *, keep: bool) -> Iterator[LocalGroup]:
    """A group in a fresh folder; afterwards no process runs and no file is left, come what may.
    With `keep` the files stay where the run came to its end."""
    parent_was_there = parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    group = LocalGroup.create(Path(tempfile.mkdtemp(prefix="demo-", dir=parent)))
    is_done = False
    try:
        yield group
        if keep:
            asyncio.run(group.down())
        is_done = True
    finally:
        with _interrupts_ignored():
            group.kill_all()
            if not (keep and is_done):
                group.wipe()
            if not parent_was_there:
                with suppress(OSError):  # someone else put something there meanwhile
                    parent.rmdir()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end_like_ctrl_c() -> None:
    """A closed terminal and a SIGTERM end the run as Ctrl-C does: with everything cleared up."""
    # In the background of a script it is ignored, and these two would be ignored with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--dir", type=Path, default=Path("run"), help="where a folder is made")
    parser.add_argument("--files", type=int, help="only so many files, for a quick look")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' data, for an audit")
    options = parser.parse_args(arguments)
    console = Console()
    corpus = standard_library(options.files)
    _end_like_ctrl_c()
    try:
        with scratch_group(options.dir, keep=options.keep) as group:
            say(
                console,
                f"{len(corpus.files)} files, {corpus.line_count:,} lines; "
                f"three nodes in {group.directory}",
            )
            report = asyncio.run(run_demo(group, corpus, console))
    except KeyboardInterrupt:
        say(console, "interrupted; the nodes are stopped and their files removed")
        return EXIT_INTERRUPTED
    except (DemoFailed, LocalGroupError, ClientError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    show(report, console)
    if options.keep:
        say(console, f"kept: make audit RUN={group.directory}")
    return 0 if report.flawless else 1


if __name__ == "__main__":
    sys.exit(main())
