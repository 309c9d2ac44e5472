"""What executors import to run an audit's tasks: this package, and what its tasks stand on."""

from __future__ import annotations

from typing import Final

from dledger.spark.package import SOURCE

TASKS: Final = (*SOURCE, "dledger/history.py", "dledger/wire", "store", "audit")
