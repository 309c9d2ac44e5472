"""What `dledger consume --output FILE` does to a file that is there."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.progress import Progress

from dledger.client import Message, StartFrom
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
from dledger_cli import consume
from dledger_cli.streams import ByteWriter
from tests.cli.called import command

OLD = b"what was there\n"


@pytest.fixture(scope="module")
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as group:
        yield group


def topic_of(group: BlockingFakeGroup, *bodies: bytes) -> str:
    topic = group.topic()
    send(group, topic, *bodies)
    return topic


def send(group: BlockingFakeGroup, topic: str, *bodies: bytes) -> None:
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        for body in bodies:
            producer.send(topic, body).result()


def consumed(group: BlockingFakeGroup, topic: str, file: Path, *options: str) -> int:
    place = ("--bootstrap", group.addresses, "--output", str(file), "--idle-timeout", "0.3")
    return command("consume", topic, *place, *options).returncode


@pytest.mark.parametrize("options", [(), ("--group", "g")])
def test_file_is_as_it_was_if_there_is_no_such_topic(
    group: BlockingFakeGroup, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A slip in the topic's name costs nothing. A member waits for topics."""
    file = tmp_path / "lines"
    file.write_bytes(OLD)
    assert bool(consumed(group, "absent", file, *options)) is not bool(options)
    assert file.read_bytes() == OLD


def test_file_is_written_anew_without_a_group(group: BlockingFakeGroup, tmp_path: Path) -> None:
    """Each run reads from where it is told; so also if it finds nothing."""
    file = tmp_path / "lines"
    file.write_bytes(OLD)
    assert consumed(group, topic_of(group, b"1", b"2"), file) == 0
    assert file.read_bytes() == b"1\n2\n"
    assert consumed(group, topic_of(group), file) == 0
    assert file.read_bytes() == b""


def test_lines_of_a_group_are_added(group: BlockingFakeGroup, tmp_path: Path) -> None:
    """They are committed and come no more: a second run used to erase them."""
    file = tmp_path / "lines"
    topic = topic_of(group, b"1", b"2")
    assert consumed(group, topic, file, "--group", "adding", "--from", "first") == 0
    send(group, topic, b"3")
    assert consumed(group, topic, file, "--group", "adding", "--from", "first") == 0
    assert file.read_bytes() == b"1\n2\n3\n"


def test_lines_of_a_group_begin_anew_behind_one_that_broke_off(
    group: BlockingFakeGroup, tmp_path: Path
) -> None:
    """As a run leaves it that found no more space; bodies without line ends have none."""
    file = tmp_path / "lines"
    file.write_bytes(b"whole\nbroken o")
    topic = topic_of(group, b"1")
    assert consumed(group, topic, file, "--group", "anew", "--from", "first") == 0
    assert file.read_bytes() == b"whole\nbroken o\n1\n"
    send(group, topic, b"2")
    assert consumed(group, topic, file, "--group", "anew", "--raw") == 0
    assert file.read_bytes() == b"whole\nbroken o\n1\n2"


def test_lines_are_on_disk_before_they_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would take them, and the group gives them to nobody again. So it is with a new
    file's name."""
    file, seen = tmp_path / "lines", list[tuple[str, int]]()
    sync, sync_name = os.fdatasync, os.fsync

    def on_sync(descriptor: int) -> None:
        sync(descriptor)
        seen.append(("synced", file.stat().st_size))

    def on_sync_name(descriptor: int) -> None:
        sync_name(descriptor)
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            seen.append(("name", file.stat().st_size))

    monkeypatch.setattr(os, "fdatasync", on_sync)
    monkeypatch.setattr(os, "fsync", on_sync_name)

    class Consumer:
        """Two batches, of which one is finished when the next one is asked for."""

        async def batches(self) -> AsyncIterator[list[Message]]:
            for body in (b"one", b"two"):
                yield [cast("Message", SimpleNamespace(body=body))]
                seen.append(("finished", file.stat().st_size))

    async def check(job: consume.Job) -> None:
        descriptor = consume._open_output(job.output, appends=job.group is not None)
        await consume._prepare(cast("Any", None), descriptor, job)
        writer = ByteWriter(descriptor, str(file))
        consumer = cast("Any", Consumer())
        writing = consume.Writing(consumer, job, writer, consume.Unreadable())
        await writing.run(Progress(disable=True))
        os.close(descriptor)

    place = ("t", str(file), "g", StartFrom.FIRST, None, None)
    job = consume.Job(*place, as_json=False, raw=False, when_gone=consume.Gone.RAISE)
    asyncio.run(check(job))
    expected = [("name", 0), ("synced", 4), ("finished", 4), ("synced", 8), ("finished", 8)]
    assert seen == expected


def test_lines_that_are_being_synced_at_an_interrupt_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the file: the next run would add them once more."""
    file, committed = tmp_path / "lines", list[object]()
    begun, may_end, sync = threading.Event(), threading.Event(), os.fdatasync

    def on_sync(descriptor: int) -> None:
        begun.set()
        assert may_end.wait(60)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", on_sync)
    message = cast("Message", SimpleNamespace(body=b"one"))

    class Consumer:
        async def batches(self) -> AsyncIterator[list[Message]]:
            yield [message]
            raise AssertionError("it was interrupted")

        async def commit(self, last: Message | None = None) -> None:
            committed.append(last)

    async def check() -> None:
        place = ("t", str(file), "g", StartFrom.FIRST, None, None)
        job = consume.Job(*place, as_json=False, raw=False, when_gone=consume.Gone.RAISE)
        descriptor = consume._open_output(job.output, appends=True)
        writer = ByteWriter(descriptor, str(file))
        consumer = cast("Any", Consumer())
        writing = consume.Writing(consumer, job, writer, consume.Unreadable())
        running = asyncio.create_task(writing.run(Progress(disable=True)))
        await asyncio.to_thread(begun.wait, 60)
        running.cancel()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await running
        await writing.commit()
        os.close(descriptor)

    asyncio.run(check())
    assert committed == [message, None]
    assert file.read_bytes() == b"one\n"


def test_output_that_is_no_file_is_only_written_to(group: BlockingFakeGroup) -> None:
    """There is nothing in it to be erased."""
    assert consumed(group, topic_of(group, b"1"), Path("/dev/null")) == 0
