"""One member's side of a formation: what it writes on its disk, and in which order.

This decides when `<data>/formation.json` is written, and entry 1 of a log that has none yet. It
must never take a second founding, nor call a directory formed before term 1 and entry 1 are
durable. What a crash leaves at each step, and how it goes on: docs/adr/0022-disk-identities.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from broker.forming.errors import FormationRefused
from broker.forming.planning import Description, as_told, founders_of
from dledger.core.admission import wrong_configuration
from dledger.core.types import MAX_TIME_MS, EntryKind, EntryMeta, HardState, Index, NodeId, Term
from dledger.hard_state import HardStateStore
from dledger.level import KNOWN_LEVEL
from dledger.limits import MAX_CONFIGURATION_TAKEN_BYTES
from dledger.reading.entry import HEADER_SIZE
from store.atomic_file import AtomicFile
from store.commitlog import CommitLog, CommitLogOptions
from store.directory import DataDirectory, DirectoryState
from store.errors import CorruptionFound
from store.files import FileSystem, make_directory
from store.starting.founding import Founding, read_founding, write_founding
from store.starting.unformed import begins_with, end_of_unformed
from store.worker import ManualWorker

FIRST_TERM: Final = Term(1)


class Member:
    """A node's directory on its way into a group, or in it.

    Args:
        directory: opened; whoever opened it closes it.
        files: the disk.
        options: of the log.
        peers: the members and their addresses, as this node is configured.
    """

    def __init__(
        self,
        directory: DataDirectory,
        files: FileSystem,
        options: CommitLogOptions,
        peers: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._files = files
        self._options = options
        self._peers = tuple(sorted(peers.items()))
        self._end = (0, 0)
        self.founding = read_founding(directory.path, files)
        if not self.is_member:
            self._end = end_of_unformed(directory, self.founding, files, options)

    @property
    def is_member(self) -> bool:
        """Whether the node may start."""
        return self._directory.disk.state.is_member

    @property
    def state(self) -> str:
        """What to call it: one of `DirectoryState`, or prepared."""
        state = self._directory.disk.state.value
        return "prepared" if self.founding is not None and not self.is_member else state

    def describe(self) -> Description:
        """What this member says of itself; the end of the log is that of the start."""
        identity, disk = self._directory.identity, self._directory.disk
        return Description(
            broker_group=identity.broker_group,
            node_id=identity.node_id,
            segment_size_bytes=identity.segment_size_bytes,
            disk_id=disk.disk_id,
            born_ms=disk.born_ms,
            state=disk.state.value,
            founding=self.founding,
            last_index=self._end[0],
            last_term=self._end[1],
            peers=self._peers,
            known_level=KNOWN_LEVEL,
        )

    # --- forming ------------------------------------------------------------------------------

    def prepare(self, founding: Founding) -> None:
        """This member will take part in `founding`, and in no other.

        Raises:
            FormationRefused: it can't.
        """
        if self.founding is not None and self.founding.name == founding.name:
            return
        self._check(founding)
        write_founding(self._directory.path, self._files, founding)
        self.founding = founding

    def commit(self, name: str) -> None:
        """This member is formed as the founding of that name, for which it was prepared.

        Raises:
            FormationRefused: it was not.
        """
        founding, node = self.founding, self._directory.identity.node_id
        if founding is None or founding.name != name:
            raise FormationRefused(f"{node} is not prepared for the founding {name}")
        if self.is_member:
            return
        if not founding.is_adopted:
            self._write_first_entry(founding)
        self._directory.mark(DirectoryState.FORMED)

    def join(self, disk_id: bytes) -> None:
        """The group's log names this disk in the place of one that was lost: from now on it takes
        entries.

        Raises:
            FormationRefused: it isn't that disk, or not an empty one.
        """
        disk, node = self._directory.disk, self._directory.identity.node_id
        if disk_id != disk.disk_id:
            raise FormationRefused(f"{node} is on disk {disk.disk_id.hex()}, not {disk_id.hex()}")
        if disk.state is DirectoryState.LEGACY or self.founding is not None:
            raise FormationRefused(f"the directory of {node} is {self.state}, not unformed")
        if not self.is_member:
            self._directory.mark(DirectoryState.JOINING)

    def _check(self, founding: Founding) -> None:
        identity, disk = self._directory.identity, self._directory.disk
        node = identity.node_id
        if self.founding is not None or self.is_member:
            raise FormationRefused(
                f"{node} is {self.state}, and not by the founding {founding.name}"
            )
        if (founding.broker_group, founding.segment_size_bytes) != (
            identity.broker_group,
            identity.segment_size_bytes,
        ):
            raise FormationRefused(f"{node} is of another broker group or segment size")
        try:
            named, founders = founding.members.disk_of(NodeId(node)), founders_of(founding)
            why = _what_peers_refuse(founding)
        except DecodeError as error:
            raise FormationRefused(f"{node} can't read the founding: {error}") from error
        if why:
            raise FormationRefused(f"{node} can't begin a log with the founding: {why}")
        if named != disk.disk_id:
            raise FormationRefused(f"{node} is on disk {disk.disk_id.hex()}, not {named.hex()}")
        if founders != self._peers:
            raise FormationRefused(
                f"{node} has {as_told(self._peers)} in its [peers], and the founding is of "
                f"{as_told(founders)}: ask again"
            )
        if founding.is_adopted != (disk.state is DirectoryState.LEGACY):
            raise FormationRefused(f"{node} is {self.state}: it can't be formed like this")

    # --- the log ------------------------------------------------------------------------------

    def _write_first_entry(self, founding: Founding) -> None:
        path = self._directory.path
        make_directory(self._files, path / "raft")
        file = AtomicFile(self._files, path / "raft" / "hard_state")
        file.settle()
        hard_state = HardStateStore(file)
        # Before the entry: no log is ahead of its term (`broker.recovery`).
        if hard_state.load().term < FIRST_TERM:
            hard_state.save(HardState(FIRST_TERM))
        log = self._open_log()
        try:
            if log.last_index == 0:
                time_ms, body = founding.time_ms, founding.configuration
                log.append(EntryKind.CONFIGURATION, 1, FIRST_TERM, time_ms, 0, body)
                log.submit(1)
            elif not begins_with(log, founding):
                raise CorruptionFound(str(path / "commitlog"), 0, "an empty log", "entries")
        finally:
            log.close()

    def _open_log(self) -> CommitLog:
        # Nothing runs beside this: what is submitted is done by `close`.
        return CommitLog.open(
            self._directory.path, self._options, self._files, workers=ManualWorker
        )


def _what_peers_refuse(founding: Founding) -> str:
    """Why no follower would take the founding's entry 1, so that the group would commit nothing
    for ever; empty: they will."""
    body = founding.configuration
    if founding.time_ms > MAX_TIME_MS:
        return f"its time is {founding.time_ms} ms, {MAX_TIME_MS} at most: is a clock wrong?"
    size = HEADER_SIZE + len(body)
    if size > MAX_CONFIGURATION_TAKEN_BYTES:
        return f"its configuration has {size} bytes, {MAX_CONFIGURATION_TAKEN_BYTES} at most"
    entry = EntryMeta(Index(1), FIRST_TERM, size, EntryKind.CONFIGURATION, founding.members)
    wrong = wrong_configuration(entry)
    return f"its configuration should have {wrong.expected}" if wrong is not None else ""
