"""The zip that executors import audits from: this project's modules that a task needs.

Only what tasks import: `audit`, `store`, and the wire contracts. What these need in turn comes
with an environment archive (see docs/audit.md); pyspark itself stays out of both.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

PACKAGES: Final = ("audit", "store", "dledger/wire", "dledger/records", "dledger/reading")
_ROOT: Final = Path(__file__).parents[2]
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def write_package(target: Path) -> Path:
    """The zip is at `target`; the same sources give the same bytes."""
    files = sorted(
        path
        for package in PACKAGES
        for path in (_ROOT / package).rglob("*.py")
        if "__pycache__" not in path.parts
    )
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("dledger/__init__.py", _EPOCH), b"")
        outcome = zipfile.ZipInfo("dledger/outcome.py", _EPOCH)
        archive.writestr(outcome, (_ROOT / "dledger/outcome.py").read_bytes())
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(_ROOT).as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return target
