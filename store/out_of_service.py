"""The mark that keeps a directory out of service: its log is sound in itself, and differs from what
a majority of its group's members hold; or the group was recovered by force without its member.

This owns `<data>/out-of-service.json`. Whoever starts on the directory asks for it before anything
else is read or written there, so that what lies there stays as it was found, for whoever looks into
it (docs/adr/0044-the-live-divergence-alarm.md). Nothing here takes the mark away: the member is
replaced, on an empty disk. A mark that can't be read is one all the same; it only says less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound
from store.files import FileSystem

FILE_NAME: Final = "out-of-service.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a log differs from others. Zeros and nothing: it isn't known.

    Attributes:
        found_ms: when that was found, by this node's clock, since the epoch.
        compared_index: the entry at which the digests were compared, last.
        own_digest, peers_digest: there, read from this disk, and told by a majority.
        peers: who told it.
        agreed_index: up to this entry the logs are the same, as far as was found out.
        differing_index: the first entry that differs; 0: it lies between the two above.
        own_term, peers_term: that entry's, here and there.
        term, first_index, last_index: what the log held.
        committed_index, committed_offset: up to which entry and byte it was known to be committed,
            and on this disk.
        committed_digest: there.
        members: of the configuration in force, name and address; none in a mark of a release
            before.
        recoveries: not empty: this member was given up, and the group recovered by these, ids in
            hex; told by `peers`. Nothing was compared then (ADR 52).
    """

    found_ms: int = 0
    compared_index: int = 0
    own_digest: int = 0
    peers_digest: int = 0
    peers: tuple[str, ...] = ()
    agreed_index: int = 0
    differing_index: int = 0
    own_term: int = 0
    peers_term: int = 0
    term: int = 0
    first_index: int = 0
    last_index: int = 0
    committed_index: int = 0
    committed_offset: int = 0
    committed_digest: int = 0
    members: tuple[tuple[str, str], ...] = ()
    recoveries: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.recoveries:
            return (
                "it was given up: the broker group was recovered by force without it and is in "
                f"epoch {len(self.recoveries)}, as {', '.join(self.peers)} says; what it held "
                "beyond that is no longer the group's"
            )
        if not self.compared_index:
            return "its log differs from what a majority holds; the mark doesn't say where"
        where = f"at entry {self.differing_index} for the first time"
        if not self.differing_index:
            where = f"between entries {self.agreed_index} and {self.compared_index}"
        return (
            f"its log differs from that of {', '.join(self.peers)} {where}: digest "
            f"{self.own_digest:016x} at entry {self.compared_index}, theirs is "
            f"{self.peers_digest:016x}"
        )


UNKNOWN: Final = Divergence()


def mark(files: FileSystem, directory: Path, divergence: Divergence) -> None:
    """The directory is out of service for good, durably.

    Raises:
        OSError: it isn't; ENOSPC where there is no room for the mark.
    """
    told: dict[str, object] = asdict(divergence)
    told["peers"] = list(divergence.peers)
    told["members"] = dict(divergence.members)
    told["recoveries"] = list(divergence.recoveries)
    write_sealed(files, directory / FILE_NAME, {"format_version": FORMAT_VERSION, **told})


def mark_of(files: FileSystem, directory: Path) -> Divergence | None:
    """What the directory's mark says; None: it is in service."""
    path = directory / FILE_NAME
    if not files.exists(path):
        return None
    try:
        return _divergence(read_sealed(files, path))
    except (CorruptionFound, ValueError, OSError):
        return UNKNOWN


def _divergence(stored: Mapping[str, object]) -> Divergence:
    peers, members = stored.get("peers"), stored.get("members", {})
    recoveries = stored.get("recoveries", [])
    is_known = stored.get("format_version") == FORMAT_VERSION and isinstance(recoveries, list)
    if not is_known or not isinstance(peers, list) or not isinstance(members, dict):
        raise ValueError(f"no mark of format {FORMAT_VERSION}")
    numbers = {
        each.name: int(str(stored.get(each.name)))
        for each in fields(Divergence)
        if each.name not in ("peers", "members", "recoveries")
    }
    addresses = tuple(sorted((str(name), str(each)) for name, each in members.items()))
    given_up = tuple(map(str, recoveries)) if isinstance(recoveries, list) else ()
    return Divergence(
        peers=tuple(map(str, peers)), members=addresses, recoveries=given_up, **numbers
    )
