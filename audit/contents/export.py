"""`dledger audit export`: the committed messages as Parquet, by topic and date, a run at a time.

    <target>/topic=orders/date=2026-01-31/00000000000000000000-00000000000000016384.parquet
    <target>/_export.json    what is done, and what a run is about to do
    <target>/_export.lock    held by the run that is at work

A file holds the messages of one range of the log, and its name says which. A run first writes
down up to where it will go, then the files, then that they are done, each durable before the next;
what a run that broke off had begun is repeated over the same ranges and replaces the same files, so
no message is ever in two of them. Then it goes on. Two runs at once would take each other's ranges
for broken off: the second is refused. Whoever writes the files may be another machine, whose folder
of that name may be another one: they count when they are seen here. A % of a topic's name is %25 in
that of its folder, as readers of such folders decode it.
One position stands for all topics, so an export is of the topics that it was begun with.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from audit.contents.parquet import UNFINISHED, RangeFiles
from audit.engines.engine import Engine, Progress, no_progress
from audit.engines.placed import placed_here
from audit.errors import EngineUnavailable, ExportUnderWay, UsageMistake
from audit.reading.replica import Replica
from audit.reading.survey import check_reaches, check_topics, committed_log
from dledger.reading.decode import (
    COLUMNS,
    NOTHING_LEFT_OUT,
    LeftOut,
    LogRange,
    Wanted,
    read_records,
)
from dledger.reading.lifetimes import followed
from dledger.reading.places import (
    Place,
    check_same_log,
    check_same_range,
    first_place,
    place_behind,
)
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey

# Of a folder that is another's to sync, or whose file system syncs none, as an autofs map's.
_UNSYNCED_ERRNOS: Final = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EACCES, errno.EPERM}
)
STATE_FILE: Final = "_export.json"
LOCK_FILE: Final = "_export.lock"
FORMAT: Final = "dledger-export/1"


@dataclass(frozen=True, slots=True)
class ExportState:
    """Messages below `done` of `topics` (None: of all) are exported; those in `[done, pending)` may
    be in part. The digests are those of the log at both; None: the release before kept none."""

    broker_group: str
    done: int
    pending: int
    topics: frozenset[str] | None = None
    done_digest: int | None = None
    pending_digest: int | None = None

    @property
    def done_place(self) -> Place:
        return Place(self.done, self.broker_group, self.done_digest)

    @property
    def pending_place(self) -> Place:
        return Place(self.pending, self.broker_group, self.pending_digest)

    def between(self, done: Place, pending: Place) -> ExportState:
        """The same export, so far."""
        return replace(
            self,
            done=done.offset,
            pending=pending.offset,
            done_digest=done.digest,
            pending_digest=pending.digest,
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """What one run did. Physical offsets; bytes of Parquet."""

    start: int
    end: int
    messages: int
    files: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Export one range into `target`, an absolute path: who does it has a current folder of its
    own."""

    part: LogRange
    target: str
    topics: frozenset[str] | None
    host: str | None = None
    left_out: LeftOut = NOTHING_LEFT_OUT

    @property
    def weight(self) -> int:
        return self.part.end - self.part.start


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote: messages, and files by their names below the target and sizes in bytes.
    `nowhere`: the machine on which there is no such target; nothing was written then."""

    messages: int = 0
    files: tuple[tuple[str, int], ...] = ()
    nowhere: str = ""


def export_messages(
    replica: Replica,
    target: Path,
    engine: Engine,
    topics: frozenset[str] | None = None,
    progress: Progress = no_progress,
    *,
    includes_deleted: bool = False,
    accept_retention: bool = False,
) -> Exported:
    """Everything committed is exported; what was before isn't touched.

    Args:
        includes_deleted: messages of topics that have been deleted by now, too.
        accept_retention: go on behind messages that retention took before they were exported.

    Raises:
        UsageMistake: the target holds something else, or messages of another broker group or of
            other topics; the replica has no message of one of `topics`, of which nothing was
            exported before, or lacks what comes next;
            what the engine wrote isn't there, as it has another folder under the target's name;
            the replica lies on another machine than this one, and the engine's are several.
        NotBesideFiles: nobody reads the replica's files on its machine.
        ExportUnderWay: another run is at work there.
        EngineUnavailable: pyarrow isn't installed.
        LogDamaged: the replica's log is damaged, or isn't one log; of this run nothing counts as
            done but what one that broke off had begun before that.
        OtherLog: what is exported is another log's.
    """
    _require_pyarrow()
    engine = placed_here(engine, replica.id, replica.host)
    target = target.absolute()
    lifetimes = followed(whole := committed_log(replica))
    log, left_out = lifetimes.cut(whole), lifetimes.left_out(includes_deleted=includes_deleted)
    if not (target / STATE_FILE).exists():  # One that was begun with a topic outlives it.
        check_topics(log, topics, lifetimes)
    _state_of(target, log, topics)  # Nothing is made in a folder of something else.
    with _held(target):
        state = _state_of(target, log, topics)
        check_reaches(log, str(target), state.done, accept_retention=accept_retention)
        begin = at = state.done_place if state.done >= log.retained_from else first_place(log)
        ends = _ends(log.settled, begin.offset, state.pending)
        if len(ends) > 1:  # a run broke off
            _remove_unfinished(target)
        if log.settled < ends[0]:
            raise UsageMistake(
                f"{replica.id} is committed to {log.settled}; {ends[0]} was begun before"
            )
        lifetimes.check_to(begin.offset + 1)  # It may not be one log, rather than another one.
        check_same_log(log, state.done_place)
        check_same_range(log, begin, state.pending_place)
        if len(ends) > 1:
            _remove_raw(target, log_ranges(log, begin.offset, state.pending))
        written: list[Written] = []
        for end in ends:
            lifetimes.check_to(end)
            until = place_behind(log, at, end)
            write_state(target, state.between(at, until))
            tasks = [
                ExportTask(part, str(target), topics, replica.host, left_out)
                for part in log_ranges(log, at.offset, end)
                if part.start < part.end
            ]
            done = engine.run(export_range, tasks, progress)
            _check_lies_here(target, done)
            written += done
            write_state(target, state.between(until, until))
            at = until
    messages, sizes = sum(each.messages for each in written), _sizes(written)
    return Exported(begin.offset, at.offset, messages, len(sizes), sum(sizes.values()))


def _ends(settled: int, begin: int, pending: int) -> list[int]:
    """Up to where the log is exported, in steps: where a run broke off the same ranges come first,
    so the same files."""
    return [*((pending,) if pending > begin else ()), max(settled, begin)]


def _sizes(written: Sequence[Written]) -> dict[str, int]:
    """Of all files, by their names below the target."""
    return {name: size for each in written for name, size in each.files}


def _check_lies_here(target: Path, written: Sequence[Written]) -> None:
    """What was written is in this machine's folder of that name, so in the one that all have.

    Raises:
        UsageMistake: it is elsewhere.
    """
    who = "for whoever does the work (--engine, --master) and for this command"
    rest = "nothing of this run counts as done, and the next one repeats it"
    if nowhere := min((each.nowhere for each in written if each.nowhere), default=""):
        raise UsageMistake(
            f"{target} has to be one folder {who}, and on {nowhere} there is none: {rest}"
        )
    for name, size in _sizes(written).items():
        if _size_here(target / name) != size:
            raise UsageMistake(
                f"{target} has to be one folder {who}, and {name} of {size} bytes was written "
                f"and isn't there: {rest}"
            )


def _size_here(file: Path) -> int | None:
    """Its size; None if it isn't there. It is opened, as a network's file system may answer who
    only asks for a name with what it knew before."""
    try:
        with file.open("rb") as content:
            return os.fstat(content.fileno()).st_size
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _held(target: Path) -> Iterator[None]:
    """Nobody else writes to the target while this lasts.

    Raises:
        ExportUnderWay: somebody does.
    """
    with (target / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportUnderWay(str(target)) from error
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # An engine's processes may have it open, too.


def _remove_unfinished(target: Path) -> None:
    """What a run that broke off had on its way is gone."""
    for file in target.glob(f"topic=*/date=*/_*{UNFINISHED}"):
        file.unlink(missing_ok=True)


def _remove_raw(target: Path, parts: Iterable[LogRange]) -> None:
    """What a run that broke off had written of these ranges into folders that the release before
    named by a topic with a % as it stands: nothing is written there any more, so nothing would
    replace it. Which of the names are such nobody knows, and all of them are written again."""
    for part in parts:
        for file in target.glob(f"topic=*%*/date=*/{_name_of(part)}"):
            file.unlink()
            _sync_names(file.parent)


def _state_of(target: Path, log: Survey, topics: frozenset[str] | None) -> ExportState:
    """How far the target is, which is a folder now; a new one is at what the log begins with.

    Raises:
        UsageMistake: it can't be one, or holds messages of another broker group or other topics.
    """
    broker_group = log.broker_group or ""
    try:
        _make_folder(target)
    except OSError as error:
        raise UsageMistake(f"{target} can't be made a folder: {error.strerror}") from error
    state, first = read_state(target), first_place(log)
    if state is None or _is_nothing(state, first.offset):
        new = ExportState(broker_group, first.offset, first.offset, topics)
        return new.between(first, first)
    if state.broker_group != broker_group:
        ours, theirs = broker_group, state.broker_group
        raise UsageMistake(f"{target} holds messages of broker group {theirs!r}, not of {ours!r}")
    if state.topics != topics:
        raise UsageMistake(f"{target} was begun with {_said(state.topics)}; name a folder a choice")
    return state


def _is_nothing(state: ExportState, begin: int) -> bool:
    """Whether it was begun with a log of which nobody knew whose it is, and nothing was exported,
    as by a release that read a backup so."""
    return not state.broker_group and state.done == state.pending == begin


def _make_folder(target: Path) -> None:
    """The target is a folder, and so are those around it, durably.

    Raises:
        OSError: it can't be.
    """
    if target.exists() and not target.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    missing = [each for each in (target, *target.parents) if not each.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        _sync_names(folder.parent)
    if not (target / STATE_FILE).exists():
        # A run that died as it made the folder may have left its name in the page cache only. Where
        # the folder around it can't be synced, it wasn't made there, or needs no sync.
        try:
            _sync_names(target.parent)
        except OSError as error:
            if error.errno not in _UNSYNCED_ERRNOS:
                raise


def export_range(task: ExportTask) -> Written:
    """The range is written, if there is the target, which is never made here: where it isn't, what
    would be made is another folder."""
    if not os.path.isdir(task.target):
        return Written(nowhere=socket.gethostname())
    target, names = Path(task.target), set[Path]()
    with RangeFiles(target, _name_of(task.part)) as made:
        for records in read_records(
            task.part, Wanted(COLUMNS, task.topics, left_out=task.left_out)
        ):
            made.take(records)
        files = tuple(made.finish())
    # The names too, of files and of the folders that they are in.
    for name, _ in files:
        names.update((target / name).parents[:3])
    for folder in sorted(names):
        _sync_names(folder)
    return Written(made.messages, files)


def _name_of(part: LogRange) -> str:
    return f"{part.start:020d}-{part.end:020d}.parquet"


def _sync_names(folder: Path) -> None:
    """The names in the folder are durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_state(target: Path) -> ExportState | None:
    """What earlier runs did; None if there was none.

    Raises:
        UsageMistake: the folder holds something that isn't an export.
    """
    file = target / STATE_FILE
    try:
        stored = json.loads(file.read_bytes())
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']!r}")
        topics = stored.get("topics")
        return ExportState(
            broker_group=str(stored["group"]),
            done=int(stored["done"]),
            pending=int(stored["pending"]),
            topics=None if topics is None else frozenset(map(str, topics)),
            done_digest=_digest(stored, "done_digest"),
            pending_digest=_digest(stored, "pending_digest"),
        )
    except FileNotFoundError:
        # And what a first run that broke off had of its state.
        ours = (LOCK_FILE, STATE_FILE + UNFINISHED)
        if any(each.name not in ours for each in target.iterdir()):
            raise UsageMistake(f"{target} isn't empty and holds no export") from None
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageMistake(f"{file} doesn't describe an export: {error}") from error


def _digest(stored: dict[str, Any], name: str) -> int | None:
    digest = stored.get(name)
    return None if digest is None else int(digest)


def write_state(target: Path, state: ExportState) -> None:
    """The state is on disk, under its name, before what follows begins."""
    fields = {
        "format": FORMAT,
        "group": state.broker_group,
        "done": state.done,
        "pending": state.pending,
        "done_digest": state.done_digest,
        "pending_digest": state.pending_digest,
        "topics": None if state.topics is None else sorted(state.topics),
    }
    fresh = target / f"{STATE_FILE}{UNFINISHED}"
    with fresh.open("w", encoding="utf-8") as file:
        file.write(json.dumps(fields, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target / STATE_FILE)
    _sync_names(target)


def _said(topics: frozenset[str] | None) -> str:
    return "all topics" if topics is None else f"--topic {' --topic '.join(sorted(topics))}"


def _require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise EngineUnavailable(
            f"export needs the extra 'audit' ({error}): pip install 'dledger[audit]'"
        ) from error
