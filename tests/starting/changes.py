"""One change to a directory, drawn: what disks, operators and forgers do to a file.

A change is a value that can be shrunk; applying it writes into a copy. Places are drawn as
fractions, so that one change fits any file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from crc32c import crc32c
from hypothesis import strategies as st

from dledger.core.types import HardState, NodeId, Term
from dledger.hard_state import encode_hard_state
from dledger.reading.checkpoint import CheckpointState, decode_checkpoint, encode_checkpoint
from dledger.reading.entry import HEADER_SIZE, parse_header
from dledger.records.errors import InvalidFrame
from dledger.records.layout import BOOT, ENTRY, TRUNCATION_INTENT
from store.atomic_file import AtomicFile
from store.directory import write_sealed
from store.files import OsFiles
from tests.starting.members import SEGMENT

WHOLE: Final = 1 << 16  # places in a file, as fractions of it
BIG: Final = (0, 1, 2, 3, SEGMENT, 1 << 31, 1 << 32, (1 << 62) + 1, 1 << 63, (1 << 64) - 1)
NAMES: Final = (
    *(f"{base:020d}" for base in (0, 1, SEGMENT, SEGMENT * 7, SEGMENT * 9, 10**19)),
    *("9" * 20, "stray", "checkpoint", "hard_state.tmp", f"{0:020d}.tmp", "x@1", ".deleted-1"),
)


@dataclass(frozen=True)
class Change:
    """`what` is done to the file (or folder) number `file`, with `at`, `other` and `value` as it
    needs them."""

    what: str
    file: int
    at: int
    other: int
    value: int

    def apply(self, root: Path) -> str:
        """The directory is changed; in words, how."""
        files = sorted(p for p in root.rglob("*") if not p.is_dir())
        folders = sorted(p for p in root.rglob("*") if p.is_dir())
        pool = folders if self.what in OF_FOLDERS else files
        if self.what.startswith("forge"):
            FORGERIES[self.what](self, root)
            return self.what
        path = pool[self.file % len(pool)]
        WAYS[self.what](self, path, files[self.other % len(files)])
        return f"{self.what} {path.relative_to(root)}"

    def place(self, path: Path) -> int:
        """A byte of the file, or the one behind it."""
        return path.stat().st_size * self.at // WHOLE


def _flip(change: Change, path: Path, other: Path) -> None:
    _write(path, change.place(path), lambda byte: bytes((byte[0] ^ (1 << change.value % 8),)))


def _write(path: Path, at: int, new: Callable[[bytes], bytes]) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        if old:
            file.seek(at)
            file.write(new(old))


def _cut(change: Change, path: Path, other: Path) -> None:
    os.truncate(path, change.place(path))


def _grow(change: Change, path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes((change.value % 2,)) * (1 + change.at % 5000))


def _zero(change: Change, path: Path, other: Path) -> None:
    content = path.read_bytes()
    at = change.place(path)
    end = min(len(content), at + 1 + change.value % 5000)
    path.write_bytes(content[:at] + bytes(end - at) + content[end:])


def _overwrite(change: Change, path: Path, other: Path) -> None:
    """A range of another file, or of another place in this one."""
    content, foreign = path.read_bytes(), other.read_bytes()
    at = change.place(path)
    path.write_bytes(content[:at] + foreign[: len(content) - at] + content[at + len(foreign) :])


def _swap(change: Change, path: Path, other: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    if other != path:
        other.rename(path)
    aside.rename(other)


def _rename(change: Change, path: Path, other: Path) -> None:
    target = path.with_name(NAMES[change.value % len(NAMES)])
    if not (target.is_dir() or (path.is_dir() and target.exists())):
        path.rename(target)


def _add(change: Change, path: Path, other: Path) -> None:
    target = path.with_name(NAMES[change.value % len(NAMES)])
    if not target.exists():
        shutil.copy(other, target)


def _in_place(make: Callable[[Path, Path], object]) -> Callable[[Change, Path, Path], None]:
    def way(change: Change, path: Path, other: Path) -> None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path, other)

    return way


def _second_name(path: Path, other: Path) -> None:
    if other.exists():  # not itself
        os.link(other, path)


WAYS: Final[dict[str, Callable[[Change, Path, Path], None]]] = {
    "flip": _flip,
    "cut": _cut,
    "grow": _grow,
    "zero": _zero,
    "overwrite": _overwrite,
    "swap": _swap,
    "rename": _rename,
    "add": _add,
    "remove": _in_place(lambda path, other: None),
    "to a pipe": _in_place(lambda path, other: os.mkfifo(path)),
    "to a link": _in_place(lambda path, other: path.symlink_to(other)),
    "to a second name": _in_place(_second_name),
    "to a folder": _in_place(lambda path, other: path.mkdir()),
    "rename folder": _rename,
    "remove folder": _in_place(lambda path, other: None),
    "folder to a file": _in_place(lambda path, other: path.touch()),
    "folder to a pipe": _in_place(lambda path, other: os.mkfifo(path)),
}
OF_FOLDERS: Final = {
    "rename folder", "remove folder", "folder to a file", "folder to a pipe",
}  # fmt: skip


def _hard_state(change: Change, root: Path) -> None:
    term = Term(BIG[change.value % len(BIG)])
    content = encode_hard_state(HardState(term, NodeId("n1" if change.at % 2 else "")))
    if change.other % 3 == 0:  # a vote that is no text
        body = content[:-4] + b"\xff\xfe"
        body = body[:6] + (len(body) - 16).to_bytes(2, "big") + body[8:]
        content = body + crc32c(body).to_bytes(4, "big")
    AtomicFile(OsFiles(), root / "raft" / "hard_state").replace(content)


def _boot(change: Change, root: Path) -> None:
    number = BIG[change.value % len(BIG)]
    content = BOOT.struct().pack(BOOT.constant("magic"), BOOT.constant("version"), number)
    AtomicFile(OsFiles(), root / "raft" / "boot").replace(content)


def _intent(change: Change, root: Path) -> None:
    layout = TRUNCATION_INTENT
    cut = (*BIG, 2 * SEGMENT + 7, 4 * SEGMENT)[change.value % (len(BIG) + 2)]
    content = layout.struct().pack(layout.constant("magic"), layout.constant("version"), cut)
    AtomicFile(OsFiles(), root / "truncation").replace(content)


def _checkpoint(change: Change, root: Path) -> None:
    path = root / "checkpoint"
    state = decode_checkpoint(path.read_bytes()) or CheckpointState()
    field = ("watermark", "first_offset", "consume_queue_index")[change.at % 3]
    value = (*BIG, 2 * SEGMENT, 100, 300)[change.value % (len(BIG) + 3)]
    path.write_bytes(encode_checkpoint(replace(state, **{field: value})))


def _sealed(name: str, values: dict[str, tuple[object, ...]]) -> Callable[[Change, Path], None]:
    def forge(change: Change, root: Path) -> None:
        fields = json.loads((root / name).read_text())
        del fields["crc32c"]
        field = sorted(values)[change.at % len(values)]
        fields[field] = values[field][change.value % len(values[field])]
        write_sealed(OsFiles(), root / name, fields)

    return forge


_NUMBERS: Final = (-1, 0, 1, SEGMENT, SEGMENT + 1, SEGMENT * 2, 1 << 64, 10**400, 1.5, None, "x")
_IDENTITY: Final[dict[str, tuple[object, ...]]] = {
    "group": ("g2", "", None, 7, "\ud800", "g1"),
    "node_id": ("n2", "", None, []),
    "segment_size_bytes": _NUMBERS,
    "disk_id": ("00" * 16, "", "zz", None, "00" * 15),
    "born_ms": _NUMBERS,
    "state": ("unformed", "legacy", "joining", "formed", "", None, 3),
    "format_version": (0, 1, 2, 3, None),
}
_FORMATION: Final[dict[str, tuple[object, ...]]] = {
    "broker_group": ("g2", None),
    "segment_size_bytes": _NUMBERS,
    "time_ms": _NUMBERS,
    "configuration": ("", "00", "zz", "ff" * 30, None, "0a026e31"),
    "is_adopted": (True, False, None),
    "format_version": (1, 2, None),
}


def _entry(change: Change, root: Path) -> None:
    """A field of one entry's header, its CRC repaired; its digest, too, or those of all behind."""
    paths = sorted((root / "commitlog").iterdir())
    path = paths[change.file % len(paths)]
    content = bytearray(path.read_bytes())
    starts = _entry_starts(content)
    if not starts:
        return
    at = starts[change.at % len(starts)]
    field = ("kind", "version", "record_count", "index", "term", "physical_offset", "digest")[
        change.other % 7
    ]
    place = ENTRY[field]
    value = (*BIG, 4, 5, 255)[change.value % (len(BIG) + 3)] % (1 << 8 * place.size)
    content[at + place.offset : at + place.offset + place.size] = value.to_bytes(place.size, "big")
    size = _size_at(content, at)
    crc_at, behind = ENTRY.at("crc"), ENTRY.end("crc")
    crc = crc32c(bytes(content[at : at + crc_at]))
    crc = crc32c(bytes(content[at + behind : at + size]), crc)
    content[at + crc_at : at + behind] = crc.to_bytes(4, "big")
    path.write_bytes(content)


def _size_at(content: bytearray, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "big")


def _entry_starts(content: bytearray) -> list[int]:
    starts, at = [], 0
    while at + HEADER_SIZE <= len(content):
        try:
            size = parse_header(content, at).total_size
        except InvalidFrame:
            break
        starts.append(at)
        at += size
    return starts


FORGERIES: Final[dict[str, Callable[[Change, Path], None]]] = {
    "forge hard state": _hard_state,
    "forge boot": _boot,
    "forge intent": _intent,
    "forge checkpoint": _checkpoint,
    "forge identity": _sealed("identity.json", _IDENTITY),
    "forge formation": _sealed("formation.json", _FORMATION),
    "forge entry": _entry,
}

CHANGES: Final = st.builds(
    Change,
    what=st.sampled_from([*WAYS, *FORGERIES]),
    file=st.integers(0, 200),
    at=st.integers(0, WHOLE),
    other=st.integers(0, 200),
    value=st.integers(0, 5000),
)
