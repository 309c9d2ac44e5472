"""What gRPC would not carry, although here everything travels as an object.

A message beyond the limit of both ends is a call that fails for ever. An error travels beside the
status, in the trailing metadata: once as the status's text, with `%XX` for what isn't ASCII, once
as it is, in base64. Beyond 8 KiB of that the other end may refuse it, and its caller learns
nothing.

Source: grpc's `GRPC_ARG_MAX_METADATA_SIZE`, and its specification of `grpc-message`.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from google.protobuf.message import Message

from broker.doors.grpc.errors import in_metadata
from chaos.sim.defect import Defect
from dledger.limits import RPC_LIMIT_BYTES
from dledger.wire import errors_pb2 as epb

METADATA_BYTES: Final = 8 << 10
OTHERS_BYTES: Final = 512  # the status, the epoch, names, and 32 for each of these (RFC 9113)


def check_size(who: str, size_bytes: int, what: object) -> None:
    """A message of that size can be sent, and received.

    Raises:
        Defect: it can't.
    """
    if size_bytes > RPC_LIMIT_BYTES:
        raise Defect("message beyond gRPC's limit", f"{who}: {size_bytes} bytes of {type(what)}")


def check_message(who: str, message: object) -> None:
    """The same, of a message; anything else is no matter of gRPC's."""
    if isinstance(message, Message):
        check_size(who, message.ByteSize(), message)


def check_error(who: str, error: epb.Error) -> None:
    """It can be told beside a status.

    Raises:
        Defect: it can't.
    """
    size_bytes = OTHERS_BYTES + len(quote(error.message))
    size_bytes += sum(len(name) + -(-len(value) // 3) * 4 for name, value in in_metadata(error))
    if size_bytes > METADATA_BYTES:
        raise Defect(
            "error beyond gRPC's metadata", f"{who}: {size_bytes} bytes of {error.message[:100]}"
        )
