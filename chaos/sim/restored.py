"""Snapshots on simulated disks: what a start makes of them, and what spoils them.

At each start every named snapshot that nothing has harmed must be whole, of this disk and this log,
and of nothing beyond what the checkpoint notes; the newest must be what the start began with; and
the state that it gave, with what was applied behind it, must be what the log alone gives, field by
field. So a name that is given too early, bytes that weren't synced and a state of another moment
are found at the next start, whatever the node would have done about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from broker.state.errors import SnapshotRefused
from broker.state.machine import StateMachine
from chaos.sim.archive import Archive
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.machine_config import DATA, NEWER_LEVEL
from chaos.sim.node import SimNode
from chaos.sim.snapshots import NoQueues, compare
from dledger.records.layout import file_name
from store.errors import StoreError
from store.snapshot_files import FOLDER, SnapshotFiles
from store.starting.snapshots import opened_own


def check_start(node: SimNode, archive: Archive | None) -> None:
    """What the node that has just started did with its snapshots.

    Args:
        archive: the whole history, where logs let their front go.

    Raises:
        Defect: see the module.
    """
    life = node.life
    if life is None or node.has_another_log or node.is_put_back:
        return  # an older program makes nothing of a newer one's snapshots
    used = life.replica.snapshots.statistics().index
    node.restored_starts += used > 0
    node.disk.is_observed = True
    try:
        if not node.has_snapshot_rot:
            _check_files(node, life, used, archive)
        if used:
            _check_state(node, life, archive)
    finally:
        node.disk.is_observed = False


def _check_files(node: SimNode, life: Life, used: int, archive: Archive | None) -> None:
    files, source = SnapshotFiles(DATA, node.disk), life.replica.snapshots.source
    named = files.indexes()
    for index in named:
        if index < source.log.start.index:
            continue  # left by who died over removing it
        if index > source.noted():
            if archive is not None and index in archive.bases:
                continue  # got from a peer, and not needed any more
            if not node.was_put_back:
                raise Defect("snapshot beyond the note", f"{node.name}'s of entry {index}")
            continue
        try:
            with opened_own(files, source.log, source.disk_id, index) as (_, chunks):
                machine = StateMachine.restore(
                    chunks,
                    NoQueues(),
                    options=life.replica.machine.options,
                    known_level=NEWER_LEVEL,
                )
        except (SnapshotRefused, StoreError) as error:
            raise Defect("snapshot on disk", f"{node.name}'s of entry {index}: {error}") from error
        if machine.applied_index != index:
            raise Defect("snapshot on disk", f"{node.name}'s of entry {index} is of another one")
    # What is before the log's first entry is committed, whatever was noted of it.
    known = max(source.noted(), source.log.start.index)
    newest = next((index for index in named if index <= known), 0)
    names = FOLDER, file_name(newest)
    was_refused = any(  # it, or the entry that it is held against
        each.path.name in names or each.path.parent.name == "commitlog"
        for each in node.disk.failures.of_process()
    )
    if used != newest and not was_refused:
        raise Defect("snapshot not used", f"{node.name} has {newest} and began with {used}")


def _check_state(node: SimNode, life: Life, archive: Archive | None) -> None:
    expected = life.replica.machine
    if archive is not None:
        options, level = expected.options, node.known_level
        replayed = archive.machine(expected.applied_index, options, level)
        compare("state restored at a start", node, replayed, expected)
        return
    replayed = StateMachine(NoQueues(), options=expected.options, known_level=node.known_level)
    if expected.applied_index:
        replayed.apply(life.replica.log.read(1, expected.applied_index))
    compare("state restored at a start", node, replayed, expected)


def spoil_a_snapshot(node: SimNode, others: Sequence[SimNode], chance: Random) -> str:
    """One of the node's snapshots isn't what it was; how, in words."""
    disk, mine = node.disk, _named(node)
    if node.is_swapped or not mine:  # Of a disk that is another's, that one would have to know.
        return "no snapshot to spoil"
    node.has_snapshot_rot = True
    path = mine[-1] if chance.random() < 0.8 else chance.choice(mine)
    size = len(disk.content(path))
    at = chance.randrange(max(1, size))
    match chance.choice(("flip", "flip", "cut", "grow", "zeros", "another's", "renamed", "all")):
        case "flip" if size:
            disk.flip(path, at, chance.randrange(8))
        case "cut":
            disk.cut_short(path, at)
        case "grow":
            disk.spoil(path, size + chance.randrange(100), b"\1")
        case "zeros":
            disk.spoil(path, at, bytes(chance.choice((1, 20, 200))))
        case "another's":
            theirs = {each.name: other for other in others for each in _named(other)}
            alike = [each for each in mine if theirs[each.name] is not node] or [path]
            taken = chance.choice(alike)
            _put(node, taken, theirs[taken.name].disk.content(taken))
        case "renamed":
            _put(node, path, disk.content(mine[0]))
        case _:
            for each in mine:
                disk.cut_short(each, len(disk.content(each)) // 2)
    return f"a byte near {at} of {path.name} and what else is there is spoilt"


def _named(node: SimNode) -> list[Path]:
    folder = DATA / FOLDER
    return [path for path in node.disk.paths() if path.parent == folder and path.suffix == ""]


def _put(node: SimNode, path: Path, content: bytes) -> None:
    """The file has this content instead."""
    node.disk.cut_short(path, 0)
    node.disk.spoil(path, 0, content)
