"""`dledger consume`: messages become lines of a file or of standard output.

With a group it is a member of it, and shares the topic's queues with the others. An offset is
committed only for what was handed to the system, and in a file is on disk; once a second, when a
queue goes to another member, and at the end: a run that dies prints some messages again the next
time and skips none. The writer's pace is the consumer's pace; between them lies no more than the
client's prefetch. A body that can't be decompressed is told on standard error, left out, and seen
in the exit code: the others go on.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
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
    LeaseLost,
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
    def what(self) -> WhenGone:
        """The client's name for it."""
        return WhenGone[self.name]


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
    tags: tuple[str, ...] = ()

    def consumer(self, client: Client) -> PullConsumer:
        """Who reads: a member of the group, or with none whoever."""
        if self.group is None:
            return client.pull_consumer(
                self.topic,
                tags=self.tags or None,
                start=self.start,
                queues=ALL,
                idle_timeout_s=self.idle_timeout_s,
                options=ConsumerOptions(when_gone=self.when_gone.what),
            )
        return client.pull_consumer(
            self.topic,
            group=self.group,
            tags=self.tags or None,
            start=self.start,
            idle_timeout_s=self.idle_timeout_s,
            options=ConsumerOptions(
                when_gone=self.when_gone.what, commit_every_s=COMMIT_INTERVAL_S
            ),
        )

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
    str | None,
    typer.Option("--group", help="Consumer group to be a member of: its members share the queues."),
]
FromOption = Annotated[
    From | None,
    typer.Option(
        "--from",
        help="Where to begin; with --group, where the group begins that hasn't read the topic yet.",
        show_default="first; the group's place with --group",
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
OutputOption = Annotated[
    str,
    typer.Option(
        "--output", metavar="FILE|-", help="Where lines go; with --group, behind what FILE holds."
    ),
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Write bodies back to back, adding no line endings.")
]


TagOption = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only messages with this tag; may be repeated."),
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
    tag: TagOption = None,
    bootstrap: BootstrapOption = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Write a topic's messages, a line each, as they come.

    With --group it is a member of that consumer group: several of them share the topic's queues,
    and what was written is committed as it goes, when a queue goes to another one, and at the end.
    All members name the same topic, --tag and --from. A group that has read goes on where it was;
    dledger consumers reset-offset sends it elsewhere.

    A FILE that is there is written anew once the topic is known to be there. With --group lines are
    added to it: the group's place goes on, and what runs before have written comes no more.

    With --tag only messages with one of the tags are read; the group's offsets cover the others.

    With --json a line is an object; a body that isn't UTF-8 is in base64 then, and body_encoding
    says so. Ctrl-C and SIGTERM commit what was written, give the queues back, and end with 130; a
    reader that goes away (| head) ends it with 0. Messages that had gone and were passed over
    (--when-gone) are counted on standard error. A compressed body that can't be read is left out
    and told, and the exit code is 1 then; with --json it is there as stored, with body_error.

    \b
    Examples:
      dledger consume logs --group g1
      dledger consume logs --from first --idle-timeout 2 --output all.log
      dledger consume logs --tag error --tag fatal --idle-timeout 2
      dledger consume logs --from first --json | head -n 1 | jq .message_id
    """
    if start is From.COMMITTED and group is None:
        raise typer.BadParameter("--from committed needs --group")
    if group == "":
        raise typer.BadParameter("--group needs a name")
    begin = start or (From.COMMITTED if group else From.FIRST)
    tags = tuple(tag or ())
    job = Job(topic, output, group, begin.start, limit, idle_timeout, as_json, raw, when_gone, tags)
    with errors_told():
        addresses = bootstrap_addresses(bootstrap, directory)
        descriptor = _open_output(output, appends=group is not None)
    unreadable = Unreadable()
    if run(_consume(addresses, descriptor, job, unreadable)):
        end(ExitCode.INTERRUPTED)
    if unreadable.count:
        complain(f"bodies that can't be read: {unreadable.count}")
        end(ExitCode.FAILED)


def _open_output(output: str, *, appends: bool) -> int:
    """Nothing is erased by this: it isn't known yet whether there is anything to read."""
    if output == STANDARD_STREAM:
        return open_standard(sys.stdout, STANDARD_OUTPUT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if appends else 0)
    return os.open(Path(output), flags, 0o644)


async def _prepare(client: Client, descriptor: int, job: Job) -> None:
    """The file is empty, if it is to hold this run alone, and there is something to be read. With a
    group it holds what was committed by runs before; where the last one broke off within a line, as
    on a full disk, the next one begins anew."""
    if job.output == STANDARD_STREAM or not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    if job.group is not None:
        if not job.raw and _ends_within_a_line(Path(job.output)):
            os.write(descriptor, b"\n")
        _sync_name(Path(job.output))
        return
    await client.describe_topic(job.topic)
    os.ftruncate(descriptor, 0)


def _sync_name(path: Path) -> None:
    """The file is found under its name after a power cut, where that can be had."""
    try:
        folder = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # who may only write there can't have it synced
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that has none
            raise
    finally:
        os.close(folder)


def _ends_within_a_line(path: Path) -> bool:
    """Whether it is so, as far as the file may be read."""
    with suppress(OSError), path.open("rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


async def _consume(addresses: list[str], descriptor: int, job: Job, unreadable: Unreadable) -> bool:
    """Writes what there is; whether it was interrupted."""
    async with connect(addresses) as client:
        name = STANDARD_OUTPUT if job.output == STANDARD_STREAM else job.output
        consumer = job.consumer(client)
        await _prepare(client, descriptor, job)
        writing = Writing(consumer, job, ByteWriter(descriptor, name), unreadable)
        async with consumer:
            try:
                with progress_bar("messages") as progress:
                    interrupted = await finished_or_interrupted(writing.run(progress))
            except BrokenPipeError:
                interrupted = False
            if job.group is not None:
                await writing.commit()
    if writing.skipped:
        print(f"{writing.skipped} messages had gone and were passed over", file=sys.stderr)
    return interrupted


class Writing:
    """One run: writes messages, and says which may be committed."""

    def __init__(
        self, consumer: PullConsumer, job: Job, writer: ByteWriter, unreadable: Unreadable
    ) -> None:
        self._consumer = consumer
        self._job = job
        self._writer = writer
        self._unreadable = unreadable
        self._written = 0
        self._last: Message | None = None  # of those that were wanted, if more came with it

    @property
    def skipped(self) -> int:
        """How many messages had gone, or were passed over with those."""
        return sum(self._consumer.skipped.values())

    async def run(self, progress: Progress) -> None:
        """Writes until the limit, the idle timeout, or for ever. A batch is finished when the next
        one is asked for.

        Raises:
            BrokenPipeError: nobody reads the output any more.
            ClientError: the group can't be read from.
        """
        task = progress.add_task(self._job.topic, total=self._job.limit)
        async for batch in self._consumer.batches():
            await self._write(batch)
            progress.update(task, completed=self._written)
            if self._written == self._job.limit:
                return

    async def _write(self, batch: Sequence[Message]) -> None:
        limit = self._job.limit
        if limit is not None:
            batch = batch[: limit - self._written]
        lines = (self._unreadable.line(self._job, message) for message in batch)
        await self._writer.write(b"".join(lines))
        if self._job.group is not None:  # before the batch is finished, so that it is committed
            try:
                await self._writer.sync()
            except asyncio.CancelledError:
                self._last = batch[-1] if batch else self._last  # it is there, and is committed
                raise
        self._written += len(batch)
        if self._written == limit:
            self._last = batch[-1]

    async def commit(self) -> None:
        """The group's offsets stand behind what was written. A queue that went to another member
        meanwhile is told: some of its messages are written there as well."""
        try:
            if self._last is not None:
                await self._consumer.commit(self._last)
            await self._consumer.commit()
        except LeaseLost as error:
            complain(error.message)
