"""What a simulated node is configured with, and where its disk keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broker.config import BrokerConfig, NodeConfig, RaftConfig, RetentionConfig, StoreConfig
from chaos.sim.plan import Plan
from dledger.core.types import NodeId
from dledger.level import KNOWN_LEVEL

DATA: Final = Path("/data")
HARD_STATE = DATA / "raft" / "hard_state"
GROUP: Final = "sim"
HOUR_MS: Final = 3_600_000
NEWER_LEVEL: Final = KNOWN_LEVEL + 1  # that of the release which a group is upgraded to


def node_config(plan: Plan, name: NodeId, members: list[NodeId]) -> NodeConfig:
    """A configuration with bounds far below what a real node accepts, so that a short run meets
    them; `model_copy` sets them without asking."""
    tuning = plan.tuning
    peers = {member: f"10.0.0.{i + 1}:7000" for i, member in enumerate(members)}
    config = NodeConfig(
        insecure=True,  # its addresses are names in a network that is one program
        broker_group=GROUP,
        node_id=name,
        data_directory=DATA,
        listen=peers[name],
        peers={str(member): address for member, address in peers.items()},
        raft=RaftConfig(),
        store=StoreConfig(),
        retention=RetentionConfig(
            age_hours=0,
            bytes=tuning.retention_bytes,
            disk_percent=tuning.retention_disk_percent,
        ),
        broker=BrokerConfig(long_poll_default_ms=0),
    )
    raft = config.raft.model_copy(
        update={
            "max_append_bytes": tuning.max_append_bytes,
            "max_append_entries": tuning.max_append_entries,
            "max_inflight_appends": tuning.max_inflight_appends,
            "max_uncommitted_bytes": tuning.max_uncommitted_bytes,
        }
    )
    store = config.store.model_copy(
        update={
            "segment_size_bytes": tuning.segment_bytes,
            "reserve_bytes": 0,
            "flush": tuning.flush,
        }
    )
    # A configuration counts hours.
    age_hours = tuning.retention_age_ms / HOUR_MS
    retention = config.retention.model_copy(update={"age_hours": age_hours})
    return config.model_copy(update={"raft": raft, "store": store, "retention": retention})
