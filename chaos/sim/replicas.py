"""The replicas, compared when a run has come to rest: one truth, down to the bytes.

Logs are compared segment by segment, the replicated state field by field, the ConsumeQueues file
by file; each state's snapshot is restored, and the state is derived once more from the log alone,
which must both give the same. A replica that has rotted is not compared: it has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker.state.machine import StateMachine
from chaos.sim.archive import Archive
from chaos.sim.defect import Defect
from chaos.sim.delivery_model import DeliveryModel
from chaos.sim.incarnations import EntryKey, Witness
from chaos.sim.lease_model import LeaseModel
from chaos.sim.machine import Life
from chaos.sim.machine_config import DATA, NEWER_LEVEL
from chaos.sim.node import SimNode
from chaos.sim.originals import Originals
from chaos.sim.permission_model import PermissionModel
from chaos.sim.plan import MEMBER_DELAYS_MS
from chaos.sim.retry_model import RetryModel
from chaos.sim.snapshots import NoQueues, compare_snapshots, picture
from dledger.reading.entry import parse_header
from dledger.records.layout import UNIT


class Models(NamedTuple):
    """What the log says once more, by rules of their own."""

    leases: LeaseModel
    deliveries: DeliveryModel
    retries: RetryModel
    permissions: PermissionModel


def compare_replicas(
    nodes: Iterable[SimNode], meant: dict[EntryKey, int], archive: Archive | None = None
) -> Models | None:
    """All that run hold the same, and each batch went to the topic that it was `meant` for; who
    held what and came how far, by the log; None if nobody runs.

    Args:
        archive: the whole history, where logs let their front go.

    Raises:
        Defect: names the two nodes and what differs.
    """
    running = [
        (node, node.life) for node in nodes if node.life is not None and not node.has_another_log
    ]
    for node, life in running:
        stopped = life.replica.driver.statistics().apply_stopped
        if stopped:  # a level is in use only once every member knows it (ADR 23)
            raise Defect("applying stopped", f"{node.name}: {stopped}")
    for (one, one_life), (other, other_life) in pairwise(running):
        _compare_files(one, other, one_life, other_life)
        _compare(
            "state",
            one,
            other,
            picture(one_life.replica.machine),
            picture(other_life.replica.machine),
        )
    compare_snapshots(node for node, _ in running)
    models = _compare_with_replay(*running[0], meant, archive) if running else None
    if archive is not None:
        for node, life in running:
            archive.check_held(node, life)
    return models


def _compare_files(one: SimNode, other: SimNode, mine: Life, theirs: Life) -> None:
    """What both hold of the log, and of the queues."""
    size = mine.replica.log.options.segment_size_bytes
    begins_at = max(life.replica.log.start.offset(size) for life in (mine, theirs))
    logs = [_files(node, DATA / "commitlog") for node in (one, other)]
    for each in logs:
        for name in [name for name in each if name.isdecimal() and int(name) < begins_at]:
            del each[name]
    _compare("commitlog", one, other, *logs)
    queues = [_files(node, DATA / "consumequeue") for node in (one, other)]
    for topic in mine.replica.machine.topics.values():
        for queue_id in range(len(topic.next_offsets)):
            place = topic.folder, queue_id
            first = max(life.replica.queues.min_offset(*place) for life in (mine, theirs))
            _begin_at(queues, f"{topic.folder}/{queue_id}", UNIT.size * first)
    _compare("consumequeue", one, other, *queues)


def _begin_at(files: list[dict[str, bytes]], queue: str, begins_at: int) -> None:
    """Units before the first that both nodes hold are nobody's business."""
    for each in files:
        for name in [name for name in each if name.startswith(f"{queue}/")]:
            before = max(0, begins_at - int(name.rsplit("/", 1)[1]))
            content = bytes(min(before, len(each[name]))) + each[name][before:]
            each[name] = content.rstrip(b"\0")
            if not each[name]:
                del each[name]


def _files(node: SimNode, folder: Path) -> dict[str, bytes]:
    """What the files hold, empty ones left out: spares differ between nodes."""
    found = {
        str(path.relative_to(folder)): node.disk.content(path).rstrip(b"\0")
        for path in node.disk.paths()
        if folder in path.parents and not _is_leftover(path.relative_to(folder))
    }
    return {name: content for name, content in found.items() if content}


def _is_leftover(path: Path) -> bool:
    """What a deleted topic left, until somebody has time to remove it."""
    return path.parts[0].startswith(".deleted")


def _compare(what: str, one: SimNode, other: SimNode, mine: object, theirs: object) -> None:
    if mine == theirs:
        return
    detail = ""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
        detail = f" in {keys[0]}"
    raise Defect("replicas differ", f"{what} of {one.name} and {other.name}{detail}")


def _compare_with_replay(
    node: SimNode, life: Life, meant: dict[EntryKey, int], archive: Archive | None
) -> Models:
    options = life.replica.machine.options
    machine = StateMachine(NoQueues(), options=options, known_level=NEWER_LEVEL)
    witness = Witness(machine, meant)
    log = life.replica.log
    leases, originals = LeaseModel(machine), Originals()
    retries = RetryModel(MEMBER_DELAYS_MS, leases.copied, originals)
    deliveries = DeliveryModel(machine, originals)
    models = Models(leases, deliveries, retries, PermissionModel(machine))
    append_time_ms = 0
    for index in range(1, life.replica.machine.applied_index + 1):
        frame = (archive or log).read(index, index)
        witness.header = parse_header(frame, 0)
        witness.units = ()
        machine.apply(frame)
        originals.follow(witness.header, frame)
        models.leases.applied(witness.header, frame, witness.units)
        models.deliveries.applied(witness.header, frame, witness.units)
        models.retries.applied(witness.header, frame, witness.units)
        models.permissions.applied(witness.header, frame, witness.units)
        if machine.append_time_ms < append_time_ms:
            raise Defect("time runs backwards", f"entry {index} of {node.name} is older")
        append_time_ms = machine.append_time_ms
    if picture(machine) != picture(life.replica.machine):
        raise Defect("replicas differ", f"{node.name}'s state isn't what its log gives")
    return models
