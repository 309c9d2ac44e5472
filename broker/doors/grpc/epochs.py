"""The epoch that a caller was last served in, from its call's metadata, and this node's own, where
the caller doesn't know it yet (ADR 52).

    dledger-epoch-bin   number u32, id of the last recovery 16 bytes; big-endian

It is metadata and no field, as it is about the caller and not about what is asked, and as nobody
says it before the group was ever recovered: such calls cost a look at a few names. Who is answered
by a node of a newer epoch learns of it with the answer: it may never have heard a view of that.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.doors.grpc.errors import Context
from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import FIRST, EpochName
from broker.services.cluster import Cluster
from dledger.limits import EPOCH_METADATA_KEY

_NAME: Final = struct.Struct(">I16s")


def heed_epoch(cluster: Cluster, context: Context) -> None:
    """What the caller says of an epoch is heard, and it is told of a newer one.

    Raises:
        BrokerError: what `Cluster.heard_epoch` raises; INVALID_ARGUMENT: the caller says no epoch.
    """
    told = FIRST
    for key, value in context.invocation_metadata() or ():
        if key != EPOCH_METADATA_KEY:
            continue
        if not isinstance(value, bytes) or len(value) != _NAME.size:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "the caller's epoch can't be read")
        told = EpochName(*_NAME.unpack(value))
        cluster.heard_epoch(told)
    own = cluster.epoch
    if own.number > told.number:
        name = _NAME.pack(own.number, own.recovery_id)
        context.set_trailing_metadata(((EPOCH_METADATA_KEY, name),))
