"""What makes ConsumeQueues durable, apart from who dispatches to them.

This owns the syncing of what was written and the removal of what deleted topics left: work that
takes seconds for a thousand queues, and so is done on a thread of its own. It must never hold a
handle or a queue of the owner's, who goes on writing, making and deleting meanwhile.

Source: RocketMQ `FlushConsumeQueueService`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from store.files import FileSystem


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
        for path in self._written:
            with contextlib.suppress(FileNotFoundError):
                self._sync(path)
        for path in self._renamed:
            with contextlib.suppress(FileNotFoundError):
                self._files.fsync_directory(path)
        for path in self._deleted:
            remove_topic(self._files, path)
            self._files.fsync_directory(path.parent)

    def _sync(self, path: Path) -> None:
        handle = self._files.open(path)
        try:
            self._files.fsync(handle)
        finally:
            self._files.close(handle)


def remove_topic(files: FileSystem, directory: Path) -> None:
    """The directory of a topic's queues is gone, and they with it; nobody has their files open."""
    for queue in files.listdir(directory):
        for name in files.listdir(directory / queue):
            files.unlink(directory / queue / name)
        files.rmdir(directory / queue)
    files.rmdir(directory)
