"""What the driver needs from the world, as protocols.

The driver is real code in production and in the simulator; these are the seams where the two
differ. `store.commitlog.CommitLog` behind an adapter is the production log, `broker` supplies the
state machine, `dledger.transport` the peers. Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from dledger.core.group_epoch import Lineage
from dledger.core.types import (
    Configuration,
    ConfigurationPlace,
    DiskId,
    Event,
    Index,
    NodeId,
    SnapshotOffer,
)
from dledger.disk_figures import DiskFigure
from dledger.hard_state import HardStateStore
from dledger.records.layout import ENTRY
from dledger.wire.raft_pb2 import PeerMessage

USUAL_VERSION: Final = ENTRY.constant("version")  # of entries, whose bodies it says how to read


class FrameHeader(Protocol):
    """The header of an entry frame, as far as replication looks at it. `total_size` is the
    frame's bytes, header included; `kind` is one of `EntryKind`; `record_count` is 0 but for
    data."""

    @property
    def index(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def total_size(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def append_time_ms(self) -> int: ...


Header = TypeVar("Header")
H = TypeVar("H", bound=FrameHeader)


class ReplicatedLog(Protocol[Header]):
    """The log, from the thread that owns it (the event loop). No call blocks on fsync."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...

    def next_position(self, frame_size: int) -> int:
        """The physical offset that a frame of `frame_size` bytes would be given next."""
        ...

    def has_room(self, frame_bytes: int) -> bool:
        """Whether that many bytes can be appended without waiting for space."""
        ...

    def has_room_behind(self, index: int, frame_bytes: int) -> bool:
        """The same, once everything behind the entry `index` is dropped: it is held, and whatever
        comes after it makes room."""
        ...

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that were appended and are not written yet: they lie in memory."""
        ...

    def is_short_of_space(self, frame_bytes: int) -> bool:
        """Whether the disk has refused more space and what was had before doesn't hold that many
        bytes. Unlike `has_room` it asks for nothing, and a segment that is just being made
        counts as room."""
        ...

    def append(
        self,
        kind: int,
        index: int,
        term: int,
        append_time_ms: int,
        record_count: int,
        body: bytes | bytearray,
        version: int = USUAL_VERSION,
    ) -> int:
        """Builds the frame of a new entry at the end; returns its physical offset, bytes."""
        ...

    def refusal_of(self, blob: memoryview, headers: list[Header]) -> str | None:
        """Why verified frames can't follow the entry before the first of them as this log holds
        it, in place and in digest; None if they can. That entry is held, and any that come after
        it are not looked at."""
        ...

    def append_frames(self, blob: memoryview, headers: list[Header]) -> None:
        """Appends verified frames after the last entry, as they are. Cheap for the very objects
        that `refusal_of` was asked about last."""
        ...

    def truncate_from(self, index: int) -> None:
        """Drops `index` and everything after it, once the work submitted before is done."""
        ...

    def submit(self, ticket: int, prelude: Callable[[], None] | None) -> None:
        """Makes everything since the last submit durable, `prelude` first; the driver is told
        by `on_durable(ticket)`."""
        ...

    def read(self, first: int, last: int) -> bytes:
        """Frames `[first, last]`, inclusive, back to back without fillers."""
        ...

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int: ...

    def digest_at(self, index: int) -> int:
        """The running digest at `index` (ADR 6)."""
        ...

    def verify(self, first: int, last: int, digest: int) -> int:
        """The running digest at `last`, computed from the files' bytes of `[first, last]` on top
        of `digest`, the one before `first`. Every frame is checked; one that isn't intact, or
        carries another digest, is an error of the log's. Entries up to `synced_index` only."""
        ...

    @property
    def synced_index(self) -> int:
        """The last entry that a loss of power would leave on this node's disk, whatever the flush
        mode calls durable."""
        ...

    @property
    def last_append_time_ms(self) -> int: ...


def never_enough() -> bool:
    """For who has all the time in the world."""
    return False


class Turns(Protocol):
    """How work that is long shares the event loop with everything else: in pieces, a turn each. A
    heartbeat, a vote or a crash may come between any two of them."""

    def share(self) -> Callable[[], bool]:
        """A piece begins; what this gives says, as often as it is asked, whether the piece has had
        its share of the turn."""
        ...

    def later(self, call: Callable[[], None]) -> object:
        """`call` runs in a turn after this one."""
        ...

    async def pause(self) -> None:
        """Returns in a turn after this one."""
        ...


class StateMachine(Protocol):
    """Applies committed entries in index order, each exactly once per process life."""

    def apply(self, frames: bytes, is_enough: Callable[[], bool] = never_enough) -> int:
        """Applies the frames in `frames`, back to back, until it is enough, one at least; the last
        entry applied. An exception stops the node.

        Raises:
            ApplyPaused: some of them, in order, or none were applied.
            ApplyStopped: the same, and it is asked no more.
        """
        ...


class PeerTransport(Protocol):
    """Sends are best effort and never block: a message that can't go now is dropped."""

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        """Goes out on the stream that this node dialed."""
        ...

    def send_answer(self, peer: NodeId, message: PeerMessage) -> None:
        """Goes back on the stream that `peer` dialed."""
        ...

    def know(
        self,
        place: ConfigurationPlace,
        disks: Mapping[NodeId, DiskId],
        *,
        is_known: bool,
        members: Mapping[NodeId, str] | None = None,
        recoveries: Lineage = (),
        leader: NodeId | None = None,
    ) -> None:
        """Another configuration is in force, which stands at `place`, or it can't be cut off any
        more: from now on, and before this returns, nothing is heard from a disk that isn't the
        named one (ADR 22), and who is a member is dialed (ADR 41). No callback of the transport is
        called meanwhile.

        Args:
            is_known: whether it names this node's own disk.
            members: the others, with those of the one before while that may count, and where the
                log says that they are; empty: it doesn't say. None: those that there were.
            recoveries: the epoch that it names; nobody of another one is heard (ADR 52).
            leader: who leads. If it is a member no more its calls go on: the last that it has to
                say is who shall lead, and that somebody does it is told by the answers.
        """
        ...


class Observer(Protocol):
    """Is told what happened, on the owner's thread; must not call back into the driver."""

    def on_event(self, event: Event) -> None: ...
    def on_applied(self, index: Index) -> None: ...
    def on_configuration(self) -> None: ...


class ConfigurationCodec(Protocol):
    """Reads the configuration out of a configuration entry's frame."""

    def __call__(self, frame: bytes) -> Configuration: ...


def _unheard(offer: SnapshotOffer) -> None:
    """Where nothing can be installed."""


def _by_all(peer: NodeId) -> bool:
    """Where everybody has this release."""
    return True


def _never_mended(error: Exception) -> bool:
    """Where rot ends the node."""
    return False


def _nobody_asks(index: Index) -> None:
    """Where a contradiction is told and nothing else."""


def _unknown() -> None:
    """Where nobody measures."""


def _makes_none(kind: int, body: bytes | bytearray | memoryview) -> bool:
    """Where nothing ever goes."""
    return False


@dataclass(frozen=True, slots=True)
class Ports(Generic[H]):
    """Everything outside the driver.

    `parse_frames` gives the headers of frames that a peer sent, each verified against its CRC,
    or raises `InvalidFrames`. `wall_ms` may step, `monotonic_s` may not; see `dledger.log_clock`
    for what each is good for. `fail` stops the node and is called at most once. `is_mended` says
    whether an error of the log tells of committed entries that are being got back: what was to be
    read is there later, and until then the driver goes on without. `contradicted` is told of each
    entry at which a peer contradicts what is settled here. `offered` is told of a snapshot that
    this node needs, again and again; `takes_offers` says who understands one. `makes_room` says of
    an entry, by its kind and body, whether it lets go of others; see `dledger.room`. `own_disk`:
    how full it is, None where that isn't known. `can_lead`: whether a peer's program knows what the
    log holds, as far as it has said.
    """

    log: ReplicatedLog[H]
    parse_frames: Callable[[bytes], list[H]]
    hard_state: HardStateStore
    transport: PeerTransport
    machine: StateMachine
    observer: Observer
    configuration_of: ConfigurationCodec
    call_soon: Callable[[Callable[[], None]], object]
    turns: Turns
    wall_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    fail: Callable[[BaseException], None]
    is_mended: Callable[[Exception], bool] = _never_mended
    contradicted: Callable[[Index], None] = _nobody_asks
    offered: Callable[[SnapshotOffer], None] = _unheard
    takes_offers: Callable[[NodeId], bool] = _by_all
    makes_room: Callable[[int, bytes | bytearray | memoryview], bool] = _makes_none
    own_disk: Callable[[], DiskFigure | None] = _unknown
    can_lead: Callable[[NodeId], bool] = _by_all
