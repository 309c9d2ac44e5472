"""The undo journal: what a power cut would take back from a real disk.

A node that gets SIGKILL loses nothing that it wrote, synced or not: the page cache survives. To
cut the power of a real node without a machine to pull the plug of, its file layer notes before
each change what was there, and after each sync that the changes before it can no longer be lost.
After a SIGKILL the tester puts back what was never synced (`power`). The journal itself needs no
sync: it dies with the page cache only when the test is over anyway.

Changes of content belong to an inode and are settled by its fsync; changes of names belong to a
directory and are settled by *its* fsync, as POSIX has it (ext4 is kinder). A file that is replaced
or deleted is kept as a hard link until then, which also keeps its inode from being used again.

The journal is JSON lines; `n` numbers the records:

    {"n": 7, "k": "write", "inode": 12, "at": 4096, "length": 600, "size": 8192, "old": "<hex>",
     "zeros": 512}
    {"n": 8, "k": "resize", "inode": 12, "at": 4096, "length": 4096, "size": 8192, …}
    {"n": 9, "k": "create" | "mkdir", "path": "…", "parent": "…"}
    {"n": 10, "k": "rename", "path": old, "to": new, "parent": "…", "saved": link or null}
    {"n": 11, "k": "exchange", "path": one, "to": other, "parent": "…", "saved": null}
    {"n": 12, "k": "unlink" | "rmdir", "path": "…", "parent": "…", "saved": link or null}
    {"k": "synced", "inode": 12, "upto": 8}    {"k": "names", "parent": "…", "upto": 12}

`size` is the file's before the change, which spoke of `length` bytes from `at` on; those that
existed were `old`, then `zeros` zeros.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from threading import RLock
from typing import Final, TypedDict

JOURNAL_FILE: Final = "journal"
SAVED_PREFIX: Final = "saved-"
REWRITE_BYTES: Final = 64 << 20  # past this it is rewritten, which holds up all who write


class Record(TypedDict, total=False):
    """One line; which keys it has depends on `k`."""

    n: int
    k: str
    inode: int
    at: int
    length: int
    size: int
    old: str
    zeros: int
    path: str
    to: str
    parent: str
    saved: str | None
    upto: int


class _Open:
    """The notes that no sync has settled, in order, found by what settles them: a member that
    catches up writes tens of thousands between two syncs of its ConsumeQueues, and looking through
    all of them at each sync of its log held up its event loop for seconds."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self._numbers: defaultdict[tuple[str, object], dict[int, None]] = defaultdict(dict)

    def add(self, record: Record) -> None:
        self.records[record["n"]] = record
        if "inode" in record:
            self._numbers["inode", record["inode"]][record["n"]] = None
        if "parent" in record:
            self._numbers["parent", record["parent"]][record["n"]] = None

    def settled(self, key: str, value: object, upto: int) -> list[Record]:
        """Takes out those of the file or directory that are numbered up to `upto`."""
        numbers = self._numbers.get((key, value), {})
        gone = list(takewhile(lambda number: number <= upto, numbers))
        for number in gone:
            del numbers[number]
        if not numbers:
            self._numbers.pop((key, value), None)
        return [self.records.pop(number) for number in gone]


class UndoJournal:
    """The journal of one node; any thread may use it.

    `lock` is to be held from a note until the change that it speaks of is made: a sync that
    begins in between must not settle a change that it didn't cover.
    """

    def __init__(self, directory: Path) -> None:
        self.lock = RLock()
        self._directory = directory
        self._path = directory / JOURNAL_FILE
        self._open = _Open()
        for record in read_open(directory):
            self._open.add(record)
        self._next = max(self._open.records, default=0) + 1
        self._rewrite()

    # --- notes --------------------------------------------------------------------------------

    def note_content(
        self, kind: str, inode: int, *, at: int, length: int, size: int, old: bytes
    ) -> None:
        """A write or a change of size is about to happen.

        Args:
            kind: `write` or `resize`.
            at: where the bytes begin that are about to change.
            length: how many they are.
            size: the file's size before.
            old: those of them that exist.
        """
        kept = old.rstrip(b"\0")
        record = Record(k=kind, inode=inode, at=at, length=length, size=size)
        record["old"], record["zeros"] = kept.hex(), len(old) - len(kept)
        self._note(record)

    def note_name(
        self, kind: str, path: Path, *, to: Path | None = None, replaced: Path | None = None
    ) -> None:
        """A name is about to appear, change or go.

        Args:
            kind: `create`, `mkdir`, `rename`, `exchange`, `unlink` or `rmdir`.
            to: of a rename, the new name; of an exchange, the other one.
            replaced: the file that is about to lose its last name.
        """
        saved: str | None = None
        if replaced is not None:
            saved = f"{SAVED_PREFIX}{self._next}"
            os.link(replaced, self._directory / saved)
        record = Record(k=kind, path=str(path), parent=str(path.parent), saved=saved)
        if to is not None:
            record["to"] = str(to)
        self._note(record)

    def latest(self) -> int:
        """The number of the last note: a sync that begins now covers all up to it."""
        with self.lock:
            return self._next - 1

    def settle_content(self, inode: int, upto: int) -> None:
        """The file was synced; notes up to `upto` can't be lost any more."""
        with self.lock:
            gone = self._open.settled("inode", inode, upto)
            self._settle(gone, Record(k="synced", inode=inode, upto=upto))

    def settle_names(self, parent: Path, upto: int) -> None:
        """The directory was synced; notes of its names up to `upto` can't be lost any more."""
        with self.lock:
            gone = self._open.settled("parent", str(parent), upto)
            self._settle(gone, Record(k="names", parent=str(parent), upto=upto))

    # --- the file -----------------------------------------------------------------------------

    def _note(self, record: Record) -> None:
        with self.lock:
            record["n"] = self._next
            self._next += 1
            self._open.add(record)
            self._append(record)

    def _settle(self, gone: list[Record], record: Record) -> None:
        if not gone:
            return
        self._append(record)
        for each in gone:
            saved = each.get("saved")
            if saved is not None:
                self._let_go(self._directory / saved)
        if self._path.stat().st_size > max(REWRITE_BYTES, 2 * self._rewritten_bytes):
            self._rewrite()

    def _let_go(self, saved: Path) -> None:
        """The file is gone for good. Its inode will be another file's: nothing may be open."""
        stat = saved.stat()
        saved.unlink()
        if stat.st_nlink == 1:
            self.settle_content(stat.st_ino, self._next)

    def _append(self, record: Record) -> None:
        # Opened anew each time: there is nothing to close when the node ends, however it does.
        with self._path.open("ab", buffering=0) as file:
            file.write(_line(record))

    def _rewrite(self) -> None:
        """The journal holds what is open and nothing else."""
        new = self._path.with_suffix(".new")
        self._rewritten_bytes = new.write_bytes(b"".join(map(_line, self._open.records.values())))
        os.replace(new, self._path)


def read_open(directory: Path) -> Iterator[Record]:
    """The notes that no sync has settled, in order."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return
    found = _Open()
    for record in _parse(path.read_bytes().splitlines(keepends=True)):
        match record["k"]:
            case "synced":
                found.settled("inode", record["inode"], record["upto"])
            case "names":
                found.settled("parent", record["parent"], record["upto"])
            case _:
                found.add(record)
    yield from found.records.values()


def _parse(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        if line.endswith(b"\n"):  # the last one was cut by the SIGKILL: its change never happened
            record: Record = json.loads(line)
            yield record


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
