"""How the Raft core and its driver are set up for a broker: options, and what frames hold."""

from __future__ import annotations

from broker.config import NodeConfig
from dledger.codec import decode_configuration
from dledger.core.types import Configuration, RaftOptions
from dledger.errors import InvalidFrames
from dledger.reading.entry import HEADER_SIZE, EntryHeader, walk_frames
from dledger.records.errors import InvalidFrame
from dledger.wire import raft_pb2

STALLED_DISK_MS = 500  # far beyond what a healthy disk takes for an fsync under load
HAND_OVER_INTERVAL_MS = 1_000  # a leader with a sick disk hands over no sooner and no oftener

# Of being well, until the preferred member is to lead: longer than anything that only passes.
PREFERRED_AFTER_MS = 10_000


def parse_frames(blob: bytes) -> list[EntryHeader]:
    """The headers of the frames in `blob`, each verified.

    Raises:
        InvalidFrames: see `dledger.reading.entry.walk_frames`.
    """
    try:
        return walk_frames(blob)
    except InvalidFrame as error:
        raise InvalidFrames(str(error)) from error


def configuration_of(frame: bytes) -> Configuration:
    """The configuration in the frame of a configuration entry."""
    return decode_configuration(raft_pb2.Configuration.FromString(frame[HEADER_SIZE:]))


def raft_options(config: NodeConfig) -> RaftOptions:
    """The core's options: milliseconds become ticks."""
    raft = config.raft
    tick = raft.tick_ms
    hand_over_ms = max(HAND_OVER_INTERVAL_MS, 4 * raft.election_timeout_ms[1])
    return RaftOptions(
        election_timeout_min_ticks=raft.election_timeout_ms[0] // tick,
        election_timeout_max_ticks=raft.election_timeout_ms[1] // tick,
        heartbeat_ticks=raft.heartbeat_ms // tick,
        suspicion_delay_min_ticks=raft.suspicion_delay_ms[0] // tick,
        suspicion_delay_max_ticks=raft.suspicion_delay_ms[1] // tick,
        transfer_timeout_ticks=raft.transfer_timeout_ms // tick,
        stalled_disk_ticks=STALLED_DISK_MS // tick,
        hand_over_interval_ticks=hand_over_ms // tick,
        preferred_after_ticks=max(PREFERRED_AFTER_MS, hand_over_ms) // tick,
        max_append_bytes=raft.max_append_bytes,
        max_append_entries=raft.max_append_entries,
        max_inflight_appends=raft.max_inflight_appends,
        max_uncommitted_bytes=raft.max_uncommitted_bytes,
        noop_size=HEADER_SIZE,
    )
