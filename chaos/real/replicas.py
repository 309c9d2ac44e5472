"""Are the replicas the same? Their digests at the commit index, then their bytes.

The digest that each node reports covers its whole log (ADR 6) and costs nothing to compare. It is
computed by the code under test, so the files of the stopped nodes are compared as well, by code
that knows nothing but where committed bytes end. All nodes have applied the same entries by then,
so their ConsumeQueues, a function of these (ADR 7), are the same files with the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaos.flips.content import differences
from chaos.real.arena import Arena
from dledger.records.layout import FILE_GLOB
from dledger.wire.cluster_pb2 import NodeStatus

CHUNK_BYTES: Final = 1 << 20


async def compare_replicas(
    made: Arena, statuses: Mapping[str, NodeStatus], *, retains_all: bool
) -> list[str]:
    """What differs between the replicas, in words; the nodes are stopped afterwards.

    Args:
        statuses: the last of each node, all at the same commit index.
        retains_all: whether logs begin with entry 1. Else what all of them hold is compared: each
            lets its front go when it can.
    """
    problems: list[str] = []
    digests = {
        node_id: f"{status.committed_digest:016x} at index {status.commit_index}"
        for node_id, status in statuses.items()
    }
    if len(set(digests.values())) > 1:
        problems.append(f"digests differ: {_listed(digests)}")
    logs = {node_id: made.log_end(node_id) for node_id in statuses}
    if killed := await made.group.down():
        problems.append(f"{', '.join(killed)} didn't stop when asked to")
    for node_id in logs.keys() - set(killed):
        made.ended_well(node_id, logs[node_id])
    problems += made.bad_ends()
    end = min(status.committed_offset for status in statuses.values())
    if not retains_all:
        data = {node_id: made.data_directory(node_id) for node_id in statuses}
        return problems + differences(data, end)
    hashes = {node_id: hash_of_log(made.data_directory(node_id), end) for node_id in statuses}
    if len(set(hashes.values())) > 1:
        problems.append(f"the first {end:,} bytes of the logs differ: {_listed(hashes)}")
    derived = {
        node_id: hash_of_queues(made.data_directory(node_id) / "consumequeue")
        for node_id in statuses
    }
    if len(set(derived.values())) > 1:
        problems.append(f"the ConsumeQueues differ: {_listed(derived)}")
    return problems


def hash_of_queues(folder: Path) -> str:
    """SHA-256 over the names of all ConsumeQueue files, and over their bytes."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        digest.update(str(path.relative_to(folder)).encode())
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return f"{digest.hexdigest()[:16]} ({len(files)} files)"


def hash_of_log(data_directory: Path, end: int) -> str:
    """SHA-256 over the bytes `[0, end)` of a CommitLog, segment after segment."""
    digest = hashlib.sha256()
    left = end
    for segment in sorted((data_directory / "commitlog").glob(FILE_GLOB)):
        with segment.open("rb") as file:
            while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
                digest.update(chunk)
                left -= len(chunk)
    return f"{digest.hexdigest()[:16]} ({end - left:,} bytes)"


def _listed(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{node_id} {fact}" for node_id, fact in sorted(facts.items()))
