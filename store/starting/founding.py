"""What a group is formed as: the same bytes for every member, and a name that is their digest.

This owns the bytes of `<data>/formation.json`, which say what a member was prepared for. Who is
prepared, and when, is decided where groups are formed; a start only reads it, and sets the mark
that a crash kept from being set (docs/adr/0022-disk-identities.md).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from dledger.codec import decode_configuration, encode_configuration
from dledger.core.types import Configuration, DiskId, NodeId
from dledger.wire import raft_pb2
from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound
from store.files import FileSystem

FORMAT_VERSION: Final = 1
FILE: Final = "formation.json"

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


def write_founding(path: Path, files: FileSystem, founding: Founding) -> None:
    """The directory says durably what its member was prepared for."""
    fields: dict[str, object] = {
        "format_version": FORMAT_VERSION,
        "broker_group": founding.broker_group,
        "segment_size_bytes": founding.segment_size_bytes,
        "time_ms": founding.time_ms,
        "configuration": founding.configuration.hex(),
        "is_adopted": founding.is_adopted,
    }
    write_sealed(files, path / FILE, fields)


def read_founding(path: Path, files: FileSystem) -> Founding | None:
    """What the member in the directory was prepared for; None: for nothing.

    Raises:
        CorruptionFound: it can't be read.
    """
    file = path / FILE
    if not files.exists(file):
        return None
    fields = read_sealed(files, file)
    if fields.get("format_version") != FORMAT_VERSION:
        version = fields.get("format_version")
        raise CorruptionFound(str(file), 0, f"format_version {FORMAT_VERSION}", version)
    try:
        founding = Founding(
            broker_group=str(fields["broker_group"]),
            segment_size_bytes=int(str(fields["segment_size_bytes"])),
            time_ms=int(str(fields["time_ms"])),
            configuration=bytes.fromhex(str(fields["configuration"])),
            is_adopted=fields["is_adopted"] is True,
        )
        founding.members  # noqa: B018  it must be readable,
        founding.name  # noqa: B018  and its numbers those of a founding
    except (KeyError, ValueError, DecodeError, struct.error) as error:
        raise CorruptionFound(str(file), 0, "a founding", error) from error
    return founding
