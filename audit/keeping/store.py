"""Where a watch keeps what it proved and what it saw: one SQLite file, and a lock beside it.

Each row carries an XXH3 over all that it says, so that a page that rots makes it no other row but
none. A file that SQLite can't read is put aside, whole, and begun anew: what is lost is time, and
the history. One watch writes at once; whoever only reads takes no lock. Nothing in a row is ever
run. The store is opened anew each round, so that what is wrong with it shows when it is opened.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

from xxhash import xxh3_64_hexdigest

from audit.errors import KeptUnreadable, StoreInUse, UsageMistake
from audit.keeping.history import Round, round_as_json, round_from_json
from audit.keeping.kept import (
    Kept,
    Part,
    Row,
    decode_chain,
    decode_digests,
)
from audit.keeping.stamps import FileStamp, Place
from dledger.outcome import ExitCode

FILE: Final = "watch.db"
LOCK: Final = "watch.lock"
FORMAT: Final = 1
KEPT_ROUNDS: Final = 10_000  # of each exit code
_APPLICATION: Final = 0x444C5754  # "DLWT"
_WAIT_S: Final = 10.0
_SCHEMA: Final = (
    "CREATE TABLE kept (replica TEXT, base INTEGER, part TEXT, stamp TEXT, program TEXT, "
    "proved REAL, payload BLOB, sum TEXT, PRIMARY KEY (replica, base, part))",
    "CREATE TABLE rounds (number INTEGER PRIMARY KEY, good INTEGER, facts TEXT, sum TEXT)",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)",
)
# Of a round; one that can't be read may tell of the worst.
_EXIT_CODE: Final = (
    "coalesce(CASE WHEN json_valid(facts) THEN json_extract(facts, '$.exit_code') END, "
    f"{int(ExitCode.INCONSISTENT)})"
)


class Memory(Protocol):
    """What audits remember."""

    def kept(self, program: str) -> dict[Place, Kept]:
        """What that program proved."""
        ...

    def last_audit(self, default: float) -> float:
        """When the last audit began whose results were kept, seconds since the epoch."""
        ...

    def keep(
        self, group: str | None, now: float, rows: Sequence[Row], ended: Sequence[Place]
    ) -> None:
        """All of it is kept, or, if the store fails, nothing.

        Raises:
            UsageMistake: the memory is another broker group's.
        """
        ...


class WatchStore:
    """The store in a folder, held until `close`. `problem`: what is wrong with it, since it was
    asked last; it costs no audit its verdict.

    Raises:
        StoreInUse: another watch holds it.
        UsageMistake: it is another program's, or another format.
        OSError: the folder can't be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._problems: list[str] = []
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StoreInUse(str(folder)) from error
        try:
            with self._opened():
                pass
        except sqlite3.Error as error:
            self.close()
            raise OSError(errno.EIO, str(error), str(self._path)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Another watch may have it."""
        os.close(self._lock)

    def problems(self) -> list[str]:
        """What went wrong since this was asked."""
        said, self._problems = self._problems, []
        return said

    def kept(self, program: str) -> dict[Place, Kept]:
        """See `Memory.kept`; rows that can't be read are left out, and told."""
        found: dict[Place, Kept] = {}
        bad = 0
        with self._told(), self._opened() as base:
            for *fields, checksum in base.execute("SELECT * FROM kept"):
                row = _row(fields, checksum)
                if row is None or not _added(found, row, program):
                    bad += row is None or row.program == program
        if bad:
            self._problems.append(f"{bad} kept results can't be read; their segments will be")
        return found

    def last_audit(self, default: float) -> float:
        """See `Memory.last_audit`."""
        found: list[float] = []
        with self._told(), self._opened() as base:
            said = base.execute("SELECT value FROM about WHERE name = 'audited'")
            found += [float(value) for (value,) in said]
        return found[0] if found else default

    def keep(
        self, group: str | None, now: float, rows: Sequence[Row], ended: Sequence[Place]
    ) -> None:
        """See `Memory.keep`."""
        with self._told(), self._opened() as base, _transaction(base):
            if group is not None:
                said = base.execute("SELECT value FROM about WHERE name = 'group'").fetchone()
                if said is not None and said[0] != group:
                    raise UsageMistake(
                        f"{self._path} holds what was proved of broker group {said[0]}, this is "
                        f"{group}: name another folder with --reports"
                    )
                base.execute("INSERT OR REPLACE INTO about VALUES ('group', ?)", (group,))
            base.execute("INSERT OR REPLACE INTO about VALUES ('audited', ?)", (repr(now),))
            base.executemany("DELETE FROM kept WHERE replica = ? AND base = ?", ended)
            base.executemany(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(_stored, rows)
            )

    def add(self, each: Round) -> None:
        """The round is in the history; of those of its exit code the last `KEPT_ROUNDS` stay."""
        facts, good = json.dumps(round_as_json(each)), int(each.exit_code == 0)
        with self._told(), self._opened() as base, _transaction(base):
            base.execute(
                "INSERT INTO rounds (good, facts, sum) VALUES (?, ?, ?)",
                (good, facts, _sum((good, facts))),
            )
            base.execute(
                "DELETE FROM rounds WHERE number IN (SELECT number FROM rounds "
                f"WHERE {_EXIT_CODE} = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (int(each.exit_code), KEPT_ROUNDS),
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A store that fails is told of, and costs nothing else: what it holds is then not known,
        and what was to be kept isn't."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            self._problems.append(f"{self._path}: {error}")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            base = _open(self._path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # No space, no permission: the file itself may be whole.
            aside = self._path.with_name(f"{FILE}.damaged")
            self._path.replace(aside)
            self._path.with_name(f"{FILE}-journal").unlink(missing_ok=True)
            self._problems.append(f"{self._path} was damaged ({error}); it is {aside.name} now")
            base = _open(self._path)
        with closing(base):
            yield base


def read_history(folder: Path) -> tuple[list[Round], list[int]]:
    """The rounds, oldest first, and those that can't be read: of each, how many of the others were
    before it. Takes no watch's lock.

    Raises:
        UsageMistake: there is no history, or none that can be read.
    """
    path = folder / FILE
    if not path.is_file():
        raise UsageMistake(f"there is no {path}: no `dledger audit watch` has written there")
    rounds: list[Round] = []
    bad: list[int] = []
    for good, facts, said in _stored_rounds(path):
        try:
            if _sum((good, facts)) != said:
                raise KeptUnreadable("its sum is wrong")
            rounds.append(round_from_json(json.loads(facts)))
        except (ValueError, TypeError):
            bad.append(len(rounds))
    return rounds, bad


def _stored_rounds(path: Path) -> list[tuple[object, str, object]]:
    """The rows of all rounds, oldest first. What a watch had begun to write as it was killed is
    undone first, by whoever may write the file.

    Raises:
        UsageMistake: they can't be read.
    """
    try:
        return _rounds_in(path, "ro")
    except sqlite3.Error as error:
        # What the module says itself has no code.
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise UsageMistake(f"{path}: {error}") from error
    try:
        return _rounds_in(path, "rw")
    except sqlite3.Error as error:
        raise UsageMistake(
            f"{path}: a watch was killed while it wrote, and this command can't undo what it had "
            f"begun ({error}): run it as who runs the watch"
        ) from error


def _rounds_in(path: Path, mode: str) -> list[tuple[object, str, object]]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as base:
        base.text_factory = _as_text
        return list(base.execute("SELECT good, facts, sum FROM rounds ORDER BY number"))


def _as_text(stored: bytes) -> str:
    """Also of what has rotted: its sum tells."""
    return stored.decode(errors="replace")


def _open(path: Path) -> sqlite3.Connection:
    """Raises: sqlite3.Error, UsageMistake."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    base = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
    try:
        (application,) = base.execute("PRAGMA application_id").fetchone()
        (format_,) = base.execute("PRAGMA user_version").fetchone()
        tables = {sql for (sql,) in base.execute("SELECT sql FROM sqlite_master") if sql}
        if not application and not format_ and not tables:
            _create(base)
        elif application != _APPLICATION and format_ == FORMAT and tables == {*_SCHEMA}:
            raise sqlite3.DatabaseError("its header names another program")  # which has no such
        elif (application, format_) != (_APPLICATION, FORMAT):
            raise UsageMistake(f"{path} is no store of this release: name another folder")
        elif tables != {*_SCHEMA}:
            raise sqlite3.DatabaseError("its tables are others")
        (found,) = base.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    except BaseException:
        base.close()
        raise
    return base


def _create(base: sqlite3.Connection) -> None:
    """All of it at once: a store that is half made would be another program's."""
    with _transaction(base):
        for statement in _SCHEMA:
            base.execute(statement)
        base.execute(f"PRAGMA application_id = {_APPLICATION}")
        base.execute(f"PRAGMA user_version = {FORMAT}")


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if base.in_transaction:  # a full disk ends it by itself, and should be what is told
            base.execute("ROLLBACK")
        raise
    base.execute("COMMIT")


def _stored(row: Row) -> tuple[object, ...]:
    fields = (
        *row.place,
        row.part.value,
        json.dumps(row.stamp),
        row.program,
        row.proved,
        row.payload,
    )
    return *fields, _sum(fields)


def _row(fields: Sequence[object], checksum: object) -> Row | None:
    """The row, if it is the one that was stored."""
    if _sum(fields) != checksum:
        return None
    replica, base, part, stamp, program, proved, payload = fields
    if not (isinstance(replica, str) and isinstance(base, int) and isinstance(program, str)):
        return None
    if not (isinstance(stamp, str) and isinstance(proved, float) and isinstance(payload, bytes)):
        return None
    try:
        return Row(
            (replica, base),
            Part(str(part)),
            FileStamp(*json.loads(stamp)),
            program,
            proved,
            payload,
        )
    except (ValueError, TypeError):
        return None


def _added(found: dict[Place, Kept], row: Row, program: str) -> bool:
    """Puts the row where it belongs; false if it is of another program, or makes no sense. Parts
    of two states of a file are not both kept: the later one is."""
    if row.program != program:
        return False
    before = found.get(row.place)
    if before is not None and before.stamp != row.stamp:
        if before.proved > row.proved:
            return True
        before = None
    digests, chain = (before.digests, before.chain) if before else (None, None)
    try:
        if row.part is Part.DIGESTS:
            digests = decode_digests(row.payload)
        else:
            chain = decode_chain(row.payload, row.place)
    except KeptUnreadable:
        return False
    proved = min(row.proved, before.proved) if before else row.proved
    found[row.place] = Kept(row.stamp, proved, digests, chain)
    return True


def _sum(fields: Sequence[object]) -> str:
    """Over everything that the row says."""
    parts = [each if isinstance(each, bytes) else repr(each).encode() for each in fields]
    sizes = ",".join(str(len(part)) for part in parts).encode()
    return str(xxh3_64_hexdigest(b"\0".join([sizes, *parts])))
