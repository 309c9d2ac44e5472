"""Would a node start on this directory? Found out by letting it, on a rehearsal.

`judge` calls what a start calls, over `store.rehearsal`, and puts what comes of it into values. It
must know no rule of a start by itself: a rule that stood here could differ from the one that it is
about. What it adds is what a refusal hides: steps behind it are rehearsed alone, and what lies in
the directory is counted (docs/adr/0031-one-reader-of-a-directory.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from dledger.errors import HardStateCorrupt, HardStateOlder
from dledger.reading.files import printable
from dledger.records.layout import UNITS_PER_FILE
from store.checkpoint import Checkpoint
from store.commitlog import CommitLog, CommitLogOptions, RecoveryReport
from store.consumequeue import ConsumeQueues
from store.directory import DirectoryState, Identity, read_sealed, stored_boot_number
from store.errors import (
    CorruptionFound,
    IdentityMissing,
    NotARegularFile,
    StoreError,
    WrongIdentity,
)
from store.intact import NOTHING_KNOWN, Known
from store.rehearsal import RehearsedFiles
from store.snapshot_files import SnapshotFiles
from store.starting import opening
from store.starting.census import take_census
from store.starting.derived import read_replayed, trusted_index
from store.starting.errors import (
    BaseMissing,
    BaseUnknown,
    DiskReplaced,
    LogMissing,
    NotAMember,
    OutOfService,
    RestoreUnfinished,
    StartRefused,
)
from store.starting.founding import read_founding
from store.starting.judgement import DirectoryFacts, Effect, FileId, Findings, Judgement, Kind
from store.starting.levels import check_base_known
from store.starting.opening import Opened, Site, open_member
from store.starting.snapshots import opened_own
from store.worker import ManualWorker

# What a start ends with; anything else would be a defect, in the start as well.
REFUSALS: Final = (StartRefused, StoreError, HardStateCorrupt, OSError)
# Of a directory that doesn't say whose it is; its start is refused before this matters.
_NOBODYS: Final = Identity("", "", CommitLogOptions().segment_size_bytes)

_KINDS: Final[tuple[tuple[type[Exception], Kind], ...]] = (
    (NotARegularFile, Kind.NOT_A_FILE),
    (IdentityMissing, Kind.IDENTITY_MISSING),
    (WrongIdentity, Kind.IDENTITY_OTHER),
    (NotAMember, Kind.NOT_A_MEMBER),
    (RestoreUnfinished, Kind.RESTORE_UNFINISHED),
    (LogMissing, Kind.LOG_MISSING),
    (DiskReplaced, Kind.DISK_REPLACED),
    (OutOfService, Kind.OUT_OF_SERVICE),
    (BaseMissing, Kind.BASE_MISSING),
    (BaseUnknown, Kind.BASE_UNKNOWN),
    (HardStateOlder, Kind.HARD_STATE_OLDER),
    (HardStateCorrupt, Kind.HARD_STATE_DAMAGED),
)
_FILES: Final[tuple[tuple[str, Kind], ...]] = (
    ("identity.json", Kind.IDENTITY_DAMAGED),
    ("formation.json", Kind.FOUNDING_DAMAGED),
    ("raft/hard_state", Kind.HARD_STATE_DAMAGED),
    ("raft/boot", Kind.BOOT_DAMAGED),
    ("truncation", Kind.INTENT_DAMAGED),
    ("install", Kind.START_DAMAGED),
    ("log_start", Kind.START_DAMAGED),
    ("consumequeue", Kind.QUEUES_DAMAGED),
)


def judge(
    path: Path,
    expected: Identity | None = None,
    *,
    units_per_file: int = UNITS_PER_FILE,
    known: Known = NOTHING_KNOWN,
) -> Judgement:
    """Whether a node would start on the directory, and what there is to say of it. Nothing in it
    changes, whatever is found.

    Args:
        expected: whose it must be; None: whose it says it is.
        units_per_file: of the ConsumeQueues.
        known: what the caller has read of the log's files, as they are now.
    """
    return _Judge(path, expected, units_per_file, known).judgement()


@contextmanager
def rehearsed(path: Path, identity: Identity, known: Known = NOTHING_KNOWN) -> Iterator[Site]:
    """The directory as it is now, for one rehearsal."""
    files = RehearsedFiles()
    options = CommitLogOptions(segment_size_bytes=identity.segment_size_bytes, reserve_bytes=0)
    try:
        yield Site(path, identity, files, options, workers=ManualWorker, known=known)
    finally:
        files.close_all()


def start(site: Site, units_per_file: int) -> Opened:
    """Everything that a start does with files, but for what the state machine decides: that only
    has units mended, and refuses a base of a level that it doesn't know."""
    opened = open_member(site)
    check_base_known(SnapshotFiles(site.path, site.files), opened.log)
    ConsumeQueues(site.path, site.files, units_per_file=units_per_file).inspect()
    try:
        if opened.log.recovery.clean_shutdown:  # else the walk has read every byte
            read_replayed(opened.log, trusted_index(opened.log))
    except CorruptionFound as error:
        return opening.open_closely(site, opened, error)
    return opened


def _of_nobody(path: Path) -> Identity:
    """Who a directory is taken for that doesn't say whose it is, so that its log can be looked at
    nevertheless. Its start has been refused by then."""
    for name in sorted(os.listdir(path / "commitlog")) if (path / "commitlog").is_dir() else ():
        with suppress(OSError, ValueError):
            size = os.stat(path / "commitlog" / name, follow_symlinks=False).st_size
            CommitLogOptions(segment_size_bytes=size)
            return replace(_NOBODYS, segment_size_bytes=size)
    return _NOBODYS


def identity_of(path: Path) -> Identity | None:
    """Whose the directory says it is; None if it can't be learned."""
    with rehearsed(path, _NOBODYS) as site, suppress(*REFUSALS):
        return stated_identity(site)
    return None


def stated_identity(site: Site) -> Identity | None:
    """Whose the directory says it is; None if that is nothing that a node could be called."""
    fields = read_sealed(site.files, site.path / "identity.json")
    group, node, size = (fields.get(key) for key in ("group", "node_id", "segment_size_bytes"))
    if not (isinstance(group, str) and isinstance(node, str) and isinstance(size, int)):
        return None
    try:
        CommitLogOptions(segment_size_bytes=size)
    except ValueError:
        return None
    return Identity(group, node, size)


class _Judge:
    """One judgement of one directory."""

    def __init__(
        self, path: Path, expected: Identity | None, units_per_file: int, known: Known
    ) -> None:
        self._path = path
        self._identity = expected or _NOBODYS
        self._is_expected = expected is not None
        self._units_per_file = units_per_file
        # A start first makes the cut that was begun, so what was read isn't what it will find.
        self._known = NOTHING_KNOWN if os.path.lexists(path / "truncation") else known
        self._findings = Findings()
        self._facts = DirectoryFacts()

    def judgement(self) -> Judgement:
        """See `judge`."""
        if not os.path.isdir(self._path):
            error: Exception = NotADirectoryError(f"{self._path} is no directory")
            self._refused(error)
            return self._judged(error, ())
        self._learn_identity()
        refusal = self._alone(self._start)
        if refusal is not None:
            for step in (
                *(self._directory, self._founding, self._checkpoint),
                *(self._log, self._hard_state, self._boot),
            ):
                self._alone(step)
        is_clean = not os.path.lexists(self._path / "abort")
        self._learn(stopped_cleanly=is_clean)
        return self._judged(refusal, take_census(self._path, self._findings))

    def _judged(self, refusal: Exception | None, files: tuple[FileId, ...]) -> Judgement:
        return Judgement(
            path=os.fspath(self._path),
            starts=refusal is None,
            refusal="" if refusal is None else self._words(refusal),
            findings=self._findings.found(),
            findings_left_out=self._findings.left_out(),
            facts=self._facts,
            files=files,
        )

    def _alone(self, step: Callable[[Site], object]) -> Exception | None:
        """The step over a rehearsal of its own; what it was refused with is a finding."""
        with rehearsed(self._path, self._identity, self._known) as site:
            try:
                step(site)
            except REFUSALS as error:
                self._refused(error)
                return error
        return None

    # --- steps --------------------------------------------------------------------------------

    def _learn_identity(self) -> None:
        """Whose it is, as far as it says so; what is wrong with that the start will meet."""
        stated = identity_of(self._path)
        if not self._is_expected:
            self._identity = stated or _of_nobody(self._path)
        if stated is not None:
            self._learn(
                broker_group=stated.broker_group,
                node_id=stated.node_id,
                segment_size_bytes=stated.segment_size_bytes,
            )

    def _start(self, site: Site) -> None:
        opened = start(site, self._units_per_file)
        disk = opened.directory.disk
        self._learn(disk_id=disk.disk_id.hex(), state=disk.state.value)
        self._learn(term=opened.hard_state.term, vote=opened.hard_state.vote)
        if opened.hard_state_was_mended:
            kind = self._what_was_wrong(is_older=opened.hard_state_was_older)
            detail = "its second copy is as new"
            self._findings.add(kind, Effect.MENDED, "raft/hard_state", detail)
        self._learn_boot(opened.boot_number - 1, opened.log)
        self._learn_log(opened.log)
        self._look_at_snapshots(site, opened.log, disk.disk_id)

    def _what_was_wrong(self, *, is_older: bool) -> Kind:
        """With the file of term and vote, which a copy has stood in for."""
        if is_older:
            return Kind.HARD_STATE_OLDER
        is_there = (self._path / "raft" / "hard_state").exists()
        return Kind.HARD_STATE_DAMAGED if is_there else Kind.HARD_STATE_MISSING

    def _directory(self, site: Site) -> None:
        disk = opening.open_directory(site).disk
        self._learn(disk_id=disk.disk_id.hex(), state=disk.state.value)

    def _founding(self, site: Site) -> None:
        read_founding(site.path, site.files)

    def _checkpoint(self, site: Site) -> None:
        is_there = site.files.exists(site.path / "checkpoint")
        if not Checkpoint(site.files, site.path / "checkpoint").readable:
            self._findings.add(*_without_checkpoint(is_there=is_there))

    def _log(self, site: Site) -> None:
        log = opening.open_log(site)
        self._learn_log(log)
        opening.summarize(log, site.path)
        ConsumeQueues(site.path, site.files, units_per_file=self._units_per_file).inspect()

    def _hard_state(self, site: Site) -> None:
        if site.files.exists(site.path / "raft" / "hard_state"):
            found = opening.open_hard_state(site)
            self._learn(term=found.state.term, vote=found.state.vote)
        elif self._facts.state == DirectoryState.FORMED.value:  # so its log has an entry
            raise HardStateOlder("the term and vote of a member", "no file")

    def _boot(self, site: Site) -> None:
        self._learn(boot_number=stored_boot_number(site.files, site.path))

    # --- what they found ----------------------------------------------------------------------

    def _learn(self, **facts: object) -> None:
        self._facts = replace(self._facts, **facts)  # type: ignore[arg-type]

    def _learn_boot(self, number: int, log: CommitLog) -> None:
        self._learn(boot_number=number)
        if number == 0 and log.last_index > 1:
            detail = "a start would be the first; peers that have seen a later one refuse it"
            self._findings.add(Kind.BOOT_MISSING, Effect.IGNORED, "raft/boot", detail)

    def _learn_log(self, log: CommitLog) -> None:
        report, noted = log.recovery, log.checkpoint.state.consume_queue_index
        self._learn(
            first_index=log.first_index,
            last_index=log.last_index,
            last_term=log.last_term,
            end_offset=log.end_offset,
            watermark=report.watermark,
            derived_index=trusted_index(log),
        )
        if not report.checkpoint_readable:
            is_there = (self._path / "checkpoint").exists()
            self._findings.add(*_without_checkpoint(is_there=is_there))
        for kind, file, detail in _mended(report):
            self._findings.add(kind, Effect.MENDED, self._relative(file), detail)
        if trusted_index(log) < noted:
            detail = f"it notes entry {noted}, beyond what this log held: all is derived again"
            self._findings.add(Kind.QUEUES_AHEAD, Effect.MENDED, "checkpoint", detail)

    def _look_at_snapshots(self, site: Site, log: CommitLog, disk_id: bytes) -> None:
        """Each is whole, and this disk's, of this log. A start passes over what isn't."""
        files, through = SnapshotFiles(site.path, site.files), trusted_index(log)
        try:
            indexes = files.indexes()
        except OSError as error:
            detail = self._words(error)
            self._findings.add(Kind.SNAPSHOT_UNUSABLE, Effect.IGNORED, "snapshot", detail)
            return
        # Those of before the log's start are left for the next snapshot to remove.
        for index in [each for each in indexes if each >= log.start.index]:
            file, kind = self._relative(str(files.path(index))), Kind.SNAPSHOT_UNUSABLE
            if index > through:
                kind, detail = (
                    Kind.SNAPSHOT_AHEAD,
                    f"all is known to be committed through {through}",
                )
            else:
                detail = self._fault_of(files, log, disk_id, index)
            if detail:
                self._findings.add(kind, Effect.IGNORED, file, detail)

    def _fault_of(self, files: SnapshotFiles, log: CommitLog, disk_id: bytes, index: int) -> str:
        """What is wrong with a snapshot, as far as that can be told without its state."""
        try:
            with opened_own(files, log, disk_id, index) as (_, chunks):
                for _ in chunks:
                    pass
        except (StoreError, OSError) as error:
            return self._words(error)
        return ""

    def _refused(self, error: Exception) -> None:
        file = self._relative(file_of(error))
        kind = kind_of(error, file)
        if kind is Kind.HARD_STATE_OLDER and not (self._path / "raft" / "hard_state").exists():
            kind = Kind.HARD_STATE_MISSING
        self._findings.add(kind, Effect.REFUSED, file, self._words(error))

    def _relative(self, file: str) -> str:
        """The file as the findings name it."""
        inner = os.path.relpath(file, self._path) if file else ""
        return "" if inner == "." or inner.startswith("..") else printable(inner)

    def _words(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.filename and error.strerror:
            return printable(f"{error.filename}: {error.strerror}")
        return printable(str(error))


def file_of(error: Exception) -> str:
    """The file that a refusal is about; empty if it is about none alone."""
    if isinstance(error, HardStateCorrupt):
        return ""
    file = error.filename if isinstance(error, OSError) else getattr(error, "file", None)
    return os.fspath(file) if isinstance(file, str | Path) else ""


def kind_of(error: Exception, file: str) -> Kind:
    """What a refusal is called, by its kind and the file that it is about."""
    for refusal, kind in _KINDS:
        if isinstance(error, refusal):
            return kind
    if not isinstance(error, CorruptionFound):
        return Kind.UNREADABLE
    for name, kind in _FILES:
        if file.startswith(name):
            return kind
    return Kind.SEGMENT_MISSING if error.expected == "a segment" else Kind.LOG_DAMAGED


def _without_checkpoint(*, is_there: bool) -> tuple[Kind, Effect, str, str]:
    kind = Kind.CHECKPOINT_DAMAGED if is_there else Kind.CHECKPOINT_MISSING
    detail = "nothing says how far the log was durable: where it breaks off, it ends"
    return kind, Effect.MENDED, "checkpoint", detail


def _mended(report: RecoveryReport) -> Iterator[tuple[Kind, str, str]]:
    """What opening the log put right: kind, file and detail of each."""
    if report.redone_cut is not None:
        yield Kind.CUT_UNFINISHED, "truncation", f"the log is cut at {report.redone_cut}"
    if report.extended_file is not None:
        detail = "what is missing lies behind what was durable"
        yield Kind.SEGMENT_SHORT, report.extended_file, detail
    if report.cut_from is not None:
        detail = f"{report.cut_bytes} bytes from {report.cut_from} on: {report.reason}"
        yield Kind.TAIL_TORN, "", detail
