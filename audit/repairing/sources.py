"""Where the bytes come from that take the place of rotten ones: other replicas of the same log.

Nothing that a source gives is believed: `audit.repairing.refilling` proves it, or throws it away.
A source that can't give is an `OSError`, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.errors import Unreachable, UsageMistake
from audit.reading.live import Over, replicas_of_group
from audit.reading.remote import NodeLog, node_log
from dledger.reading.files import opened, read_at
from dledger.reading.ranges import checked_log
from dledger.reading.survey import survey_folder
from dledger.records.layout import file_name

WINDOW_BYTES: Final = 256 << 10

# Bytes of the segment that begins at a physical offset, from a byte of it on: so many, fewer where
# the file ends or, of a node, what is committed. Raises: OSError.
Fetch = Callable[[int, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """Another replica. `fetch`: see `Fetch`."""

    name: str
    fetch: Fetch


class Window:
    """One segment of a source, read in pieces larger than an entry's header."""

    def __init__(self, fetch: Fetch, base: int) -> None:
        self._fetch = fetch
        self._base = base
        self._chunk = b""
        self._chunk_at = 0

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from byte `at` of the segment, fewer where it ends.

        Raises:
            OSError: it gives none.
        """
        near = at - self._chunk_at
        if near < 0 or near + size > len(self._chunk):
            self._chunk = self._fetch(self._base, at, max(size, WINDOW_BYTES))
            self._chunk_at, near = at, 0
        return self._chunk[near : near + size]


def folder_fetch(commitlog: str) -> Fetch:
    """Reads a log's files in a folder, which nobody need have closed: bytes are proven."""

    def fetch(base: int, at: int, size: int) -> bytes:
        with opened(f"{commitlog}/{file_name(base)}") as descriptor:
            return read_at(descriptor, size, at)

    return fetch


def folder_source(path: Path, segment_size: int) -> Source:
    """The log in a data directory, or in its `commitlog`.

    Raises:
        NotALog: there is none, or it can't be read.
        UsageMistake: its segments have another size: it is another group's.
    """
    survey = checked_log(survey_folder(str(path), str(path)))
    if survey.segment_size != segment_size:
        raise UsageMistake(
            f"{path} has segments of {survey.segment_size} bytes, and those of the log are "
            f"{segment_size}: no replica of it"
        )
    return Source(str(path), folder_fetch(survey.commitlog))


@contextmanager
def node_sources(addresses: Sequence[str], segment_size: int) -> Iterator[list[Source]]:
    """The members that answer, asked over gRPC while this lasts; none of them for no address.

    Raises:
        Unreachable: none of them does.
    """
    with ExitStack() as open_logs:
        found: list[Source] = []
        members = replicas_of_group(addresses, on_hosts=False, over=Over.GRPC) if addresses else []
        for member in members:
            if member.address is not None and not member.silence:
                log = open_logs.enter_context(node_log(member.address))
                found.append(Source(member.id, _node_fetch(log, segment_size)))
        if addresses and not found:
            raise Unreachable(", ".join(addresses), "no member's log can be read")
        yield found


def _node_fetch(log: NodeLog, segment_size: int) -> Fetch:
    def fetch(base: int, at: int, size: int) -> bytes:
        size = min(size, segment_size - at)
        return log.read((base, segment_size), base + at, size) if size > 0 else b""

    return fetch
