"""The errors that a simulated disk has raised because it was told to, and what came of them.

This owns the one answer to whether a process failed for what was done to its disk: the error that
it failed of was raised by a call that was told to fail, or stems from one that was. That something
has failed at some time is no answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.sim.files import LostSector
from store.errors import StorageFailed

# What only a call is answered by that should never have been made: by any disk, however broken.
OURS: Final = frozenset({errno.EBADF, errno.ENOENT, errno.EEXIST, errno.ENOTDIR})
SPACE: Final = "space"  # what failed is the want of it, whatever the call


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed because it was told to."""

    operation: str
    path: Path
    code: int

    def __str__(self) -> str:
        return f"{self.operation} of {self.path.name}: {errno.errorcode[self.code]}"


class DiskFailures:
    """Those of one disk, in their order. The errors themselves are kept for as long as the process
    lives that they were raised to."""

    def __init__(self) -> None:
        self._all: list[Failure] = []
        self._raised: list[tuple[Failure, OSError]] = []

    def __iter__(self) -> Iterator[Failure]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def inject(self, operation: str, path: Path, code: int) -> OSError:
        """What the call is to fail by."""
        error = OSError(code, os.strerror(code), str(path))
        if operation == SPACE:  # of a handle, which has no name
            error = OSError(code, os.strerror(code))
        failure = Failure(operation, path, code)
        self._all.append(failure)
        self._raised.append((failure, error))
        return error

    def on_process_gone(self) -> None:
        """Whoever they were raised to is dead."""
        self._raised.clear()

    def of_process(self) -> Iterator[Failure]:
        """Those that the process has met which lives now, or is about to."""
        return (failure for failure, _ in self._raised)

    def have_caused(self, error: BaseException) -> bool:
        """Whether `error` was injected into a call of the process, or stems from one that was."""
        for each in _causes(error):
            if isinstance(each, OSError) and each.errno in OURS:
                return False
            if any(each is raised for _, raised in self._raised):
                return True
        return False


def is_lost_sector(error: BaseException) -> bool:
    """Whether `error` stems from a sector that can't be read."""
    return any(isinstance(each, LostSector) for each in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error`, what it was raised for, and so on."""
    while error is not None:
        yield error
        error = error.cause if isinstance(error, StorageFailed) else error.__cause__
