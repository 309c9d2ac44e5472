"""The epoch that a caller was last served in, from its call's metadata, and this node's own, where
the caller doesn't know it yet (ADR 52).

    dledger-epoch-bin           number u32, id of the last recovery 16 bytes; big-endian
    dledger-epochs-before-bin   ids of the recoveries before, 16 bytes each; if they are known

It is metadata and no field, as it is about the caller and not about what is asked, and as nobody
says it before the group was ever recovered: such calls cost a look at a few names. Who is answered
by a node of a newer epoch learns of it with the answer: it may never have heard a view of that.

An epoch is a group's. Whoever names another group has come to a wrong address, maybe one that was
a member's of its own once: it is told so, and what it knows of its own group shuts nobody here.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Final

from broker.doors.grpc.errors import Context
from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import FIRST, EpochName
from broker.services.cluster import Cluster
from dledger.core.group_epoch import MAX_RECOVERIES, RECOVERY_ID_BYTES
from dledger.limits import EARLIER_METADATA_KEY, EPOCH_METADATA_KEY
from dledger.wire.cluster_pb2 import GetStatusRequest, WatchLeaderRequest

_NAME: Final = struct.Struct(">I16s")


def heed_epoch(cluster: Cluster, request: object, context: Context) -> None:
    """What the caller says of an epoch is heard, if the request names no other group, and it is
    told of a newer one.

    Raises:
        BrokerError: what `Cluster.heard_epoch` raises; WRONG_BROKER_GROUP: the request names
            another group; INVALID_ARGUMENT: the caller says no epoch.
    """
    if isinstance(request, GetStatusRequest):  # of any node, whosever it is
        return
    if isinstance(request, WatchLeaderRequest):  # no other of clients' requests names one
        cluster.check_group(request.broker_group)
    told, name, before = FIRST, None, b""
    for key, value in context.invocation_metadata() or ():
        if key == EPOCH_METADATA_KEY:
            name = value
        elif key == EARLIER_METADATA_KEY and isinstance(value, bytes):
            before = value
    if name is not None:
        told = _read(name, before)
        cluster.heard_epoch(told)
    own = cluster.epoch
    if own.number > told.number:
        name = _NAME.pack(own.number, own.recovery_id)
        earlier = ((EARLIER_METADATA_KEY, b"".join(own.earlier)),) if own.earlier else ()
        context.set_trailing_metadata(((EPOCH_METADATA_KEY, name), *earlier))


def _read(name: str | bytes, before: bytes) -> EpochName:
    """Raises BrokerError: INVALID_ARGUMENT, it can't be."""
    if not isinstance(name, bytes) or len(name) != _NAME.size:
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, "the caller's epoch can't be read")
    size = RECOVERY_ID_BYTES
    earlier = (before[at : at + size] for at in range(0, len(before), size))
    number, recovery_id = _NAME.unpack(name)
    return EpochName(number, recovery_id, tuple(islice(earlier, MAX_RECOVERIES)))
