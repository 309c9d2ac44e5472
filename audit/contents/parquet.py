"""The Parquet files of one range of the log, one of each topic and date, as `audit.contents.export`
names them.

A range of a few MiB may be terabytes of decompressed bodies. So what is gathered of all files goes
into them once it is large, the largest file's first, as a row group each; none is read whole. There
may be thousands of files, so each is open only while it is written to. A file gets its name once it
is whole and on disk; until then it has one that readers pass over.
"""

from __future__ import annotations

import io
import os
import secrets
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from dledger.reading.columns import Integers, Words
from dledger.reading.decode import Records

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

GATHERED_BYTES: Final = 256 << 20  # Of rows, of all files together, decompressed.
UNFINISHED: Final = ".new"  # behind the name of a file that is on its way
_DAY_MS: Final = 86_400_000

Place = tuple[str, str]  # topic and date


class RangeFiles:
    """The files called `name` below `target` while they are made; within a `with` block, behind
    which none is left unfinished."""

    def __init__(self, target: Path, name: str) -> None:
        self._target = target
        self._name = name
        self._gathered: defaultdict[Place, list[pa.RecordBatch]] = defaultdict(list)
        self._sizes: defaultdict[Place, int] = defaultdict(int)
        self._size = 0  # of all of them
        self._files: dict[Place, _File] = {}
        self.messages = 0

    def __enter__(self) -> RangeFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.abandon()

    def take(self, records: Records) -> None:
        """The rows are gathered, or written."""
        import pyarrow as pa

        from dledger.reading.arrow import to_arrow

        places = list(_by_place(records))
        at = 0
        for batch in to_arrow(records):
            for place, rows in places:
                low, high = np.searchsorted(rows, (at, at + batch.num_rows))
                if high > low:
                    self._gather(place, batch.take(pa.array(rows[low:high] - at)))
            at += batch.num_rows

    def finish(self) -> Iterator[tuple[str, int]]:
        """All files are whole, on disk and under their names, whose folders nobody has synced: each
        name below the target, and its size in bytes."""
        for place in sorted({*self._files, *self._gathered}):
            if place in self._gathered:
                self._write(place)
            file = self._files[place]
            file.finish()
            whole = file.fresh.with_name(self._name)
            file.fresh.replace(whole)
            del self._files[place]  # what fails before is abandoned with the others
            yield str(whole.relative_to(self._target)), whole.stat().st_size

    def _gather(self, place: Place, rows: pa.RecordBatch) -> None:
        self._gathered[place].append(rows)
        self._sizes[place] += rows.nbytes
        self._size += rows.nbytes
        self.messages += rows.num_rows
        if self._size > GATHERED_BYTES:
            for large in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
                if self._size > GATHERED_BYTES // 2:
                    self._write(large)

    def _write(self, place: Place) -> None:
        """What is gathered for the file is in it."""
        import pyarrow as pa

        rows = pa.Table.from_batches(self._gathered.pop(place)).drop_columns(["topic"])
        self._size -= self._sizes.pop(place)
        if place not in self._files:
            folder = folder_of(self._target, *place)
            folder.mkdir(parents=True, exist_ok=True)
            # A cluster may have two at the same range, and takes the answer of one.
            fresh = folder / f"_{self._name}.{_writer()}{UNFINISHED}"
            self._files[place] = _File(fresh, rows.schema)
        self._files[place].add(rows)


class _File(io.RawIOBase):
    """A file that grows by a row group at a time. It is what pyarrow writes to."""

    def __init__(self, fresh: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        super().__init__()
        self.fresh = fresh
        self._content: IO[bytes] | None = None
        self._is_abandoned = False
        with self._opened():
            self._parquet = pq.ParquetWriter(self, schema, compression="zstd")

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self._is_abandoned:  # What pyarrow writes as it lets go of its writer.
            return len(content)
        assert self._content is not None
        return self._content.write(content)

    def tell(self) -> int:
        return 0 if self._content is None else self._content.tell()

    def add(self, rows: pa.Table) -> None:
        """The rows are in the file, behind those before."""
        with self._opened():
            self._parquet.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def finish(self) -> None:
        """It is whole, and on disk."""
        with self._opened() as content:
            self._parquet.close()
            content.flush()
            os.fsync(content.fileno())

    def abandon(self) -> None:
        """It is gone."""
        self._is_abandoned = True
        self.fresh.unlink(missing_ok=True)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with self.fresh.open("ab") as content:
            self._content = content
            try:
                yield content
            finally:
                self._content = None


def folder_of(target: Path, topic: str, day: str) -> Path:
    """Readers take what is behind a % for the code of a character, so a topic's own is one."""
    return target / f"topic={topic.replace('%', '%25')}" / f"date={day}"


def _writer() -> str:
    """A name that nobody else has who writes at this moment, on this machine or another."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _by_place(records: Records) -> Iterator[tuple[Place, Integers]]:
    """Topic and date, and the rows that belong there, ascending."""
    topics, stored = records.columns["topic"], records.columns["store_time"]
    if not isinstance(topics, Words) or not isinstance(stored, np.ndarray):
        raise TypeError("a topic is a word and a time a number, whoever decoded them")
    days = stored // _DAY_MS
    keys, group = np.unique(np.stack([topics.codes, days]), axis=1, return_inverse=True)
    for at, (code, day) in enumerate(keys.T.tolist()):
        date = datetime.fromtimestamp(day * _DAY_MS / 1000, UTC).date().isoformat()
        yield (topics.words[code], date), np.flatnonzero(group == at)
