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
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import RLock
from typing import Final, TypedDict

JOURNAL_FILE: Final = "journal"
SAVED_PREFIX: Final = "saved-"
REWRITE_BYTES: Final = 8 << 20  # past this the journal is rewritten with what is still open


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


class UndoJournal:
    """The journal of one node; any thread may use it.

    `lock` is to be held from a note until the change that it speaks of is made: a sync that
    begins in between must not settle a change that it didn't cover.
    """

    def __init__(self, directory: Path) -> None:
        self.lock = RLock()
        self._directory = directory
        self._path = directory / JOURNAL_FILE
        self._open: dict[int, Record] = {record["n"]: record for record in read_open(directory)}
        self._next = max(self._open, default=0) + 1
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
            gone = [n for n, each in self._open.items() if each.get("inode") == inode and n <= upto]
            self._settle(gone, Record(k="synced", inode=inode, upto=upto))

    def settle_names(self, parent: Path, upto: int) -> None:
        """The directory was synced; notes of its names up to `upto` can't be lost any more."""
        with self.lock:
            name = str(parent)
            gone = [n for n, each in self._open.items() if each.get("parent") == name and n <= upto]
            self._settle(gone, Record(k="names", parent=name, upto=upto))

    # --- the file -----------------------------------------------------------------------------

    def _note(self, record: Record) -> None:
        with self.lock:
            record["n"] = self._next
            self._next += 1
            self._open[record["n"]] = record
            self._append(record)

    def _settle(self, gone: list[int], record: Record) -> None:
        if not gone:
            return
        self._append(record)
        for number in gone:
            saved = self._open.pop(number).get("saved")
            if saved is not None:
                self._let_go(self._directory / saved)
        if self._path.stat().st_size > REWRITE_BYTES:
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
        new.write_bytes(b"".join(map(_line, self._open.values())))
        os.replace(new, self._path)


def read_open(directory: Path) -> Iterator[Record]:
    """The notes that no sync has settled, in order."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return
    records: dict[int, Record] = {}
    for record in _parse(path.read_bytes().splitlines(keepends=True)):
        match record["k"]:
            case "synced":
                _drop(records, "inode", record["inode"], record["upto"])
            case "names":
                _drop(records, "parent", record["parent"], record["upto"])
            case _:
                records[record["n"]] = record
    yield from records.values()


def _drop(records: dict[int, Record], key: str, value: object, upto: int) -> None:
    for number in [n for n, each in records.items() if each.get(key) == value and n <= upto]:
        del records[number]


def _parse(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        if line.endswith(b"\n"):  # the last one was cut by the SIGKILL: its change never happened
            record: Record = json.loads(line)
            yield record


def _line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
