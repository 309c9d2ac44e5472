"""What the collector of a node's process walks: never again what has lasted for long.

A full collection walks every tracked object in one turn of the interpreter. What a node has at its
start lives as long as it, and what members, queues and messages in hand add to that lives for long:
with a million of them a collection took longer than heartbeats may be late. So whatever has lasted
until a collection that took long is put where none looks (`gc.freeze`). It is freed as ever when
nobody has it any more; only a circle that it becomes part of later isn't, until the node is opened
anew. It must never put anything away for having waited: time counts that this thread has worked.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

LONG_S: Final = 0.03  # of a processor; a tenth of the shortest election timeout by default
_FULL: Final = 2  # the generation of which all others are part


class _Watch:
    def __init__(self, long_s: float) -> None:
        self._long_s = long_s
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > self._long_s:
            gc.freeze()


@contextmanager
def lasting_put_away(long_s: float = LONG_S) -> Iterator[None]:
    """What is there now isn't walked until the end of this, nor what lasts until a full collection
    of more than `long_s` of this thread's time."""
    watch = _Watch(long_s)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.unfreeze()
