"""What was sent into the group under test, and whether that is what it gives and what it holds.

Bodies are drawn from the seed, the queue and the number, so that any other byte is a wrong one.
Everything is read through the client, from whoever leads.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from chaos.flips.places import start_of_log, written_units
from dledger.client import Client, ClientError, NewMessage, ProducerOptions
from dledger.records.layout import FILE_GLOB
from store.errors import StoreError
from store.files import OsFiles
from store.snapshot_files import SnapshotFiles

TOPIC: Final = "flips"
QUEUES: Final = 4
BODY_BYTES: Final = 1_000
BATCH_BYTES: Final = 8 << 10
PULL_MESSAGES: Final = 5_000
PULL_BYTES: Final = 4 << 20
DEADLINE_S: Final = 30.0  # a member that repairs refuses for moments


@dataclass(slots=True)
class Content:
    """What every reader has to be given."""

    seed: int
    bodies: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    read: int = 0
    fronts: dict[int, int] = field(default_factory=dict)  # where each queue begins, for good

    async def begin(self, client: Client) -> None:
        """The log's front has gone; nothing else goes, so what lies behind is given from now on.

        Raises:
            ClientError: a queue can't be asked.
        """
        for queue_id in range(QUEUES):
            bounds = await client.queue_offsets(TOPIC, queue_id, deadline_s=DEADLINE_S)
            self.fronts[queue_id] = bounds.min_offset

    async def send(self, client: Client, messages: int) -> None:
        """So many more, over all queues, are stored.

        Raises:
            ClientError, SendsFailed: the group refuses them.
        """
        async with client.producer(ProducerOptions(batch_bytes=BATCH_BYTES)) as producer:
            await producer.send_all(self._new(messages))

    def _new(self, messages: int) -> Iterator[NewMessage]:
        for queue_id in itertools.islice(itertools.cycle(range(QUEUES)), messages):
            of_queue = self.bodies[queue_id]
            chance = Random(f"{self.seed} {queue_id} {len(of_queue)}")
            of_queue.append(chance.randbytes(BODY_BYTES))
            yield NewMessage(TOPIC, of_queue[-1], queue_id=queue_id)

    async def read_all(self, client: Client) -> list[str]:
        """What is wrong with what a reader of everything is given, in words."""
        wrong: list[str] = []
        for queue_id in range(QUEUES):
            try:
                wrong += await self._read(client, queue_id)
            except ClientError as error:
                wrong.append(f"queue {queue_id} can't be read: {error}")
        return wrong

    async def _read(self, client: Client, queue_id: int) -> list[str]:
        expected = self.bodies[queue_id]
        bounds = await client.queue_offsets(TOPIC, queue_id, deadline_s=DEADLINE_S)
        if bounds.max_offset != len(expected):
            return [f"queue {queue_id} ends at {bounds.max_offset}, {len(expected)} were sent"]
        at = bounds.min_offset
        if at != (front := self.fronts.get(queue_id, 0)):
            return [f"queue {queue_id} begins at {at}, and not at {front}"]
        while at < bounds.max_offset:
            found = await client.pull(
                TOPIC,
                queue_id,
                at,
                max_messages=PULL_MESSAGES,
                max_bytes=PULL_BYTES,
                deadline_s=DEADLINE_S,
            )
            for message in found.messages:
                if message.queue_offset != at or message.body != expected[at]:
                    return [f"queue {queue_id}: what was given as {at} isn't what was sent"]
                at += 1
                self.read += 1
            if not found.messages:
                return [f"queue {queue_id}: nothing is given at {at} of {bounds.max_offset}"]
        return []


def differences(
    directories: Mapping[str, Path], log_end: int, log_start: int | None = None
) -> list[str]:
    """How members' logs, up to a physical offset, and ConsumeQueues differ from one another, and
    which snapshots aren't whole, in words.

    Args:
        log_start: where each log begins; None: that may differ, and what all hold is compared.
    """
    starts = {name: start_of_log(directory) for name, directory in directories.items()}
    wrong = [
        f"{name}: the log begins at byte {start}, and not at {log_start}"
        for name, start in starts.items()
        if log_start is not None and start != log_start
    ]
    log_start = max(starts.values())
    found = {
        name: _digests(directory, log_start, log_end) for name, directory in directories.items()
    }
    files = sorted({file for digests in found.values() for file in digests})
    for file in files:
        held = {name: digests.get(file, "missing") for name, digests in found.items()}
        if len(set(held.values())) > 1:
            wrong.append(f"{file}: {', '.join(f'{n} {d}' for n, d in sorted(held.items()))}")
    for name, directory in directories.items():
        wrong += [f"{name}: {reason}" for reason in _broken_snapshots(directory)]
    return wrong


def _digests(directory: Path, log_start: int, log_end: int) -> dict[str, str]:
    """Of each segment between those offsets, and of the units in each ConsumeQueue's file of what
    lies there."""
    found: dict[str, str] = {}
    for path in (directory / "commitlog").glob(FILE_GLOB):
        if (size := log_end - int(path.name)) > 0 and int(path.name) >= log_start:
            with path.open("rb") as file:
                found[f"commitlog/{path.name}"] = _digest(file.read(size))
    for path in (directory / "consumequeue").rglob(FILE_GLOB):
        content = path.read_bytes()
        begin, _ = written_units(content, log_start)
        if units := content[begin:].rstrip(b"\0"):
            found[str(path.relative_to(directory))] = _digest(units)
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _broken_snapshots(directory: Path) -> Iterator[str]:
    files = SnapshotFiles(directory, OsFiles())
    for index in files.indexes():
        try:
            with files.opened(index) as (_, chunks):
                for _ in chunks:
                    pass
        except FileNotFoundError:
            continue  # a newer one has taken its place
        except (StoreError, OSError) as error:
            yield f"snapshot {index}: {error}"
