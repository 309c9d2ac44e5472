"""Which files lie in a data directory, and what kind each of them is.

Names, kinds and links only: nothing is opened. What belongs there is stated here once, as a tree of
patterns; what a start does about the rest is that it leaves it alone, or stumbles over it when it
lies where a file of its own should (`store.starting.judging` finds that out by starting).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dledger.reading.files import printable
from dledger.records.layout import DELETED_FOLDER, FILE_NAME, UNFINISHED_NAME
from store.files import kind_of_file
from store.starting.judgement import Effect, FileId, Findings, Kind

# Behind a deleted topic's folder, until the next flush.
_TOPIC: Final = re.compile(r"[A-Za-z0-9_%-]{1,127}(@[0-9]{1,19})?")
_QUEUE: Final = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class _Folder:
    """What may lie in a folder: files, unfinished ones, and folders, by patterns of their names."""

    files: re.Pattern[str]
    unfinished: re.Pattern[str]
    folders: tuple[tuple[re.Pattern[str], _Folder], ...] = field(default=())

    def folder(self, name: str) -> _Folder | None:
        return next((inner for pattern, inner in self.folders if pattern.fullmatch(name)), None)


_NOTHING: Final = re.compile(r"(?!)")
_QUEUE_FILES: Final = _Folder(FILE_NAME, _NOTHING)
_TOPIC_FOLDER: Final = _Folder(_NOTHING, _NOTHING, ((_QUEUE, _QUEUE_FILES),))
_ROOT: Final = _Folder(
    re.compile(
        r"LOCK|abort|checkpoint|doubt\.json|formation\.json|identity\.json|install|log_start"
        r"|out-of-service\.json|repair|restore|scrub\.json|suspected\.json"
        r"|truncation(\.spare)?"
    ),
    re.compile(
        r"(doubt\.json|formation\.json|identity\.json|install|log_start|out-of-service\.json|repair|restore"
        r"|scrub\.json|suspected\.json|truncation)\.tmp"
    ),
    (
        (re.compile("commitlog"), _Folder(FILE_NAME, UNFINISHED_NAME)),
        (
            re.compile("raft"),
            _Folder(
                re.compile(r"(boot|hard_state)(\.spare)?|hard_state\.copy|promises\.json"),
                re.compile(r"(boot|hard_state|promises\.json)\.tmp"),
            ),
        ),
        (re.compile("seal"), _Folder(FILE_NAME, UNFINISHED_NAME)),
        (
            re.compile("snapshot"),
            _Folder(
                re.compile(FILE_NAME.pattern + r"(\.copy)?"),
                re.compile(r"(next|received)\.tmp|" + FILE_NAME.pattern + r"(\.copy)?\.tmp"),
            ),
        ),
        (
            re.compile("consumequeue"),
            _Folder(_NOTHING, _NOTHING, ((DELETED_FOLDER, _TOPIC_FOLDER), (_TOPIC, _TOPIC_FOLDER))),
        ),
    ),
)


def take_census(path: Path, findings: Findings) -> tuple[FileId, ...]:
    """Every file that belongs to the directory; what else lies there becomes a finding."""
    return tuple(_look_into(os.fspath(path), "", _ROOT, findings))


def _look_into(path: str, inner: str, folder: _Folder, findings: Findings) -> Iterator[FileId]:
    """The files of a folder and below; folders of strangers aren't entered."""
    try:
        with os.scandir(os.path.join(path, inner)) as listed:
            entries = sorted(listed, key=lambda each: each.name)
    except OSError as error:
        findings.add(
            Kind.UNREADABLE, Effect.IGNORED, printable(inner) or ".", error.strerror or str(error)
        )
        return
    for entry in entries:
        name = os.path.join(inner, entry.name)
        try:
            state = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile, as an unfinished file may be
        below = folder.folder(entry.name)
        if below is not None and entry.is_dir():
            if entry.is_symlink():
                detail = f"a link to {printable(os.path.realpath(entry.path))}"
                findings.add(Kind.LINKED, Effect.IGNORED, printable(name), detail)
            yield from _look_into(path, name, below, findings)
        elif folder.files.fullmatch(entry.name) or folder.unfinished.fullmatch(entry.name):
            if folder.unfinished.fullmatch(entry.name):
                detail = "a process died over it; it was never the truth"
                findings.add(Kind.UNFINISHED, Effect.MENDED, printable(name), detail)
            yield from _own_file(name, state, findings)
        else:
            detail = f"{kind_of_file(state.st_mode)} that no node made"
            findings.add(Kind.STRAY, Effect.IGNORED, printable(name), detail)


def _own_file(name: str, state: os.stat_result, findings: Findings) -> Iterator[FileId]:
    """A file that has a name of ours."""
    shown = printable(name)
    if not stat.S_ISREG(state.st_mode):
        # Whether a start stumbles over it is found out by starting.
        detail = f"{kind_of_file(state.st_mode)} has the name of a file"
        findings.add(Kind.NOT_A_FILE, Effect.IGNORED, shown, detail)
        return
    if state.st_nlink > 1:
        detail = f"{state.st_nlink - 1} other names lead to this file; a backup, or another replica"
        findings.add(Kind.LINKED, Effect.IGNORED, shown, detail)
    yield FileId(shown, state.st_dev, state.st_ino)
