"""`dledger consume`: messages become lines of a file or of standard output.

An offset is committed only for what was handed to the system, once a second and at the end: a
run that dies prints some messages again the next time and skips none. The writer's pace is the
consumer's pace; between them lies no more than the client's prefetch. A body that can't be
decompressed is told on standard error, left out, and seen in the exit code: the others go on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from dledger.client import (
    ALL,
    BodyUnreadable,
    Client,
    CodecMissing,
    ConsumerOptions,
    Message,
    PullConsumer,
    StartFrom,
    WhenGone,
)
from dledger.terminal.interrupts import finished_or_interrupted
from dledger.terminal.options import JsonOption
from dledger.terminal.outcome import ExitCode, complain, end, errors_told, run
from dledger.terminal.output import progress_bar
from dledger_cli.group_options import (
    DEFAULT_DIRECTORY,
    BootstrapOption,
    DirectoryOption,
    bootstrap_addresses,
    connect,
)
from dledger_cli.messages import message_facts
from dledger_cli.names import TopicArgument
from dledger_cli.streams import ByteWriter, open_standard

COMMIT_INTERVAL_S = 1.0
STANDARD_STREAM = "-"
STANDARD_OUTPUT = "standard output"
TOLD_ONE_BY_ONE = 10  # bodies that can't be read; the rest are counted


class From(StrEnum):
    """Where a consumer begins."""

    FIRST = "first"
    LAST = "last"
    COMMITTED = "committed"

    @property
    def start(self) -> StartFrom:
        """The client's name for it."""
        return StartFrom[self.name]


class Gone(StrEnum):
    """What happens when the next message has gone."""

    RAISE = "raise"
    FIRST = "first"
    LAST = "last"

    @property
    def options(self) -> ConsumerOptions:
        """The client's way to say so."""
        return ConsumerOptions(when_gone=WhenGone[self.name])


@dataclass(frozen=True, slots=True)
class Job:
    """What to read, how much of it, and how to write it where."""

    topic: str
    output: str
    group: str | None
    start: StartFrom
    limit: int | None
    idle_timeout_s: float | None
    as_json: bool
    raw: bool
    when_gone: Gone

    def line(self, message: Message) -> bytes:
        """What is written for a message."""
        if self.as_json:
            return json.dumps(message_facts(message), ensure_ascii=False).encode() + b"\n"
        return message.body if self.raw else message.body + b"\n"


class Unreadable:
    """Messages that were left out, as their bodies can't be read."""

    def __init__(self) -> None:
        self.count = 0

    def line(self, job: Job, message: Message) -> bytes:
        """What is written for a message: nothing, if it is one of them.

        Raises:
            CodecMissing: a library is missing; nobody should have to find that out line by line.
        """
        try:
            return job.line(message)
        except CodecMissing:
            raise
        except BodyUnreadable as error:
            self.count += 1
            if self.count <= TOLD_ONE_BY_ONE:
                complain(f"left out: {error.message}")
            return b""


GroupOption = Annotated[
    str | None, typer.Option("--group", help="Consumer group whose offsets are committed.")
]
FromOption = Annotated[
    From | None,
    typer.Option(
        "--from", help="Where to begin.", show_default="committed with --group, else first"
    ),
]
MaxOption = Annotated[
    int | None, typer.Option("--max", min=1, metavar="N", help="End after N messages.")
]
IdleOption = Annotated[
    float | None,
    typer.Option(
        "--idle-timeout", min=0.001, metavar="S", help="End when nothing came for S seconds."
    ),
]
OutputOption = Annotated[str, typer.Option("--output", metavar="FILE|-", help="Where lines go.")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Write bodies back to back, adding no line endings.")
]


GoneOption = Annotated[
    Gone,
    typer.Option(
        "--when-gone",
        help="If the next message isn't kept any more: end with an error, or go on with the first "
        "that is, or with the last.",
    ),
]


def consume(
    topic: TopicArgument,
    group: GroupOption = None,
    start: FromOption = None,
    limit: MaxOption = None,
    idle_timeout: IdleOption = None,
    output: OutputOption = STANDARD_STREAM,
    raw: RawOption = False,
    when_gone: GoneOption = Gone.RAISE,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Write a topic's messages, a line each, as they come.

    With --group the group's offsets are committed as it goes. A group without a committed
    offset begins at the first message. With --json a line is an object; a body that isn't UTF-8
    is in base64 then, and body_encoding says so. Ctrl-C commits what was written and ends with
    130; a reader that goes away (| head) ends it with 0. Messages that had gone and were passed
    over (--when-gone) are counted on standard error. A compressed body that can't be read is
    left out and told, and the exit code is 1 then; with --json it is there as stored, with
    body_error.

    \b
    Examples:
      dledger consume logs --group g1
      dledger consume logs --from first --idle-timeout 2 --output all.log
      dledger consume logs --from first --json | head -n 1 | jq .message_id
    """
    if start is From.COMMITTED and group is None:
        raise typer.BadParameter("--from committed needs --group")
    if group == "":
        raise typer.BadParameter("--group needs a name")
    begin = start or (From.COMMITTED if group else From.FIRST)
    job = Job(topic, output, group, begin.start, limit, idle_timeout, as_json, raw, when_gone)
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
        descriptor = _open_output(output)
    unreadable = Unreadable()
    if run(_consume(addresses, descriptor, job, unreadable)):
        end(ExitCode.INTERRUPTED)
    if unreadable.count:
        complain(f"bodies that can't be read: {unreadable.count}")
        end(ExitCode.FAILED)


def _open_output(output: str) -> int:
    if output == STANDARD_STREAM:
        return open_standard(sys.stdout, STANDARD_OUTPUT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.open(Path(output), flags, 0o644)


async def _consume(addresses: list[str], descriptor: int, job: Job, unreadable: Unreadable) -> bool:
    """Writes what there is; whether it was interrupted."""
    async with connect(addresses) as client:
        name = STANDARD_OUTPUT if job.output == STANDARD_STREAM else job.output
        writing = Writing(client, job, ByteWriter(descriptor, name), unreadable)
        try:
            with progress_bar("messages") as progress:
                interrupted = await finished_or_interrupted(writing.run(progress))
        except BrokenPipeError:
            interrupted = False
        await writing.commit()
    if writing.skipped:
        print(f"{writing.skipped} messages had gone and were passed over", file=sys.stderr)
    return interrupted


class Writing:
    """One run: writes messages and keeps count of what may be committed."""

    def __init__(
        self, client: Client, job: Job, writer: ByteWriter, unreadable: Unreadable
    ) -> None:
        self._client = client
        self._job = job
        self._writer = writer
        self._consumer: PullConsumer | None = None
        self._unreadable = unreadable
        self._written = 0
        self._next_offsets: dict[int, int] = {}  # per queue, one past what was written
        self._committed: dict[int, int] = {}
        self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_S

    @property
    def skipped(self) -> int:
        """How many messages had gone, or were passed over with those."""
        return 0 if self._consumer is None else sum(self._consumer.skipped.values())

    async def run(self, progress: Progress) -> None:
        """Writes until the limit, the idle timeout, or for ever.

        Raises:
            BrokenPipeError: nobody reads the output any more.
            ClientError: the group can't be read from.
        """
        job = self._job
        task = progress.add_task(job.topic, total=job.limit)
        consumer = self._consumer = self._client.pull_consumer(
            job.topic,
            group=job.group,
            start=job.start,
            queues=ALL,
            idle_timeout_s=job.idle_timeout_s,
            options=job.when_gone.options,
        )
        async with consumer:
            async for batch in consumer.batches():
                await self._write(batch)
                progress.update(task, completed=self._written)
                if self._written == job.limit:
                    return
                if time.monotonic() >= self._next_commit_s:
                    await self.commit()

    async def _write(self, batch: Sequence[Message]) -> None:
        if self._job.limit is not None:
            batch = batch[: self._job.limit - self._written]
        lines = (self._unreadable.line(self._job, message) for message in batch)
        await self._writer.write(b"".join(lines))
        self._written += len(batch)
        for message in batch:
            self._next_offsets[message.queue_id] = message.queue_offset + 1

    async def commit(self) -> None:
        """The group's offsets stand behind what was written."""
        self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_S
        if self._job.group is None:
            return
        if self._consumer is not None and self.skipped:
            await self._consumer.commit()  # what was passed over is behind it for good
        if self._next_offsets == self._committed:
            return
        offsets = dict(self._next_offsets)
        await self._client.commit_offsets(self._job.group, self._job.topic, offsets)
        self._committed = offsets
