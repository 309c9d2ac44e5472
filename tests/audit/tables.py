"""Tables for the tests of exports: made in a folder, read back with the formats' own packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.tables.delta import DeltaMessages
from audit.tables.export import MessageTable
from audit.tables.iceberg import IcebergMessages

PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
KEY: Final = ["topic", "incarnation", "queue_id", "queue_offset"]


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables of `kind` lie; `place` is the one table's, as a command would be told of it."""

    kind: str
    folder: Path
    place: str

    def table(self) -> MessageTable:
        """The table, as a new run would see it."""
        return DeltaMessages(self.place) if self.kind == "delta" else IcebergMessages(self.place)

    def raw(self) -> Any:
        """The table, by its package."""
        if self.kind == "delta":
            import deltalake

            return deltalake.DeltaTable(self.place)
        from pyiceberg.catalog import load_catalog

        catalog, _, name = self.place.partition(".")
        return load_catalog(catalog).load_table(name)

    def rows(self) -> Any:
        """What readers see, as an Arrow table."""
        raw = self.raw()
        return raw.to_pyarrow_table() if self.kind == "delta" else raw.scan().to_arrow()

    def commits(self) -> int:
        """How many versions there have been with rows in them."""
        raw = self.raw()
        return int(raw.version()) if self.kind == "delta" else len(raw.snapshots())

    def data_files(self) -> int:
        """Files of rows that lie there, whether a version names them or not."""
        return sum(1 for _ in self.folder.rglob("*.parquet") if "checkpoint" not in _.name)

    def named_files(self) -> list[str]:
        """The files of rows that the newest version names."""
        raw = self.raw()
        if self.kind == "delta":
            return list(raw.file_uris())
        return [task.file.file_path for task in raw.scan().plan_files()]

    def environment(self) -> dict[str, str]:
        """What a process needs to find the table."""
        if self.kind == "delta":
            return {}
        return {
            "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
            "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{self.folder}/catalog.db",
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{self.folder}",
        }


def lake_of(kind: str, folder: Path) -> Lake:
    """A lake whose folder is there and whose table isn't."""
    folder.mkdir(parents=True)
    if kind == "delta":
        return Lake(kind, folder, str(folder / "messages"))
    return Lake(kind, folder, "lake.broker.messages")


def keys_of(rows: Any) -> list[tuple[object, ...]]:
    """Each row's name for ever, sorted."""
    return sorted(tuple(row[name] for name in KEY) for row in rows.select(KEY).to_pylist())


def use(lake: Lake) -> None:
    """This process finds the table, whatever it has imported before: pyiceberg reads its
    configuration once."""
    os.environ.update(lake.environment())
    if lake.kind == "iceberg":
        reload_configuration()


def reload_configuration() -> None:
    """pyiceberg reads the environment as it is now."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    pyiceberg.catalog._ENV_CONFIG = Config()
