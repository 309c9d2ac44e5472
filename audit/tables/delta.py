"""A Delta table as a `MessageTable`: the mark and the queues' offsets are `txn` actions.

The package is deltalake (delta-rs). `txn` actions are kept by checkpoints and outlive the commits
that brought them; Delta's rules let only one of two transactions win that have one in common.
Versions are signed, so a digest is kept as a signed number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from audit.errors import CommitUnknown, EngineUnavailable, TableTaken, Unreachable, UsageMistake
from audit.tables.durable import local_folder, sync_folders
from audit.tables.mark import DIGEST_KEY, POSITION_KEY, Choice, Mark, Queue, check_choice
from audit.tables.places import check_bucket, check_is_empty, checked_place, storage_options
from dledger.reading.errors import ReadingError
from dledger.reading.objects import first_line, is_object
from dledger.reading.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_FORGETS: Final = "delta.setTransactionRetentionDuration"
_HISTORY: Final = 10_000  # Commits that are looked through for a restore.
# Beside the mark, as `txn` actions: the physical offset of the last row that was appended, and the
# version that the last append made.
_LAST_ROW: Final = "dledger.last-row"
_APPENDED: Final = "dledger.appended"
_NEWEST: Final = "max.physical_offset"  # of a file's statistics
_WRAP: Final = 1 << 64


class DeltaMessages:
    """The table at `place`, a folder or a URL. Where an object store is asked, its address and
    credentials are in the environment, as AWS's own tools have them.

    Raises:
        EngineUnavailable: deltalake isn't installed.
    """

    def __init__(self, place: str) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise EngineUnavailable(
                f"Delta tables need the extra 'delta' ({error}): pip install 'dledger[delta]'"
            ) from error
        self._deltalake = deltalake
        self._place = checked_place(place)
        self._storage = storage_options()
        self._table: Any = None

    @property
    def name(self) -> str:
        return self._place

    def is_there(self) -> bool:
        """See `MessageTable.is_there`."""
        with self._told():
            check_bucket(self._place)
            return self._loaded() is not None

    def opened(self, choice: Choice) -> Mark | None:
        """See `MessageTable.opened`."""
        with self._told():
            check_bucket(self._place)
            self._table = self._loaded() or self._made(choice)
            properties = dict(self._table.metadata().configuration)
            is_empty = not self._table.file_uris()
            mark = self._mark()
        self._check(choice, properties, is_empty=is_empty and mark is None)
        if mark is not None:
            self._check_history()
        return mark

    def next_offset(self, queue: Queue) -> int | None:
        """See `MessageTable.next_offset`."""
        with self._told():
            found: int | None = self._table.transaction_version(_application(queue))
        return found

    def append(self, rows: pa.Table, mark: Mark, offsets: Mapping[Queue, int]) -> None:
        """See `MessageTable.append`."""
        from deltalake.exceptions import CommitFailedError, SchemaMismatchError

        versions = {POSITION_KEY: mark.position, DIGEST_KEY: _signed(mark.digest)}
        versions |= {_application(queue): offset for queue, offset in offsets.items()}
        versions[_APPENDED] = self._table.version() + 1
        if rows.num_rows:
            versions[_LAST_ROW] = _largest(rows.column("physical_offset"))
        commit = self._deltalake.CommitProperties(
            app_transactions=[
                self._deltalake.Transaction(name, version, None)
                for name, version in versions.items()
            ],
            max_commit_retries=0,  # What was read must still be so; see ADR 36.
        )
        try:
            self._deltalake.write_deltalake(
                self._table, rows, mode="append", commit_properties=commit
            )
        except CommitFailedError as error:
            raise TableTaken(self._place) from error
        except SchemaMismatchError as error:
            raise UsageMistake(f"{self._place}: {first_line(error)}") from error
        except (self._deltalake.exceptions.DeltaError, OSError) as error:
            raise CommitUnknown(self._place, first_line(error)) from error

    def sync(self) -> None:
        """See `MessageTable.sync`."""
        folder = local_folder(self._place)
        if folder is not None:
            # In an address deltalake reads %20 as a space.
            is_path = folder == self._place
            sync_folders(self._place, {folder if is_path else unquote(folder)})

    def _loaded(self) -> Any:
        """The table; None if there is none.

        Raises:
            UsageMistake: there is something else.
        """
        from deltalake.exceptions import TableNotFoundError

        try:
            return self._deltalake.DeltaTable(self._place, storage_options=self._storage)
        except TableNotFoundError:
            return None

    def _made(self, choice: Choice) -> Any:
        import pyarrow as pa

        from dledger.reading.arrow import TYPES

        if not _was_only_begun(self._place):
            check_is_empty(self._place)
        return self._deltalake.DeltaTable.create(
            self._place,
            pa.schema([(name, TYPES[name]) for name in COLUMNS]),
            partition_by=["topic"],
            configuration=choice.as_properties(),
            storage_options=self._storage,
            raise_if_key_not_exists=False,
        )

    def _mark(self) -> Mark | None:
        position = self._table.transaction_version(POSITION_KEY)
        digest = self._table.transaction_version(DIGEST_KEY)
        if position is None or digest is None:
            return None
        return Mark(position, digest % _WRAP)

    def _check(self, choice: Choice, properties: dict[str, str], *, is_empty: bool) -> None:
        check_choice(self._place, choice, properties)
        if _FORGETS in properties:
            raise UsageMistake(f"{self._place} has {_FORGETS}, so it would forget its position")
        if not is_empty and self._mark() is None:
            raise UsageMistake(f"{self._place} holds rows, and no position: they are not an export")
        self._check_schema()

    def _check_schema(self) -> None:
        import pyarrow as pa

        from dledger.reading.arrow import TYPES

        wanted = self._deltalake.Schema.from_arrow(pa.schema([(n, TYPES[n]) for n in COLUMNS]))
        if self._table.schema() != wanted:
            names = ", ".join(field.name for field in self._table.schema().fields)
            raise UsageMistake(f"{self._place} has another schema than an export: {names}")

    def _check_history(self) -> None:
        """Nobody has put an older version in the place of what the position speaks of.

        Its log says so, for as long as it isn't cleaned up. For ever, the rows do that were
        appended last: whoever restores takes them first.
        """
        with self._told():
            history = self._table.history(_HISTORY)
            appended = self._table.transaction_version(_APPENDED)
            is_lacking = self._lacks_last_row()
        if "RESTORE" in {each.get("operation") for each in history}:
            raise UsageMistake(
                f"{self._place} was restored to an older version, and its position wasn't: "
                "export to a new table"
            )
        oldest = min((each["version"] for each in history), default=None)
        # Where all that happened since is told, and no restore is, they were deleted on purpose.
        if is_lacking and (oldest is None or appended is None or oldest > appended + 1):
            raise UsageMistake(
                f"in {self._place} the rows that were exported last aren't there any more, and its "
                "log no longer tells why: it may have been restored to an older version, and its "
                "position wasn't. Export to a new table, or, if they were deleted on purpose, say "
                "so in this one (docs/tables.md)"
            )

    def _lacks_last_row(self) -> bool:
        """Whether no file of the table reaches to the row that was appended last, by statistics.
        False where they, or a release before this one, don't tell."""
        import pyarrow as pa

        last = self._table.transaction_version(_LAST_ROW)
        files = pa.table(self._table.get_add_actions(flatten=True))
        if last is None:
            return False
        if not files.num_rows:
            return True
        if _NEWEST not in files.column_names or files.column(_NEWEST).null_count:
            return False
        return bool(_largest(files.column(_NEWEST)) < last)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of reading, in the audits' words."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except DeltaError as error:
            reason = first_line(error)
            raise UsageMistake(f"{self._place} can't be read as a Delta table: {reason}") from error
        except ReadingError:
            raise
        except PermissionError as error:
            raise UsageMistake(f"{self._place}: {error.strerror or error}") from error
        except OSError as error:
            raise Unreachable(self._place, first_line(error)) from error


def _application(queue: Queue) -> str:
    """The queue's name among `txn` actions."""
    topic, incarnation, queue_id = queue
    return f"dledger.offset/{topic}@{incarnation}/{queue_id}"


def _largest(offsets: pa.ChunkedArray) -> int:
    """Of a column that has one."""
    import pyarrow.compute as pc

    largest: int = pc.max(offsets).as_py()
    return largest


def _signed(digest: int) -> int:
    return digest - _WRAP if digest >= _WRAP // 2 else digest


def _was_only_begun(place: str) -> bool:
    """Whether all that lies in the folder is what a process leaves that was killed before the
    table's first version had its name."""
    if is_object(place):  # there, what has no name yet isn't seen
        return False
    log = os.path.join(place, "_delta_log")
    if not os.path.isdir(log) or os.listdir(place) != ["_delta_log"]:
        return False
    return all(name.endswith(".tmp") or ".json#" in name for name in os.listdir(log))
