"""Hosts as records hold them, and the message ids made of them.

A message id names the store host and the physical offset of a record, so that any node which holds
the same log finds the record without an index. This owns the two encodings and nothing else; only
IPv4 is supported (see `dledger.records.record`).

Source: RocketMQ `MessageDecoder.createMessageId`.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address
from typing import Final

from dledger.records.errors import InvalidRecord
from dledger.records.layout import HOST, MESSAGE_ID

_HOST: Final = HOST.struct()
_MESSAGE_ID: Final = MESSAGE_ID.struct()
_PHYSICAL_OFFSET: Final = MESSAGE_ID.run("physical_offset")


def encode_host(host: tuple[str, int]) -> bytes:
    """The 8 bytes of an IPv4 address and a port.

    Raises:
        InvalidRecord: not an IPv4 address, or not a port.
    """
    try:
        packed = IPv4Address(host[0]).packed
    except AddressValueError:
        raise InvalidRecord(0, "host", "an IPv4 address", host[0]) from None
    if not 0 <= host[1] <= 65_535:
        raise InvalidRecord(0, "port", "0 to 65535", host[1])
    return _HOST.pack(packed, host[1])


def message_id(store_host: tuple[str, int], physical_offset: int) -> str:
    """RocketMQ's offsetMsgId: 32 upper-case hex digits of address, port and physical offset."""
    return message_id_of(encode_host(store_host), physical_offset)


def message_id_of(store_host: bytes, physical_offset: int) -> str:
    """`message_id`, the store host as the 8 bytes that records hold."""
    text: str = (store_host + _PHYSICAL_OFFSET.pack(physical_offset)).hex()
    return text.upper()


def parse_message_id(text: str) -> tuple[tuple[str, int], int]:
    """The store host and the physical offset in a message id.

    Raises:
        InvalidRecord: not 32 hex digits.
    """
    try:
        packed = bytes.fromhex(text) if re.fullmatch(r"[0-9A-Fa-f]{32}", text) else b""
        address, port, physical_offset = _MESSAGE_ID.unpack(packed)
    except struct.error:
        raise InvalidRecord(0, "message id", "32 hex digits", repr(text)) from None
    return (str(IPv4Address(address)), port), physical_offset


@lru_cache(maxsize=65_536)
def decode_host(packed: bytes) -> tuple[str, int]:
    """The address and port in the 8 bytes of a host field."""
    address, port = _HOST.unpack(packed)
    return str(IPv4Address(address)), port
