"""What makes ConsumeQueues durable, apart from who dispatches to them.

This owns the syncing of what was written and the removal of what deleted topics left: work that
takes seconds for a thousand queues, and so is done in steps, on threads of its own. It must never
hold a handle or a queue of the owner's, who goes on writing, making and deleting meanwhile.

Source: RocketMQ `FlushConsumeQueueService`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from store.files import FileSystem

STEP_FILES: Final = 4  # few, so that small groups too have rounds of several steps


class FlushWork:
    """Files and directories that were written to since the last `take`, and what deleted topics
    left. Holds paths, no handles, so that it can be performed on any thread while dispatching and
    deleting go on."""

    def __init__(
        self, files: FileSystem, written: list[Path], renamed: list[Path], deleted: list[Path]
    ) -> None:
        self._files = files
        self._written = written
        self._renamed = renamed
        self._deleted = deleted

    def perform(self) -> None:
        """All of them are durable, or gone. A file that is missing belonged to a deleted topic.

        Raises:
            OSError: an fsync failed; the units written since the last one may be lost (ADR 8).
        """
        for stage in self.stages():
            for step in stage:
                step()

    def stages(self) -> list[list[Callable[[], None]]]:
        """The same in steps of at most `STEP_FILES` files. The steps of a stage may be done in any
        order and at the same time; a stage begins when the one before it is done. Only all of them
        together make anything durable: names live in directories."""
        written = [partial(self._sync_files, each) for each in _runs(self._written)]
        renamed = [partial(self._sync_directories, each) for each in _runs(self._renamed)]
        deleted = [partial(self._remove, each) for each in self._deleted]
        return [[*written], [*renamed], [*deleted]]

    def _sync_files(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                handle = self._files.open(path)
                try:
                    self._files.fsync(handle)
                finally:
                    self._files.close(handle)

    def _sync_directories(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._files.fsync_directory(path)

    def _remove(self, path: Path) -> None:
        remove_topic(self._files, path)
        self._files.fsync_directory(path.parent)


def _runs(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    for first in range(0, len(paths), STEP_FILES):
        yield paths[first : first + STEP_FILES]


def remove_topic(files: FileSystem, directory: Path) -> None:
    """The directory of a topic's queues is gone, and they with it; nobody has their files open."""
    for queue in files.listdir(directory):
        for name in files.listdir(directory / queue):
            files.unlink(directory / queue / name)
        files.rmdir(directory / queue)
    files.rmdir(directory)
