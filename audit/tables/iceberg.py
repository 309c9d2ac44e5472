"""An Iceberg table as a `MessageTable`: the mark and the queues' offsets are properties of the
snapshot that an append makes.

The package is pyiceberg, and catalogs are those that it is configured for. It rebases an append
that lost against another one and appends it again, unless the table says that it is not to: so the
tables of exports do, which is looked at before each commit (ADR 36).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from audit.errors import CommitUnknown, EngineUnavailable, TableTaken, Unreachable, UsageMistake
from audit.tables.durable import local_folder, sync_folders
from audit.tables.mark import DIGEST_KEY, POSITION_KEY, Choice, Mark, Queue, check_choice
from dledger.reading.objects import first_line
from dledger.reading.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

OFFSETS_KEY: Final = "dledger.offsets"
_RETRIES_KEY: Final = "commit.retry.num-retries"
_NO_RETRY: Final = "0"
_PLACES: Final = ("write.data.path", "write.metadata.path")  # where files lie, if elsewhere


class IcebergMessages:
    """The table `catalog.namespace.table`; namespaces may have several parts.

    Raises:
        UsageMistake: it is no such name, or there is no such catalog.
        EngineUnavailable: pyiceberg isn't installed.
    """

    def __init__(self, name: str) -> None:
        try:
            import pyiceberg.catalog
        except ImportError as error:
            raise EngineUnavailable(
                f"Iceberg tables need the extra 'iceberg' ({error}): pip install 'dledger[iceberg]'"
            ) from error
        self._catalog_name, *parts = name.split(".")
        if len(parts) < 2 or not all([self._catalog_name, *parts]):
            raise UsageMistake(f"{name!r} names no table; wanted: CATALOG.NAMESPACE.TABLE")
        self._name = name
        self._identifier = tuple(parts)
        self._load_catalog = pyiceberg.catalog.load_catalog
        self._table: Any = None
        self._offsets: dict[Queue, int] = {}

    @property
    def name(self) -> str:
        return self._name

    def is_there(self) -> bool:
        """See `MessageTable.is_there`."""
        with self._told():
            return self._loaded(self._catalog()) is not None

    def opened(self, choice: Choice) -> Mark | None:
        """See `MessageTable.opened`."""
        with self._told():
            catalog = self._catalog()
            self._table = self._loaded(catalog) or self._made(catalog, choice)
        check_choice(self._name, choice, dict(self._table.properties))
        self._check_schema()
        if self._table.properties.get(_RETRIES_KEY) != _NO_RETRY:
            with self._told(), self._table.transaction() as change:
                change.set_properties({_RETRIES_KEY: _NO_RETRY})
        return self._read_marks()

    def next_offset(self, queue: Queue) -> int | None:
        """See `MessageTable.next_offset`."""
        return self._offsets.get(queue)

    def append(self, rows: pa.Table, mark: Mark, offsets: Mapping[Queue, int]) -> None:
        """See `MessageTable.append`."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        if self._table.properties.get(_RETRIES_KEY) != _NO_RETRY:
            raise TableTaken(self._name)
        properties = {
            POSITION_KEY: str(mark.position),
            DIGEST_KEY: f"{mark.digest:016x}",
            OFFSETS_KEY: json.dumps([[*queue, offset] for queue, offset in offsets.items()]),
        }
        try:
            self._table.append(rows, snapshot_properties=properties)
        except (CommitFailedException, ValidationException) as error:
            raise TableTaken(self._name) from error
        except Exception as error:  # A catalog's own, whichever library it is of.
            raise CommitUnknown(self._name, first_line(error)) from error
        self._offsets |= offsets

    def sync(self) -> None:
        """See `MessageTable.sync`. A catalog keeps what it has answered for."""
        table = self._table
        told = (table.location(), *(table.properties.get(key) for key in _PLACES))
        # There may be no such folder yet: nothing was written there, or all of it elsewhere.
        folders = {each for each in map(local_folder, told) if each and os.path.isdir(each)}
        newest = local_folder(os.path.dirname(table.metadata_location))
        sync_folders(self._name, folders | ({newest} if newest else set()))

    def _catalog(self) -> Any:
        try:
            return self._load_catalog(self._catalog_name)
        except ValueError as error:
            raise UsageMistake(
                f"there is no Iceberg catalog {self._catalog_name!r} ({first_line(error)}); "
                ".pyiceberg.yaml or the environment describes one"
            ) from error

    def _loaded(self, catalog: Any) -> Any:
        """The table; None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            return catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _made(self, catalog: Any, choice: Choice) -> Any:
        import pyarrow as pa

        from dledger.reading.arrow import TYPES

        catalog.create_namespace_if_not_exists(self._identifier[:-1])
        schema = pa.schema([(name, TYPES[name]) for name in COLUMNS])
        properties = {**choice.as_properties(), _RETRIES_KEY: _NO_RETRY}
        creation = catalog.create_table_transaction(self._identifier, schema, properties=properties)
        with creation, creation.update_spec() as spec:
            spec.add_identity("topic")
        return catalog.load_table(self._identifier)

    def _read_marks(self) -> Mark | None:
        """The newest mark along the current snapshot's ancestors, and every queue's newest offset.

        Raises:
            UsageMistake: there are rows, and no mark.
        """
        mark: Mark | None = None
        snapshot = self._table.current_snapshot()
        rows = int(self._told_by(snapshot).get("total-records") or 0)
        while snapshot is not None:
            told = self._told_by(snapshot)
            if POSITION_KEY in told:
                found, offsets = self._mark_of(told)
                mark = mark or found
                self._offsets = offsets | self._offsets  # What was known is newer.
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.metadata.snapshot_by_id(parent)
        if mark is None and rows:
            raise UsageMistake(
                f"{self._name} holds {rows} rows, and no snapshot with a position: they are not an "
                "export, or its snapshots have expired"
            )
        return mark

    @staticmethod
    def _told_by(snapshot: Any) -> dict[str, str]:
        """The snapshot's properties, those of the format included."""
        if snapshot is None or snapshot.summary is None:
            return {}
        return dict(snapshot.summary.additional_properties)

    def _mark_of(self, told: dict[str, str]) -> tuple[Mark, dict[Queue, int]]:
        try:
            mark = Mark(int(told[POSITION_KEY]), int(told[DIGEST_KEY], 16))
            rows = json.loads(told[OFFSETS_KEY])
            return mark, {(str(each[0]), int(each[1]), int(each[2])): int(each[3]) for each in rows}
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise UsageMistake(f"{self._name} has a damaged position: {error!r}") from error

    def _check_schema(self) -> None:
        from dledger.reading.arrow import TYPES

        found = {each.name: _plain_type(each.type) for each in self._table.schema().as_arrow()}
        if list(found.items()) != [(name, _plain_type(kind)) for name, kind in TYPES.items()]:
            told = ", ".join(f"{name} {kind}" for name, kind in found.items())
            raise UsageMistake(f"{self._name} has another schema than an export: {told}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of reading, in the audits' words. Catalogs have each their library's."""
        try:
            yield
        except UsageMistake:
            raise
        except (FileNotFoundError, PermissionError) as error:
            reason = first_line(error)
            raise UsageMistake(
                f"{self._name} can't be read as an Iceberg table: {reason}"
            ) from error
        except Exception as error:
            raise Unreachable(self._name, first_line(error)) from error


def _plain_type(kind: Any) -> str:
    """As both Arrow and Iceberg's picture of itself in Arrow have it: nullability and the width of
    strings' offsets aside."""
    return str(kind).replace("large_", "").replace(" not null", "")
