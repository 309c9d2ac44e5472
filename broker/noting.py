"""What rounds of housekeeping write down of one member: see `broker.housekeeping.Notes`.

That the ConsumeQueues hold everything up to an entry, that a disk which was taken in is a member's
for good, and what the peers' disks have promised.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.memory import Memory
from broker.mending import Mender
from broker.ports import Peers
from broker.state.machine import StateMachine
from dledger.codec import decode_configuration
from dledger.core.types import NodeId
from dledger.driver import RaftDriver
from dledger.reading.entry import EntryHeader
from dledger.wire import raft_pb2
from store.commitlog import CommitLog
from store.directory import DataDirectory, DirectoryState
from store.files import FULL_ERRNOS


class Noting:
    """The notes of one member.

    Args:
        node: whose they are.
        log, machine, driver, transport: whence they are.
        mender: knows whether a queue is wrong.
        memory: keeps what peers have promised.
        directory: says what this node's disk is to the group.
    """

    def __init__(
        self,
        node: NodeId,
        log: CommitLog,
        machine: StateMachine,
        driver: RaftDriver[EntryHeader],
        transport: Peers,
        mender: Mender,
        memory: Memory,
        directory: DataDirectory,
    ) -> None:
        self._node = node
        self._log = log
        self._machine = machine
        self._driver = driver
        self._transport = transport
        self._mender = mender
        self._memory = memory
        self._directory = directory

    def settled(self) -> int:
        """Through which entry the queues are derived, for all that is known; 0: nothing new is to
        be noted, as one of them is wrong and the next start has to find it so."""
        return 0 if self._mender.is_at_work else self._driver.settled_index

    def remember(self) -> Callable[[], None] | None:
        return self._memory.step(self._transport.promises())

    def note(self, settled_index: int) -> None:
        """The ConsumeQueues hold everything up to `settled_index`, durably, and so does the log.
        When that was is said by the log's time: this node's own clock may be before all time."""
        self._log.checkpoint.note_consume_queue(settled_index, self._machine.append_time_ms)
        self._note_membership(settled_index)

    def _note_membership(self, settled_index: int) -> None:
        """A disk that was taken in is a member's for good once its log, committed, says so: from
        then on it doesn't start without that log."""
        directory = self._directory
        if directory.disk.state is not DirectoryState.JOINING:
            return
        bodies = [b for index, b in self._log.configuration_entries() if index <= settled_index]
        if bodies:
            named = decode_configuration(raft_pb2.Configuration.FromString(bodies[-1]))
            if named.disk_of(self._node) == directory.disk.disk_id:
                try:
                    directory.mark(DirectoryState.FORMED)
                except OSError as error:
                    if error.errno not in FULL_ERRNOS:
                        raise  # a full disk only delays it: each round comes here again
