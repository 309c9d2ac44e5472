"""The power cut: what was never synced leaves the disk of a node that is dead.

For each change that no sync has settled the given random source decides: a write is lost, kept or
torn at any byte; of the changes of a directory's names some prefix stays. That is what a disk may
do, and the file systems that nodes run on do less. One promise of real disks is kept, as the
simulator keeps it: a file's first 512-byte sector is written whole or not at all.

This must only be called when the node's process is over: it changes the files under its feet.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos.faults.orders import UNDO_FOLDER
from chaos.faults.undo import JOURNAL_FILE, SAVED_PREFIX, Record, read_open

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Loss:
    """What a power cut took. `bytes` counts what was written, lost or torn."""

    lost: int
    torn: int
    kept: int
    names: int
    bytes: int


def cut_power(directory: Path, data_directory: Path, chance: Random) -> Loss:
    """The data directory of a dead node is as a power cut may have left it.

    Args:
        directory: the node's faults folder.
        data_directory: what the node writes.
        chance: decides what was lucky.
    """
    undo = directory / UNDO_FOLDER
    records = list(read_open(undo))
    undone_names = _unlucky_names(records, chance)
    inodes = _inodes(data_directory, undo)
    fates = {"lost": 0, "torn": 0, "kept": 0}
    lost_bytes = 0
    # Contents first, while each inode still has the name under which it was found.
    for record in reversed([each for each in records if "inode" in each]):
        fate = chance.choice(("lost", "kept", "torn"))
        kept = _kept_bytes(record, fate, chance)
        if kept is not None and record["inode"] in inodes:
            _undo_content(record, inodes[record["inode"]], kept)
            lost_bytes += record["length"] - kept
        fates["kept" if kept is None else fate] += 1
    for record in reversed([each for each in records if each["n"] in undone_names]):
        _undo_name(record, undo)
    for leftover in [undo / JOURNAL_FILE, *undo.glob(f"{SAVED_PREFIX}*")]:
        leftover.unlink(missing_ok=True)
    return Loss(fates["lost"], fates["torn"], fates["kept"], len(undone_names), lost_bytes)


def _unlucky_names(records: list[Record], chance: Random) -> set[int]:
    """The changes of names that are lost: in each directory all after some point."""
    by_parent: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        if "parent" in record:
            by_parent[record["parent"]].append(record["n"])
    lost: set[int] = set()
    for numbers in by_parent.values():
        lost.update(numbers[chance.randrange(len(numbers) + 1) :])
    return lost


def _inodes(data_directory: Path, undo: Path) -> dict[int, Path]:
    """Every file that may have to be changed, by its inode; deleted ones are among the saved."""
    paths = [path for path in data_directory.rglob("*") if path.is_file()]
    return {path.stat().st_ino: path for path in [*paths, *undo.glob(f"{SAVED_PREFIX}*")]}


def _kept_bytes(record: Record, fate: str, chance: Random) -> int | None:
    """How much of a change stays, counted from its start; None: all of it."""
    if fate == "kept":
        return None
    if fate == "lost" or record["k"] == "resize":
        return 0
    kept = chance.randrange(record["length"] + 1)
    return 0 if record["at"] + kept < SECTOR_BYTES else kept


def _undo_content(record: Record, path: Path, kept: int) -> None:
    """The file holds again what it held before the change, but for its first `kept` bytes."""
    old = bytes.fromhex(record["old"]) + bytes(record["zeros"])
    end = max(record["size"], record["at"] + kept if kept else 0)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, old[kept:], record["at"] + kept)
        grew = record["at"] + record["length"] > record["size"]
        if grew and os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
    finally:
        os.close(descriptor)


def _undo_name(record: Record, undo: Path) -> None:
    path = Path(record["path"])
    saved = record.get("saved")
    if not path.parent.is_dir():
        return  # the directory's own removal was lucky: what was in it is gone with it
    match record["k"]:
        case "create":
            path.unlink(missing_ok=True)
        case "mkdir":
            shutil.rmtree(path, ignore_errors=True)
        case "rmdir":
            path.mkdir(exist_ok=True)
        case "rename":
            os.replace(record["to"], path)
            if saved is not None:
                os.replace(undo / saved, record["to"])
        case "exchange":
            _exchange(path, Path(record["to"]))
        case "unlink" if saved is not None:
            os.replace(undo / saved, path)
        case kind:
            raise ValueError(f"{kind!r} is no change of a name")


def _exchange(one: Path, other: Path) -> None:
    """The names change hands again; nothing else runs that could see a step of it."""
    aside = one.with_name(one.name + ".exchanged")
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)
