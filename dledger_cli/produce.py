"""`dledger produce`: the lines of a file or of standard input become messages.

Memory is bounded however long the input is: lines are read in chunks and wait while the client's
buffer is full. Lines of one key keep their order. The run ends at the first line that can't be
stored, because what a person or script does next depends on which one it was; what was sent
before is flushed and counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from broker.config import MIB
from dledger.client import BufferFull, Client, ClientError, Producer, ProducerOptions, SendResult
from dledger.terminal.interrupts import cancelled_by, interrupts_caught
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import (
    ExitCode,
    complain,
    end,
    errors_told,
    exit_code_of,
    run,
)
from dledger.terminal.output import print_json, progress_bar, remark
from dledger_cli.errors import InputUnreadable, LineTooLong
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.names import TopicArgument
from dledger_cli.streams import LineReader, Lines, open_standard
from dledger_cli.tally import Tally

MAX_LINE_BYTES = 4 * MIB + 2  # the largest message, and its line ending
CLOSE_AFTER_INTERRUPT_MS = 5_000
STANDARD_STREAM = "-"
STANDARD_INPUT = "standard input"


@dataclass(frozen=True, slots=True)
class Job:
    """What to send, from where, and how."""

    topic: str
    source: str
    key: str | None
    tag: str | None
    keep_line_ending: bool

    def body(self, line: bytes) -> bytes:
        """The message that a line is: without `\\n` or `\\r\\n`, unless they are kept."""
        if self.keep_line_ending:
            return line
        return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")


InputOption = Annotated[
    str, typer.Option("--input", metavar="FILE|-", help="Where lines come from.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Key of every message: all go to one queue, in order."),
]
TagOption = Annotated[str | None, typer.Option("--tag", help="Tag of every message.")]
KeepOption = Annotated[
    bool, typer.Option("--keep-line-ending", help="Leave each line's ending in its message.")
]


class Compression(StrEnum):
    """What bodies are compressed with."""

    ZSTD = "zstd"
    LZ4 = "lz4"
    ZLIB = "zlib"


CompressionOption = Annotated[
    Compression | None,
    typer.Option("--compression", help="Compress bodies above 4 KiB, if that makes them smaller."),
]
NameOption = Annotated[
    str,
    typer.Option(
        "--producer-name",
        metavar="NAME",
        help="Send as the producer of that name, and end the one that has it.",
    ),
]


def produce(
    topic: TopicArgument,
    source: InputOption = STANDARD_STREAM,
    key: KeyOption = None,
    tag: TagOption = None,
    keep_line_ending: KeepOption = False,
    producer_name: NameOption = "",
    compression: CompressionOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Send lines as messages and wait until all are on a majority of disks.

    Without a key, messages are spread over the queues. Ctrl-C and SIGTERM stop reading, wait up
    to 5 s for what is under way (the second one doesn't), tell on standard error how much is
    stored and how much may be, and end with 130. Otherwise: 0 everything is stored, 1 something
    isn't or may not be, 3 no broker can be reached.

    \b
    Examples:
      dledger produce logs --input access.log
      tail -f access.log | dledger produce logs --key web1
      dledger produce logs --input access.log --json | jq .latency_ms.p99
    """
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
        options = ProducerOptions(
            close_timeout_ms=CLOSE_AFTER_INTERRUPT_MS,
            name=producer_name,
            compression=None if compression is None else compression.value,
        )
        descriptor = _open_input(source)
    job = Job(topic, source, key, tag, keep_line_ending)
    tally = Tally()
    interrupted = run(_produce(addresses, descriptor, options, job, tally))
    _tell(tally, interrupted=interrupted, as_json=as_json)


def _open_input(source: str) -> int:
    if source == STANDARD_STREAM:
        return open_standard(sys.stdin, STANDARD_INPUT)
    return os.open(Path(source), os.O_RDONLY | os.O_CLOEXEC)


async def _produce(
    addresses: list[str], descriptor: int, options: ProducerOptions, job: Job, tally: Tally
) -> bool:
    """Sends everything; whether it was interrupted. Interrupts are heeded until all is told: the
    second one doesn't wait for what is under way."""
    with interrupts_caught() as interrupt:
        async with connect(addresses) as client:
            if await cancelled_by(interrupt, _known(client, job.topic)):
                return True
            async with client.producer(options) as producer:
                sender = Sender(producer, job, tally)
                with progress_bar("bytes") as progress:
                    work = pump(descriptor, sender, progress)
                    is_interrupted = await cancelled_by(interrupt, work)
                interrupt.clear()
                await cancelled_by(interrupt, producer.close())
                return is_interrupted


async def _known(client: Client, topic: str) -> None:
    """A topic that isn't there is told before anything is read."""
    await client.describe_topic(topic)


async def pump(descriptor: int, sender: Sender, progress: Progress) -> None:
    """From the first line to the last answer."""
    size = os.fstat(descriptor).st_size or None
    source = sender.job.source
    name = STANDARD_INPUT if source == STANDARD_STREAM else source
    task = progress.add_task(sender.job.topic, total=size)
    try:
        async for some in LineReader(descriptor, MAX_LINE_BYTES, name):
            await sender.send(some)
            progress.update(task, completed=some.bytes_read)
            if sender.tally.first_error is not None:
                break
    except LineTooLong as error:
        sender.tally.on_stopped(error.number, error)
    except InputUnreadable as error:
        sender.tally.on_stopped(sender.tally.sent + 1, error)
    await sender.flush()


class Sender:
    """Hands lines to the producer and counts what becomes of them."""

    def __init__(self, producer: Producer, job: Job, tally: Tally) -> None:
        self.job = job
        self.tally = tally
        self._producer = producer

    async def send(self, some: Lines) -> None:
        """Hands over all the lines, unless one fails; waits while the producer is full."""
        for line in some.lines:
            body = self.job.body(line)
            while self.tally.first_error is None and not self._handed_over(body):
                await self._producer.room()

    async def flush(self) -> None:
        """Waits until every line that was handed over has its answer."""
        await self._producer.flush()

    def _handed_over(self, body: bytes) -> bool:
        tally, job = self.tally, self.job
        number = tally.sent + 1
        try:
            future = self._producer.send(job.topic, body, key=job.key, tag=job.tag)
        except BufferFull:
            return False
        except ClientError as error:
            tally.sent = number
            tally.on_error(number, error)
            return True
        tally.sent = number
        size, begin = len(body), time.monotonic()

        def settled(done: asyncio.Future[SendResult]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                tally.on_acked(size, time.monotonic() - begin)
            elif isinstance(error, Exception):
                tally.on_error(number, error)

        future.add_done_callback(settled)
        return True


def _tell(tally: Tally, *, interrupted: bool, as_json: bool) -> None:
    facts = tally.facts()
    if as_json:
        print_json(facts)
    summary = (
        f"{facts['acked']} of {facts['sent']} stored in {facts['duration_s']} s "
        f"({facts['msgs_per_s']} messages/s, {facts['mb_per_s']} MB/s)"
    )
    if tally.failed or tally.unknown:
        summary += f"; {tally.unknown} may be stored or not, {tally.failed} are not"
    if interrupted:
        complain(f"interrupted: {summary}")
    elif tally.unknown:
        complain(summary)
    elif not as_json:
        remark(summary)
    if tally.first_error is not None:
        complain(_in_words(*tally.first_error))
    if interrupted:
        end(ExitCode.INTERRUPTED)
    if tally.first_error is not None:
        end(exit_code_of(tally.first_error[1]) or ExitCode.FAILED)
    if not tally.complete:
        end(ExitCode.FAILED)


def _in_words(line: int, error: Exception) -> str:
    if isinstance(error, LineTooLong | InputUnreadable):
        return str(error)
    return f"line {line}: {error}"
