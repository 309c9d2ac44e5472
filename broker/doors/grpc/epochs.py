"""The epoch that a caller was last served in, from its call's metadata (ADR 52).

    dledger-epoch-bin   number u32, id of the last recovery 16 bytes; big-endian

It is metadata and no field, as it is about the caller and not about what is asked, and as nobody
says it before the group was ever recovered: such calls cost a look at a few names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from broker.doors.grpc.errors import Context
from broker.errors import BrokerError, ErrorCode
from broker.leader.epochs import EpochName
from dledger.limits import EPOCH_METADATA_KEY

_NAME: Final = struct.Struct(">I16s")


def heed_epoch(heard: Callable[[EpochName], None], context: Context) -> None:
    """`heard` is told what the caller says, if it says something.

    Raises:
        BrokerError: what `heard` raises; INVALID_ARGUMENT: the caller says no epoch.
    """
    for key, value in context.invocation_metadata() or ():
        if key != EPOCH_METADATA_KEY:
            continue
        if not isinstance(value, bytes) or len(value) != _NAME.size:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "the caller's epoch can't be read")
        heard(EpochName(*_NAME.unpack(value)))
