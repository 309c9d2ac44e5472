"""Small files that a start needs, and whose content a process that runs knows: what rots in one is
written again from memory, before a start would have to refuse it.

A keepsake looks at its file and says whether it had to. It must never write what memory doesn't
hold for certain, nor undo what somebody has written since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from store.atomic_file import replace_file
from store.errors import NotARegularFile
from store.files import LOST_ERRNOS, FileSystem


@dataclass(frozen=True, slots=True)
class Keepsake:
    """One file. `mend` blocks; it says whether the file was found to be something else than what
    was written, and then has written it again. Raises OSError: it couldn't."""

    file: str
    mend: Callable[[], bool]


def constant_file(files: FileSystem, path: Path) -> Keepsake | None:
    """One that nobody changes from now on; None if it isn't there. Raises OSError: not now."""
    content = _content(files, path)
    if content is None:
        return None

    def mend() -> bool:
        if _content(files, path) == content:
            return False
        replace_file(files, path, content)
        return True

    return Keepsake(str(path), mend)


def _content(files: FileSystem, path: Path) -> bytes | None:
    try:
        handle = files.open(path)
        try:
            return files.pread(handle, files.size(handle), 0)
        finally:
            files.close(handle)
    except NotARegularFile:
        return None
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        return None
