"""How full is what has a bound: so that an operator hears of it before anything is refused for it.

Left out is what makes room for itself when it is full, as producers do: that may be full for years.
"""

from __future__ import annotations

from typing import Final

from broker.leader.offsets_room import MAX_QUEUE_OFFSETS
from broker.pulling import MAX_BYTES as MAX_SNAPSHOT_BYTES
from broker.services.cluster import Fill
from broker.state.deliveries import MAX_ALL_UNFINISHED, MAX_HANDOUTS
from broker.state.groups import MAX_GROUPS, MAX_SESSIONS
from broker.state.leases import MAX_ALL_RANGES
from broker.state.machine import MachineStatistics
from broker.state.offsets import MAX_PROGRESS
from broker.state.retries import MAX_RESENT
from broker.state.topics import MAX_QUEUES

LIMITS: Final = {
    "queues of topics": MAX_QUEUES,
    "consumer groups that were joined": MAX_GROUPS,
    "members of consumer groups": MAX_SESSIONS,
    "pairs of a group and a topic": MAX_PROGRESS,
    "queues in which groups have an offset": MAX_QUEUE_OFFSETS,
    "finished ranges beyond groups' offsets": MAX_ALL_RANGES,
    "messages handed out one by one": MAX_ALL_UNFINISHED,
    "rows of messages handed out one by one": MAX_HANDOUTS,
    "ranges of dead letters sent again": MAX_RESENT,
    "bytes of a snapshot of state": MAX_SNAPSHOT_BYTES,
}


def fills_of(machine: MachineStatistics, snapshot_bytes: int) -> tuple[Fill, ...]:
    """All that has a bound, by what the state machine said of itself; the snapshot's size is the
    last one's."""
    used = (
        machine.queues,
        machine.joined_groups,
        machine.members,
        machine.progress,
        machine.offsets,
        machine.finished_ranges,
        machine.unfinished,
        machine.handouts,
        machine.resent_ranges,
        snapshot_bytes,
    )
    return tuple(
        Fill(what, count, limit) for (what, limit), count in zip(LIMITS.items(), used, strict=True)
    )
