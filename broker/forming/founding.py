"""What a group is formed as: the same bytes for every member, and a name that is their digest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dledger.codec import decode_configuration, encode_configuration
from dledger.core.types import Configuration, DiskId, NodeId
from dledger.wire import raft_pb2

_HEAD: Final = struct.Struct(">QQ?I")  # segment size, time, adopted, length of the group's name
_NAME_CHARACTERS: Final = 32


@dataclass(frozen=True)
class Founding:
    """A group's beginning.

    Attributes:
        time_ms: the append time of entry 1.
        configuration: the bytes of its body. Kept as they were made, because protobuf promises no
            one encoding of a message.
        is_adopted: the members have logs already; then it is the configuration in force where
            those hold none, and no entry is written.
    """

    broker_group: str
    segment_size_bytes: int
    time_ms: int
    configuration: bytes
    is_adopted: bool

    @property
    def name(self) -> str:
        """Two foundings of one name are the same."""
        group = self.broker_group.encode()
        head = _HEAD.pack(self.segment_size_bytes, self.time_ms, self.is_adopted, len(group))
        return hashlib.sha256(head + group + self.configuration).hexdigest()[:_NAME_CHARACTERS]

    @cached_property
    def members(self) -> Configuration:
        """The configuration, read.

        Raises:
            google.protobuf.message.DecodeError: it can't be.
        """
        return decode_configuration(raft_pb2.Configuration.FromString(self.configuration))


def configuration_bytes(disks: Mapping[str, bytes], addresses: Mapping[str, str]) -> bytes:
    """A configuration in which everybody votes."""
    founders = Configuration(
        voters=frozenset(map(NodeId, disks)),
        disks=tuple(sorted((NodeId(node), DiskId(disk)) for node, disk in disks.items())),
        addresses=tuple(sorted((NodeId(node), at) for node, at in addresses.items())),
    )
    return encode_configuration(founders).SerializeToString(deterministic=True)
