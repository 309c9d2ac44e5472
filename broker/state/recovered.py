"""Whether an entry is the one by which the group was recovered by force (ADR 52).

What members of consumer groups know of the epoch before may lie beyond where the log goes on: they
have read, finished and would commit offsets that other messages fill from now on. So in front of
such an entry all sessions end (`broker.state.consuming`), at the same place on every replica, and
whoever comes back begins at what the log says.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from dledger.wire.raft_pb2 import Configuration


def begins_epoch(index: int, body: bytes) -> bool:
    """Whether the configuration of entry `index` is a forced one; later ones carry its epoch on."""
    try:
        epoch = Configuration.FromString(body).epoch
    except DecodeError:
        return False  # none that anybody wrote, and of no meaning here
    return epoch.HasField("last") and epoch.last.index == index
