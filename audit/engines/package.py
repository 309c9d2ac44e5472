"""What executors import to run an audit's tasks: this package, and what its tasks stand on."""

from __future__ import annotations

from typing import Final

from dledger.spark.package import SOURCE

# A start is rehearsed with the parts that a node starts with.
_STARTING: Final = (
    *("dledger/checksum.py", "dledger/codec.py", "dledger/core", "dledger/errors.py"),
    *("dledger/disk_figures.py", "dledger/hard_state.py", "dledger/ports.py"),
)
TASKS: Final = (*SOURCE, "dledger/history.py", "dledger/wire", *_STARTING, "store", "audit")
