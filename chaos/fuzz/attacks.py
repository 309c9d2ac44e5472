"""What strangers send: bytes, requests with malformed or absurd fields, streams, HTTP, and epochs
of groups.

Every attack draws from one random source, makes so many requests and says how many it made. None
waits for an answer longer than `ANSWER_S`, and whatever the other side does with it (closes,
refuses, resets) is right: what must hold is said in `chaos.fuzz.target`. Nothing here forges a
sealed message of a real peer: without TLS or a secret a node believes those (docs/operations.md).
Nor does anything tell a later epoch that could be the group's, as a client of it would: that shuts
the node, and is to (docs/adr/0052-the-last-resort.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from chaos.fuzz.connections import PREFACE, SETTINGS
from dledger.addresses import split_address
from dledger.core.group_epoch import MAX_RECOVERIES, RECOVERY_ID_BYTES
from dledger.limits import EARLIER_METADATA_KEY, EPOCH_METADATA_KEY
from dledger.wire import (
    audit_pb2,
    broker_pb2,
    cluster_pb2,
    consumers_pb2,
    deliveries_pb2,
    formation_pb2,
    groups_pb2,
    raft_pb2,
)

EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
ANSWER_S: Final = 2.0
HELD_S: Final = 0.2  # of a call that a node may hold
BATCH: Final = 256  # requests of one attack
AT_ONCE: Final = 64
MAX_BYTES: Final = 20_000
NESTING: Final = 4

METHODS: Final[tuple[MethodDescriptor, ...]] = tuple(
    method
    for file in (
        *(audit_pb2, broker_pb2, cluster_pb2, consumers_pb2),
        *(deliveries_pb2, formation_pb2, groups_pb2, raft_pb2),
    )
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)
WATCH: Final = cluster_pb2.DESCRIPTOR.services_by_name["Cluster"].methods_by_name["WatchLeader"]
UNHEARD: Final = frozenset({"Audit", "Formation", "RaftPeer"})  # services that hear of no epoch
NO_REQUEST: Final = b"\xff\xff\xff"  # of any method
ODD_SHARE: Final = 0.2  # of the calls: beside an epoch that no group has
STRAY_SHARE: Final = 0.1  # of the calls: by a client of another group
STANDARD: Final = (  # path, whether the request is a stream, whether the answer is
    ("/grpc.health.v1.Health/Check", False, False),
    ("/grpc.health.v1.Health/Watch", False, True),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True, True),
    ("/dledger.v1.Broker/NoSuchMethod", False, False),
)
# Never the good load's topic: to delete it is anybody's right.
WORDS: Final = (
    *(
        "",
        "x",
        "..",
        "../../up",
        "/etc/passwd",
        "a b",
        "t\0t",
        "t\n",
        "%DLQ%g",
        "n1",
        "n9",
        "local",
    ),
    *("x" * 127, "x" * 128, "y" * 5_000, "Ünïcödé", "\u202egnp", "fuzz-1", "fuzz-2", "fuzz-3"),
)
NUMBERS: Final = (0, 1, 2, 7, 127, 128, 1_023, 1_024, 1_025, 65_535, 1 << 20, (1 << 31) - 1)
HTTP: Final = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
    b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/9.9\r\n" + b"A: b\r\n" * 100,
    PREFACE,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One node: where it serves, and its metrics."""

    address: str
    metrics: str


Attack = Callable[[Random, Place], Awaitable[int]]
Metadata = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Said:
    """One call: of a method, and what is sent; a stream may say more than one thing."""

    path: str
    asks: bool
    answers: bool
    requests: list[bytes]
    metadata: Metadata = ()


# --- bytes ----------------------------------------------------------------------------------------


async def raw_bytes(chance: Random, place: Place) -> int:
    """Connections with noise, with HTTP/2 frames that are none, and with half of either."""
    return await _connections(place.address, [_raw(chance) for _ in range(AT_ONCE)])


async def http_nonsense(chance: Random, place: Place) -> int:
    """The metrics port, asked for what it hasn't, by who can't say it."""
    said = [_bitten(chance, chance.choice(HTTP)) for _ in range(AT_ONCE)]
    return await _connections(place.metrics, said)


def _raw(chance: Random) -> bytes:
    match chance.randrange(4):
        case 0:
            return chance.randbytes(chance.randrange(MAX_BYTES))
        case 1:
            return chance.choice(HTTP)
        case 2:
            return PREFACE + chance.randbytes(chance.randrange(2_000))
    frames = b"".join(_frame(chance) for _ in range(chance.randrange(1, 40)))
    return _bitten(chance, PREFACE + SETTINGS + frames)


def _frame(chance: Random) -> bytes:
    body = chance.randbytes(chance.choice((0, 4, 5, 8, 9, 100, 2_000)))
    length = len(body) if chance.random() < 0.8 else chance.choice((0, 1, 0xFFFFFF))
    kind, flags = chance.choice((*range(10), 0xFF)), chance.randrange(256)
    stream = chance.choice((0, 1, 3, 5, 0x7FFFFFFF, 0xFFFFFFFF))
    return length.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _bitten(chance: Random, data: bytes) -> bytes:
    """As it is, cut short, or with bytes changed."""
    changed = bytearray(data)
    match chance.randrange(3):
        case 0:
            del changed[chance.randrange(len(changed) + 1) :]
        case 1:
            for _ in range(chance.randrange(1, 8)):
                if changed:
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


async def _connections(address: str, said: list[bytes]) -> int:
    await asyncio.gather(*(_say(address, each) for each in said))
    return len(said)


async def _say(address: str, data: bytes) -> None:
    with contextlib.suppress(OSError, TimeoutError, EOFError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(*split_address(address))
            try:
                writer.write(data)
                await writer.drain()
                await reader.read(1_024)
            finally:
                writer.transport.abort()


# --- calls ----------------------------------------------------------------------------------------


async def malformed_calls(chance: Random, place: Place) -> int:
    """Bytes that are no request, to every method that there is and some that there aren't."""
    return await _calls(chance, place, malformed=True)


async def absurd_calls(chance: Random, place: Place) -> int:
    """Requests that parse, with fields of any value."""
    return await _calls(chance, place, malformed=False)


async def _calls(chance: Random, place: Place, *, malformed: bool) -> int:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    channel: Any = grpc.aio.insecure_channel(place.address, options=options)
    async with channel:
        for _ in range(BATCH // AT_ONCE):
            calls = (_call(channel, chance, malformed=malformed) for _ in range(AT_ONCE))
            await asyncio.gather(*calls)
    return BATCH


async def _call(channel: Any, chance: Random, *, malformed: bool) -> None:
    said = _said(chance, malformed=malformed)
    how = {"timeout": HELD_S, "metadata": said.metadata or None}
    with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
        async with asyncio.timeout(ANSWER_S):
            if said.asks:
                await _converse(channel.stream_stream(said.path)(**how), said.requests)
            elif said.answers:
                async for _ in channel.unary_stream(said.path)(said.requests[0], **how):
                    pass
            else:
                await channel.unary_unary(said.path)(said.requests[0], **how)


def _said(chance: Random, *, malformed: bool) -> Said:
    if chance.random() < STRAY_SHARE:
        return _strayed(chance)
    metadata = _odd_epoch(chance) if chance.random() < ODD_SHARE else ()
    if malformed and chance.random() < 0.3:
        requests = [chance.randbytes(chance.randrange(200))]
        return Said(*chance.choice(STANDARD), requests, metadata)
    method = chance.choice(METHODS)
    requests = [_request(chance, method.input_type, malformed=malformed)]
    if method.client_streaming:
        requests += [chance.randbytes(40) for _ in range(chance.randrange(4))]
    return _of_method(method, requests, metadata)


def _of_method(method: MethodDescriptor, requests: list[bytes], metadata: Metadata) -> Said:
    path = f"/{method.containing_service.full_name}/{method.name}"
    return Said(path, method.client_streaming, method.server_streaming, requests, metadata)


def _strayed(chance: Random) -> Said:
    """By who was served in a later epoch of another group: it watches that one, asks who hears of
    no epoch, or says nothing that can be read."""
    epoch = _epoch(chance)
    if chance.random() < 0.5:
        named = cluster_pb2.WatchLeaderRequest(broker_group=f"strangers-{chance.randrange(9)}")
        return _of_method(WATCH, [named.SerializeToString()], epoch)
    method = chance.choice(METHODS)
    if method.containing_service.name in UNHEARD:
        return _of_method(method, [_request(chance, method.input_type, malformed=False)], epoch)
    if method.client_streaming:  # its epoch is heard before its first request
        epoch = _odd_epoch(chance)
    return _of_method(method, [NO_REQUEST], epoch)


def _epoch(chance: Random) -> Metadata:
    """One that a group can have come to."""
    ids = [chance.randbytes(RECOVERY_ID_BYTES) for _ in range(chance.choice((1, 1, 2, 9)))]
    name = len(ids).to_bytes(4, "big") + ids[-1]
    return ((EPOCH_METADATA_KEY, name), (EARLIER_METADATA_KEY, b"".join(ids[:-1])))


def _odd_epoch(chance: Random) -> Metadata:
    """One that no group can have come to: too many recoveries or none, of too many bytes or too
    few, and not as many before it as there were."""
    last = chance.randbytes(RECOVERY_ID_BYTES)
    number = chance.choice((0, MAX_RECOVERIES + 1, (1 << 31) - 1, (1 << 32) - 1))
    odd = (EPOCH_METADATA_KEY, number.to_bytes(4, "big") + last)
    before = (EARLIER_METADATA_KEY, chance.randbytes(chance.choice((0, 15, 16, 5_000))))
    match chance.randrange(5):
        case 0:
            sizes = (0, 1, 4, 19, 21, 2_000, MAX_BYTES)
            return ((EPOCH_METADATA_KEY, chance.randbytes(chance.choice(sizes))), before)
        case 1:
            twice = (EARLIER_METADATA_KEY, last)
            return ((EPOCH_METADATA_KEY, (2).to_bytes(4, "big") + last), twice)
        case 2:
            too_many = (EARLIER_METADATA_KEY, chance.randbytes(chance.choice((15, 32, 40, 5_000))))
            return ((EPOCH_METADATA_KEY, (2).to_bytes(4, "big") + last), too_many)
        case 3:
            return (before,)
    return (odd, before, odd)


async def _converse(call: Any, requests: list[bytes]) -> None:
    """Says all of it and hears what comes. Written to, not given an iterator: gRPC cancels a call
    whose iterator it could not write, and who reads takes that for a cancellation of its own."""
    try:
        for request in requests:
            await call.write(request)
        with contextlib.suppress(Exception):  # of a call that is over: gRPC's own, and not public
            await call.done_writing()
        while await call.read() is not EOF:
            pass
    finally:
        call.cancel()


def _request(chance: Random, kind: Descriptor, *, malformed: bool) -> bytes:
    if malformed and chance.random() < 0.5:
        return chance.randbytes(chance.choice((1, 3, 17, 200, MAX_BYTES)))
    made = _message(chance, kind, NESTING).SerializeToString()
    return _bitten(chance, made) if malformed else made


def _message(chance: Random, kind: Descriptor, depth: int) -> Message:
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if chance.random() < 0.25 or depth == 0:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        count = chance.choice((1, 1, 2, 30)) if field.is_repeated else 1
        for _ in range(count):
            _fill(chance, message, field, depth)
    return message


def _fill(chance: Random, message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None:
        part = _message(chance, field.message_type, depth - 1)
        if field.is_repeated:
            getattr(message, field.name).append(part)
        else:
            getattr(message, field.name).CopyFrom(part)
        return
    value = _value(chance, field)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _value(chance: Random, field: FieldDescriptor) -> object:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_STRING:
            return chance.choice(WORDS)
        case FieldDescriptor.CPPTYPE_STRING:
            return chance.randbytes(chance.choice((0, 1, 15, 16, 17, 91, 92, 1_000, MAX_BYTES)))
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return chance.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        case FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice((0, 1, 2, 99, 1 << 30))
        case FieldDescriptor.CPPTYPE_UINT64:
            return chance.choice((*NUMBERS, 1 << 40, 1 << 63, (1 << 64) - 1))
        case FieldDescriptor.CPPTYPE_INT64:
            return chance.choice((*NUMBERS, -1, -(1 << 63), (1 << 63) - 1))
        case FieldDescriptor.CPPTYPE_INT32:
            return chance.choice((*NUMBERS, -1, -(1 << 31)))
    return chance.choice((*NUMBERS, (1 << 32) - 1))


ATTACKS: Final[dict[str, Attack]] = {
    "bytes": raw_bytes,
    "http": http_nonsense,
    "malformed": malformed_calls,
    "absurd": absurd_calls,
}
# Calls are most of it: there are most ways to say something wrong.
WEIGHTS: Final = {"bytes": 1, "http": 1, "malformed": 4, "absurd": 4}
