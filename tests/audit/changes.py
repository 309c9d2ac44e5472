"""Any one change to the files of one replica, and which verdicts it allows.

A change is a small value that hypothesis draws and shrinks: what is done, to which file or entry,
where. `apply` does it to a copy of a directory. `Expected` says what an audit may call it, from
what was done and from a map of the *original* files: nothing of `audit` is asked, so that the two
can't be wrong in the same way.

Not drawn: strays and links, marks that a node leaves (`LOCK`, `abort`) and spare files. Segments
aren't made longer either: what lies behind a segment's size is no log.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from crc32c import crc32c

from audit.proof.findings import Verdict
from dledger.reading.checkpoint import CheckpointState, decode_checkpoint, encode_checkpoint
from dledger.reading.entry import HEADER_SIZE, EntryKind, digest_of, parse_header
from dledger.reading.log_start import NOTE, start_noted
from dledger.records.errors import InvalidFrame
from dledger.records.layout import ENTRY, FILE_NAME, SNAPSHOT_FILE
from store.dispatch import UNIT_SIZE
from store.files import Handle, OsFiles
from tests.audit.replicas import copy_sparse

NOTHING = frozenset({Verdict.IDENTICAL})
LACKS = frozenset({Verdict.INCOMPLETE})
NO_MATTER = frozenset({Verdict.IDENTICAL, Verdict.INCOMPLETE})
_CRC = ENTRY.at("crc")
_BODY = HEADER_SIZE
_FIRST_PIECE = SNAPSHOT_FILE.size  # of a snapshot


class Kind(StrEnum):
    """What is done."""

    FLIP = "flip"
    ZERO = "zero"
    CUT = "cut"
    CUT_AT_ENTRY = "cut at an entry"
    GROW = "grow"
    SWAP_FILES = "swap files"
    SWAP_RANGES = "swap ranges"
    RENAME = "rename"
    REMOVE = "remove"
    EMPTY_FOLDER = "empty a folder"
    RELABEL = "relabel"
    FORGE = "forge"
    CHECKPOINT = "forge the checkpoint"
    FORGE_SNAPSHOT = "forge a snapshot"


class Repair(StrEnum):
    """How far a forger goes."""

    SUMS = "checksums"  # the entry's CRC
    DIGEST = "digest"  # and its running digest
    CHAIN = "chain"  # and those of all that follow


@dataclass(frozen=True, slots=True)
class Change:
    """`file`, `other`: numbers of files, or of entries; `at`, `to`: bytes; taken modulo what there
    is. So each number means something, and smaller ones are simpler."""

    kind: Kind
    file: int = 0
    at: int = 0
    size: int = 1
    other: int = 0
    to: int = 0
    bit: int = 0
    repair: Repair = Repair.SUMS


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of the log, by its header."""

    base: int
    at: int
    size: int
    kind: int
    index: int
    term: int
    records: int


class Map:
    """What the original directory holds. `files`: what may be changed, paths within it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        state = decode_checkpoint((data / "checkpoint").read_bytes())
        assert state is not None
        self.state = state
        self.end = state.watermark
        self.segments = sorted(p.relative_to(data) for p in (data / "commitlog").iterdir())
        self.queues = sorted(
            path.relative_to(data)
            for path in (data / "consumequeue").glob("*@*/*/*")
            if FILE_NAME.fullmatch(path.name)
        )
        self.sealed = [Path("identity.json"), Path("raft/hard_state")]
        self.others = [Path("formation.json"), Path("raft/boot")]
        start = start_noted(str(data))
        assert start is not None
        self.start = start
        self.base = Path("snapshot") / f"{start.index:020d}"  # what a later start begins with
        # Without either no node starts on a log that begins later.
        self.sealed += [Path(NOTE), self.base] if start.index else []
        kept = {
            path.relative_to(data)
            for path in (data / "snapshot").glob("0*")
            if FILE_NAME.fullmatch(path.name)
        }
        self.snapshots = sorted(kept - {*self.sealed})
        self.alone_below = 0  # where others begin whose logs begin later
        self.files = [
            *self.segments, *self.queues, Path("checkpoint"), *self.sealed, *self.others,
            *self.snapshots,
        ]  # fmt: skip
        self.segment_size = (data / self.segments[0]).stat().st_size
        self.entries = [each for path in self.segments for each in self._entries(path)]
        self.used = {path: _used(data / path) for path in self.queues}
        self.retired = {path: self._retired(path) for path in self.queues}

    def log_bytes(self, path: Path) -> int:
        """How many bytes of a segment are log."""
        return min(max(self.end - int(path.name), 0), self.segment_size)

    def length(self, path: Path) -> int:
        """How many bytes of a file mean something, and some of those behind."""
        if path in self.used:
            return self.used[path] + 3 * UNIT_SIZE
        return (self.data / path).stat().st_size

    def _retired(self, path: Path) -> int:
        """How many bytes of a ConsumeQueue's file are units of entries that the log let go."""
        content = _content(self.data / path)[1]
        places = range(0, len(content), UNIT_SIZE)
        kept = (
            at for at in places if int.from_bytes(content[at : at + 8]) >= self.start.end_offset
        )
        return next(kept, self.used[path]) if self.start.index else 0

    def _entries(self, path: Path) -> list[Placed]:
        content, base, at = (self.data / path).read_bytes(), int(path.name), 0
        found = []
        while at + HEADER_SIZE <= self.log_bytes(path):
            try:
                header = parse_header(content, at)
            except InvalidFrame:
                break  # A filler.
            fields = (header.kind, header.index, header.term, header.record_count)
            found.append(Placed(base, at, header.total_size, *fields))
            at += header.total_size
        return found


def _used(path: Path) -> int:
    size = len(_content(path)[1])
    return size + -size % UNIT_SIZE


def copied(data: Path, target: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(data, target, copy_function=copy_sparse)
    return target


def fits(change: Change, known: Map, data: Path) -> bool:
    """Whether `data`, another member's directory, has the files that the change is about: one may
    have prepared a segment more."""
    named = [
        data / known.files[number % len(known.files)] for number in (change.file, change.other)
    ]
    base = known.entries[change.file % len(known.entries)].base
    return all(path.exists() for path in (*named, data / "commitlog" / f"{base:020d}"))


def apply(change: Change, known: Map, target: Path) -> None:
    """Does it to the copy `target` of the directory that is `known`."""
    path = known.files[change.file % len(known.files)]
    other = known.files[change.other % len(known.files)]
    file = target / path
    match change.kind:
        case Kind.FLIP:
            at = change.at % known.length(path)
            _overwrite(file, at, bytes((_piece(file, at, 1)[0] ^ (1 << change.bit % 8),)))
        case Kind.ZERO:
            at = change.at % known.length(path)
            _overwrite(file, at, bytes(len(_piece(file, at, change.size))))
        case Kind.CUT:
            os.truncate(file, change.at % known.length(path))
        case Kind.CUT_AT_ENTRY:
            entry = known.entries[change.file % len(known.entries)]
            os.truncate(target / "commitlog" / f"{entry.base:020d}", entry.at)
        case Kind.GROW:
            growing_files = [path for path in known.files if path not in known.segments]
            path = growing_files[change.file % len(growing_files)]
            with (target / path).open("ab") as growing:
                growing.write(bytes((change.bit % 2,)) * change.size)
        case Kind.SWAP_FILES:
            _swap(file, target / other, target / "aside")
        case Kind.SWAP_RANGES:
            at, to = change.at % known.length(path), change.to % known.length(other)
            one, two = _piece(file, at, change.size), _piece(target / other, to, change.size)
            _overwrite(file, at, two)
            _overwrite(target / other, to, one)
        case Kind.RENAME:
            spare = f"{known.segment_size * (change.to % 99):020d}"
            file.rename(file.with_name(spare if change.bit % 2 else f"{file.name}.bak"))
        case Kind.REMOVE:
            file.unlink()
        case Kind.EMPTY_FOLDER:
            _empty(target, known, change.file)
        case Kind.RELABEL | Kind.FORGE:
            _forge(change, known, target)
        case Kind.CHECKPOINT:
            file = target / "checkpoint"
            file.write_bytes(encode_checkpoint(forged_state(change, known.state)))
        case Kind.FORGE_SNAPSHOT:
            _forge_snapshot(change, target / known.snapshots[change.file % len(known.snapshots)])


def forged_state(change: Change, state: CheckpointState) -> CheckpointState:
    """One field of the checkpoint is another, at most so large that a log could have it."""
    match change.at % 3:
        case 0:
            return replace(state, watermark=change.to % (2 * state.watermark))
        case 1:
            return replace(state, first_offset=change.to % state.watermark)
        case _:
            index = change.to % (2 * state.consume_queue_index)
            return replace(state, consume_queue_index=index)


def _empty(target: Path, known: Map, number: int) -> None:
    """Of the folders of the log, the queues, a topic, a queue."""
    folders = sorted({q.parent for q in known.queues} | {q.parent.parent for q in known.queues})
    folder = (
        target / [Path("commitlog"), Path("consumequeue"), *folders][number % (len(folders) + 2)]
    )
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def _forge(change: Change, known: Map, target: Path) -> None:
    """An entry says something else, and its sums say that it is right."""
    first = change.file % len(known.entries)
    entry = known.entries[first]
    file = target / "commitlog" / f"{entry.base:020d}"
    frame = bytearray(_piece(file, entry.at, entry.size))
    if change.kind is Kind.RELABEL:
        kinds = [kind for kind in (*EntryKind, 9) if kind != entry.kind]
        frame[ENTRY.at("kind")] = kinds[change.to % len(kinds)]
    else:
        places = [
            *range(ENTRY.at("index"), ENTRY.end("append_time_ms")),
            *range(_BODY, len(frame)),
        ]
        frame[places[change.at % len(places)]] ^= 1 << change.bit % 8
    digest = _digest_before(known, target, first)
    if change.repair is not Repair.SUMS:
        _redigest(frame, digest)
    _overwrite(file, entry.at, _sealed(frame))
    if change.repair is not Repair.CHAIN:
        return
    digest = parse_header(bytes(frame), 0).digest
    for later in known.entries[first + 1 :]:
        file = target / "commitlog" / f"{later.base:020d}"
        frame = bytearray(_piece(file, later.at, later.size))
        digest = _redigest(frame, digest)
        _overwrite(file, later.at, _sealed(frame))


def _forge_snapshot(change: Change, file: Path) -> None:
    """A byte of its first piece is another, and its sum says that it is right."""
    content = bytearray(file.read_bytes())
    begin = _FIRST_PIECE + 4
    size = int.from_bytes(content[_FIRST_PIECE:begin], "big")
    content[begin + change.at % size] ^= 1 << change.bit % 8
    content[-4:] = crc32c(bytes(content[:-4])).to_bytes(4, "big")
    file.write_bytes(content)


def _digest_before(known: Map, target: Path, number: int) -> int:
    if number == 0:
        return known.start.digest
    entry = known.entries[number - 1]
    file = target / "commitlog" / f"{entry.base:020d}"
    return parse_header(_piece(file, entry.at, HEADER_SIZE), 0).digest


def _redigest(frame: bytearray, before: int) -> int:
    digest = digest_of(frame, 0, len(frame), before)
    frame[ENTRY.at("digest") : ENTRY.end("digest")] = digest.to_bytes(8, "big")
    return digest


def _sealed(frame: bytearray) -> bytes:
    crc = crc32c(bytes(frame[_CRC + 4 :]), crc32c(bytes(frame[:_CRC])))
    frame[_CRC : _CRC + 4] = crc.to_bytes(4, "big")
    return bytes(frame)


def _piece(file: Path, at: int, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(at)
        return opened.read(size)


def _overwrite(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def _swap(one: Path, two: Path, aside: Path) -> None:
    if one != two:
        one.rename(aside)
        two.rename(one)
        aside.rename(two)


# --- what may be said of it -----------------------------------------------------------------------


def allowed(change: Change, known: Map, target: Path, *, derived: bool) -> frozenset[Verdict]:
    """The verdicts that the change allows, by what became of each file: the gravest of theirs."""
    forged = change.kind in (Kind.RELABEL, Kind.FORGE)
    verdicts = NOTHING
    for path in known.files:
        if _same(known.data / path, target / path):
            continue
        if path in known.used:
            each = _of_queue(path, known, target) if derived else NOTHING
        elif path in known.snapshots:
            each = NOTHING  # No verdict speaks of them.
        elif path.name == "checkpoint":
            each = _of_checkpoint(change, derived=derived)
        elif path not in known.segments:
            each = _of_start(path, known, target) if derived else NO_MATTER
        else:
            each = _of_segment(path, known, target, forged=forged)
            if not derived and int(path.name) < known.alone_below:
                each |= NO_MATTER  # Nobody else holds it: it is none of what is compared.
        verdicts = frozenset(max(a, b, key=list(Verdict).index) for a in verdicts for b in each)
    for path in sorted((target / "commitlog").iterdir()):
        if path.relative_to(target) not in known.segments:
            verdicts |= _of_new_segment(verdicts, known, path)
    return verdicts


def noted(known: Map, target: Path) -> list[str]:
    """The snapshots that are there and not what they were, as a report has to name them."""
    known_paths = {known.data / path for path in (*known.snapshots, known.base)}
    kept_twice = {known.base.name, f"{known.base.name}.copy"}  # a start has the one of the other
    return [
        f"snapshot/{path.name}"
        for path in sorted((target / "snapshot").glob("0*"))
        if path.name not in kept_twice
        and (
            (known.data / "snapshot" / path.name) not in known_paths
            or path.read_bytes() != (known.data / "snapshot" / path.name).read_bytes()
        )
    ]


def _same(one: Path, two: Path) -> bool:
    return two.exists() and _content(one) == _content(two)


def _content(path: Path) -> tuple[int, bytes]:
    """Its size, and its bytes but for a hole at the end: queues are mostly that."""
    files = OsFiles()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        ends = [end for _, end in files.data_ranges(Handle(file.fileno()), 0, size)]
        return size, os.pread(file.fileno(), max(ends, default=0), 0).rstrip(b"\0")


def _of_segment(path: Path, known: Map, target: Path, *, forged: bool) -> frozenset[Verdict]:
    """A file that is gone or short lacks bytes; where bytes are others, CRCs tell; where those are
    right, too, replicas have diverged."""
    size = known.log_bytes(path)
    before = (known.data / path).read_bytes()[:size]
    if not (target / path).exists():
        return LACKS if size else NO_MATTER
    after = (target / path).read_bytes()[:size]
    if after == before:
        return NO_MATTER  # Behind the log's end: nobody speaks of it.
    if forged:
        # Another place in a header makes it an entry of that place.
        return frozenset({Verdict.DIVERGENCE, Verdict.MISPLACED})
    if before.startswith(after):
        return LACKS
    wrong = next(at for at, byte in enumerate(after) if byte != before[at])
    entry = next((e for e in known.entries if (e.base, e.at + e.size) > (int(path.name), wrong)
                  and e.base == int(path.name)), None)  # fmt: skip
    since = entry.at if entry is not None else wrong
    if not any(after[since:]):
        return frozenset({Verdict.INCOMPLETE, Verdict.BIT_ROT})  # As an old copy has it.
    is_short = len(after) < size  # Then what it ends with is taken for what was cut.
    return frozenset(
        {Verdict.BIT_ROT, Verdict.MISPLACED} | ({Verdict.INCOMPLETE} if is_short else set())
    )


def _of_new_segment(verdicts: frozenset[Verdict], known: Map, path: Path) -> frozenset[Verdict]:
    if not FILE_NAME.fullmatch(path.name):
        return frozenset()
    is_ours = known.start.end_offset < int(path.name) < known.end
    return frozenset({Verdict.MISPLACED}) if is_ours else frozenset()


def _of_queue(path: Path, known: Map, target: Path) -> frozenset[Verdict]:
    """Units that are gone are missing, others are wrong or too many. Those of entries that were let
    go nobody reads: what is there instead may be taken for one of the log's if none is there."""
    retired, is_over = known.retired[path], known.retired[path] == known.used[path]
    if is_over:
        return frozenset({Verdict.IDENTICAL, Verdict.INCOMPLETE, Verdict.BIT_ROT})
    if not (target / path).exists():
        folder = (target / path).parent
        is_renamed = folder.exists() and any(FILE_NAME.fullmatch(p.name) for p in folder.iterdir())
        return frozenset({Verdict.INCOMPLETE, *([Verdict.BIT_ROT] * is_renamed)})
    (size, before), (other_size, after) = _content(known.data / path), _content(target / path)
    if size == other_size and before[retired:] == after[retired:]:
        return NOTHING if before != after else LACKS
    if before == after or (other_size < size and before.startswith(after)):
        return LACKS
    return frozenset({Verdict.INCOMPLETE, Verdict.BIT_ROT})


def _of_start(path: Path, known: Map, target: Path) -> frozenset[Verdict]:
    """Without its identity, its term and vote, no node starts; what it does about other files, and
    about what lies behind the end of these, is for it to say."""
    if path in known.sealed:
        after = (target / path).read_bytes() if (target / path).exists() else b""
        if not after.startswith((known.data / path).read_bytes()):
            is_there_twice = (target / f"{path}.copy").exists()
            return LACKS | NO_MATTER if is_there_twice else LACKS
    return NO_MATTER


def _of_checkpoint(change: Change, *, derived: bool) -> frozenset[Verdict]:
    """One that can't be read claims nothing, so something is lacking. A forged one claims less or
    more than there is: what was compared all the same may be called equal."""
    if change.kind is Kind.CHECKPOINT or not derived:
        return NO_MATTER
    return LACKS
