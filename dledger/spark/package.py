"""The zip that executors import: this project's modules that a task needs, and no others.

What these need in turn (numpy, pyarrow, ...) comes with an environment archive (docs/audit.md);
pyspark itself stays out of both. The `__init__` of a package that is shipped in part is shipped
empty, so that it can't import what isn't there.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

# What reading the log as a table takes, and topics over the network.
SOURCE: Final = (
    *("dledger/outcome.py", "dledger/records", "dledger/reading", "dledger/spark"),
    *("dledger/addresses.py", "dledger/level.py", "dledger/limits.py", "dledger/client"),
    *("dledger/credentials", "dledger/wire"),
)
_ROOT: Final = Path(__file__).parents[2]
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_package(target: Path, parts: tuple[str, ...] = SOURCE) -> Path:
    """The zip is at `target`; the same sources give the same bytes.

    Args:
        parts: modules and packages to ship, as paths from where this project lies.
    """
    files = sorted({file for part in parts for file in _sources(_ROOT / part)})
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("dledger/__init__.py", _EPOCH), b"")
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(_ROOT).as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return target


def _sources(part: Path) -> list[Path]:
    if part.is_file():
        return [part]
    return [path for path in part.rglob("*.py") if "__pycache__" not in path.parts]
