"""What lets the front of a log go is made of: the parts of a replica that it belongs to, and those
who point into it (`broker.log_start`). Nothing happens here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from broker.archiving import Archiver
from broker.repairs import Repairs
from broker.snapshots import Base, SnapshotKeeper
from broker.state.machine import StateMachine
from broker.state.replay import QueueStarts
from dledger.core.types import LogBase
from store.commitlog import CommitLog
from store.consumequeue import ConsumeQueues
from store.files import FileSystem
from store.log_start import StartNote

T = TypeVar("T")


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], T]) -> T: ...


class Holder(Protocol):
    """Somebody who points into the log, and would lose something with its front.

    Attributes:
        name: for people.
    """

    name: str

    def first_needed(self) -> int | None:
        """The first entry that is needed; None: none is."""
        ...


@dataclass(frozen=True, slots=True)
class Front:
    """What the front of a log belongs to, in one replica.

    Attributes:
        log, queues, machine: what is forgotten from, and what says how far.
        snapshots: writes the base, and says what a start may begin with.
        base: the present one.
        note: of the data directory.
        files: removes what isn't needed.
        archiver: is given each segment before it goes, and may hold it.
        forget: tells the core.
        queue_starts: is told where queues begin.
        is_hindered: while something is being repaired that may need what would go.
        is_disputed: while it may be needed to tell whose log is right, or the replica ends.
        is_mending_without_space: while queues can't be mended, nor anything be noted as derived,
            before there is space.
        durable: the last entry that the flusher is through with, and with every cut before it.
        is_checkpoint_held: whether nothing more is noted as derived until the next start.
        repairs: of the log.
        fetched: the state as of an entry, from a peer whose log begins behind it; None: not now.
        share: begins a piece of work; see `dledger.ports.Turns`.
    """

    log: CommitLog
    queues: ConsumeQueues
    machine: StateMachine
    snapshots: SnapshotKeeper
    base: Base
    note: StartNote
    files: FileSystem
    archiver: Archiver
    forget: Callable[[LogBase], None]
    queue_starts: Callable[[QueueStarts], None]
    is_hindered: Callable[[], bool]
    is_disputed: Callable[[], bool]
    is_mending_without_space: Callable[[], bool]
    durable: Callable[[], int]
    is_checkpoint_held: Callable[[], bool]
    repairs: Repairs
    fetched: Callable[[LogBase], Awaitable[Sequence[bytes] | None]]
    share: Callable[[], Callable[[], bool]]
