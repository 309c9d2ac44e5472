"""A process in which a run depends on nothing but its plan: no logs, and no collection of garbage.

Both are the process' own state, and are put back afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Nodes log nothing while they are simulated: the transcript says what happens."""
    before = structlog.get_config()

    def drop(*_: object) -> str:
        raise structlog.DropEvent

    # The level spares nearly every call the work; what is left are the failures of nodes.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, processors=[drop])
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def collecting_garbage_by_hand() -> Iterator[None]:
    """No collection in the middle of a run: finalizers would run at moments that depend on the
    memory's state, and time goes into it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
