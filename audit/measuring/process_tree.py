"""The memory of a process and of all that it started, from Linux's /proc.

A Spark audit is a Python driver, a JVM and Python workers; what counts is all of them together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_INTERVAL_S: Final = 0.05


class Peak:
    """The most that a tree's resident memory was found to be, bytes. Pages that processes share
    count once for each of them, so it is never too small but for what lies between two looks."""

    def __init__(self) -> None:
        self.resident_bytes = 0


@contextmanager
def watched(pid: int) -> Iterator[Peak]:
    """Looks at the tree of `pid` twenty times a second while this lasts."""
    peak, over = Peak(), threading.Event()

    def look() -> None:
        while not over.wait(_INTERVAL_S):
            peak.resident_bytes = max(peak.resident_bytes, resident_bytes(pid))

    thread = threading.Thread(target=look, name="memory-watch")
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def resident_bytes(root: int) -> int:
    """What `root` and its descendants have in memory now; 0 once they are gone."""
    parents = {pid: parent for pid in _pids() if (parent := _parent_of(pid)) is not None}
    tree = {root}
    while grown := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    return sum(map(_resident_bytes, tree))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_of(pid: int) -> int | None:
    """None for a process that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])  # The name before may hold anything.


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
