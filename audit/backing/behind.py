"""A backup that goes on at the very segment with which the source's log begins by now.

Retention takes whole segments. It may have come to where the backup ends: all that is missing is
there, and nothing is left of what the two have in common but the source's start note. That says
which entry the last one before was, with the running digest of all before it. Between that entry
and the next segment lies a filler, which is the same in every log (`dledger.reading.entry`).
"""

from __future__ import annotations

from pathlib import Path

from audit.errors import BackupRefused
from audit.reading.remote import NodeLog
from dledger.reading.backup import Backup
from dledger.reading.entry import blank_filler
from dledger.records.layout import file_name
from dledger.wire import audit_pb2 as apb
from store.backup import COMMITLOG
from store.files import FileSystem, write_all
from store.log_start import decode_start


def begins_behind(survey: apb.LogSurvey, before: Backup) -> bool:
    """Whether the source's first entry is the one behind the backup's last."""
    return int(survey.first_index) == before.last_index + 1


def check_note(folder: Path, node: str, log: NodeLog, before: Backup) -> int:
    """The source's log begins where the backup ends, in entries and in bytes; the byte behind the
    last of them.

    Raises:
        BackupRefused: it is another log, or begins later by now.
        NodeRefused: it gives no answer.
    """
    start = decode_start(log.base().log_start, f"the start note of {node}")
    theirs = (start.index, start.term, start.digest)
    ends = (start.end_offset, start.offset(before.segment_size_bytes))  # without a filler, or with
    is_same = theirs == (before.last_index, before.last_term, before.last_digest)
    if is_same and before.end_offset in ends:
        return start.end_offset
    raise BackupRefused(
        f"the log of {node} begins behind entry {start.index} of term {start.term}, and that isn't "
        f"the one with which {folder} ends: another log, or it begins later by now. Take a new "
        "backup into an empty folder"
    )


def fill(files: FileSystem, folder: Path, end: int, size: int) -> int:
    """The backup's last segment ends in a filler behind byte `end`, durably; where the next one
    begins."""
    base = (end - 1) - (end - 1) % size
    if end < base + size:
        handle = files.open(folder / COMMITLOG / file_name(base))
        try:
            write_all(files, handle, [blank_filler(base + size - end)], end - base)
            files.fsync(handle)
        finally:
            files.close(handle)
    return base + size
