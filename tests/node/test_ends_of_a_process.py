"""What a member that runs ends with, when what lies beside its log can't be written: the code of a
failed disk only where that is what the system says, and always by the file's name."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from broker.ending import ending_of
from broker.leader.batches import BatchAnswer
from broker.state.refusals import Refusal
from dledger.core.types import DiskId, NodeId, Term
from dledger.outcome import ExitCode
from dledger.promises import Promises, Start
from tests.broker.leader import batch
from tests.node.test_replica import topic
from tests.node.world import Wires, World, WorldNode

PROMISES = ("raft/promises.json", ("create", "pwritev", "fsync", "rename", "exists"))
QUEUES = ("consumequeue", ("create", "pwritev", "fsync", "fsync_directory", "mkdir"))
CODES = {
    errno.EIO: ExitCode.DISK_FAILED,
    errno.EROFS: ExitCode.DISK_FAILED,
    errno.EACCES: ExitCode.FAILED,
    errno.EPERM: ExitCode.FAILED,
}


async def topic_made(node: WorldNode, name: str) -> Refusal | None:
    return await node.replica.appender.submit(topic(name))


async def sent(node: WorldNode) -> Sequence[BatchAnswer]:
    return await node.replica.appender.send(b"", [batch(0, b"x")])


def broken(world: World, node: WorldNode, what: str, wanted: str, code: int) -> Path:
    """The node has ended, as what is `wanted` fails on files that have `what` in their names."""
    find, failed = node.disk._look, []

    def look(operation: str, path: Path) -> None:
        if operation == wanted and what in str(path):
            failed.append(path)
            raise OSError(code, os.strerror(code), str(path))
        find(operation, path)

    node.disk._look = look  # type: ignore[method-assign]
    node.begin(topic_made(node, "u"))
    node.begin(sent(node))
    for _ in range(2_000):
        world.tick()
        if node.failure is not None:
            return failed[0]
    raise AssertionError(f"{wanted} of {what} ends nobody; it failed {len(failed)} times")


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("what", "operation"),
    [(what, operation) for what, operations in (PROMISES, QUEUES) for operation in operations],
)
def test_what_ends_it_is_named_and_only_a_failed_disk_is_one(
    monkeypatch: pytest.MonkeyPatch, what: str, operation: str, code: int
) -> None:
    """4 has the disk replaced; who may not write needs other rights, and keeps it."""
    terms = count(1)

    def promises(_: object) -> dict[NodeId, Promises]:
        """Something new each time, so that it is written."""
        return {NodeId("n9"): Promises(DiskId(bytes(16)), Start(1, 2), Term(next(terms)))}

    monkeypatch.setattr(Wires, "promises", promises)
    world = World(count=1)
    node = world.serving()
    world.run(node, topic_made(node, "t"))
    file = broken(world, node, what, operation, code)
    failure = node.failure
    assert isinstance(failure, OSError), failure
    assert str(file) in str(failure)
    assert ending_of(failure, node.config.data_directory) is CODES[code]
