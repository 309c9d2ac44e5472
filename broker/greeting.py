"""Who a replica is to its peers, in one life of its process."""

from __future__ import annotations

from broker.config import NodeConfig
from broker.ports import ReplicaPorts
from broker.recovery import Recovered
from dledger.core.types import DiskId, NodeId
from dledger.greeting import Identity
from dledger.promises import NOBODY, Start


def greeting_of(config: NodeConfig, ports: ReplicaPorts, recovered: Recovered) -> Identity:
    """What the replica says of itself, on every stream."""
    return Identity(
        config.broker_group,
        NodeId(config.node_id),
        config.store.segment_size_bytes,
        own_disk(recovered),
        _start_told(config, ports, recovered),
        ports.known_level,
    )


def own_disk(recovered: Recovered) -> DiskId:
    """The disk that the replica is on."""
    return DiskId(recovered.directory.disk.disk_id)


def _start_told(config: NodeConfig, ports: ReplicaPorts, recovered: Recovered) -> Start:
    """What this process found on its disk, which peers compare with what that has promised."""
    return Start(
        recovered.boot_number,
        ports.random.getrandbits(64),
        recovered.hard_state.term,
        recovered.hard_state.vote or NOBODY,
        recovered.summary.last_index,
        is_synced=config.store.flush == "sync",
    )
