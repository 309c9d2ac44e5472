"""What is kept of a segment that was proved, as values and as bytes. Pure.

A result is kept in two parts, `digests` and `chain`, each with the time at which it was read. Bytes
are JSON, deflated, and plain arrays: to read a store must never run anything. Whoever reads them
back has checked their sum; what still makes no sense is `KeptUnreadable`.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from audit.errors import KeptUnreadable
from audit.keeping.stamps import FileStamp, Place
from audit.proof.chain import Chain, Settled
from audit.proof.digest import DIGEST_DTYPE
from audit.proof.invariants import Lane, SegmentEnds
from audit.proof.unit_runs import UnitRun
from dledger.reading.entry import EntryHeader

_COUNT: Final = struct.Struct("<I")
_EDGE: Final = np.dtype("<i8")
_MAX_JSON_BYTES: Final = 256 << 20  # A bomb is no chain.


class Part(StrEnum):
    """Of what is kept of a segment."""

    DIGESTS = "digests"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class KeptDigests:
    """Blocks of a whole segment, by their edges, and their digests, 8 bytes each."""

    edges: tuple[int, ...]
    digests: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One part as it is stored. `proved`: seconds since the epoch, when its bytes were read."""

    place: Place
    part: Part
    stamp: FileStamp
    program: str
    proved: float
    payload: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a segment; `proved` is that of the part that was read first."""

    stamp: FileStamp
    proved: float
    digests: KeptDigests | None = None
    chain: Chain | None = None


def encode_digests(kept: KeptDigests) -> bytes:
    """Count of blocks, edges (i64), digests (u64), little-endian."""
    edges = np.array(kept.edges, dtype=_EDGE)
    return _COUNT.pack(len(edges) - 1) + edges.tobytes() + kept.digests


def decode_digests(payload: bytes) -> KeptDigests:
    """What `encode_digests` was given.

    Raises:
        KeptUnreadable: it's something else.
    """
    if len(payload) < _COUNT.size:
        raise KeptUnreadable("no count")
    (count,) = _COUNT.unpack_from(payload)
    split = _COUNT.size + (count + 1) * _EDGE.itemsize
    if count < 1 or len(payload) != split + count * DIGEST_DTYPE.itemsize:
        raise KeptUnreadable(f"{len(payload)} bytes of {count} blocks")
    edges = np.frombuffer(payload[_COUNT.size : split], dtype=_EDGE)
    return KeptDigests(tuple(edges.tolist()), payload[split:])


def encode_chain(chain: Chain) -> bytes:
    """A chain in which there is no fault."""
    ends = chain.ends
    fields = {
        "first_digest": chain.first_digest,
        "last_digest": chain.last_digest,
        "queue_ends": [[*queue, end] for queue, end in chain.queue_ends],
        "deleted": chain.deleted,
        "first": ends.first,
        "last": ends.last,
        "whole": [ends.begins_whole, ends.ends_whole, ends.is_whole],
        "begins": [[_lane(lane), *rest] for lane, *rest in ends.begins],
        "ends": [[_lane(lane), *rest] for lane, *rest in ends.ends],
        "names": sorted(ends.deleted),
        "units": [[*run.queue, *run[1:]] for run in chain.units or ()],
        "settled": [chain.settled.through, sorted(chain.settled.refused)],
        "counts": [chain.entries, chain.records, chain.verified_bytes],
    }
    return zlib.compress(json.dumps(fields, separators=(",", ":")).encode(), 1)


def decode_chain(payload: bytes, place: Place) -> Chain:
    """What `encode_chain` was given, of this replica and segment.

    Raises:
        KeptUnreadable: it's something else.
    """
    try:
        return _chain(json.loads(_inflated(payload)), place)
    except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
        raise KeptUnreadable(str(error)) from error


def _inflated(payload: bytes) -> bytes:
    inflater = zlib.decompressobj()
    content = inflater.decompress(payload, _MAX_JSON_BYTES)
    if not inflater.eof:
        raise KeptUnreadable("it breaks off, or never ends")
    return content


def _chain(fields: Any, place: Place) -> Chain:
    replica, base = place
    begins_whole, ends_whole, is_whole = fields["whole"]
    entries, records, verified_bytes = fields["counts"]
    through, refused = fields.get("settled", (0, ()))  # older releases know of no units
    return Chain(
        replica=replica,
        base=base,
        faults=(),
        more=(),
        first_digest=fields["first_digest"],
        last_digest=fields["last_digest"],
        queue_ends=tuple(((folder, number), end) for folder, number, end in fields["queue_ends"]),
        deleted=tuple((name, index) for name, index in fields["deleted"]),
        gaps=(),
        ends=SegmentEnds(
            base=base,
            first=_header(fields["first"]),
            last=_header(fields["last"]),
            begins_whole=begins_whole,
            ends_whole=ends_whole,
            is_whole=is_whole,
            begins=tuple(
                (_lane_of(lane), number, _header(header), whole)
                for lane, number, header, whole in fields["begins"]
            ),
            ends=tuple((_lane_of(lane), number, whole) for lane, number, whole in fields["ends"]),
            deleted=frozenset(fields["names"]),
        ),
        units=tuple(
            UnitRun((folder, number), first, units, digest)
            for folder, number, first, units, digest in fields["units"]
        ),
        entries=entries,
        records=records,
        verified_bytes=verified_bytes,
        settled=Settled(through, frozenset((index, unit) for index, unit in refused)),
    )


def _lane(lane: Lane) -> list[object]:
    return [lane.topic, lane.incarnation, lane.queue_id, lane.producer.hex()]


def _lane_of(fields: Any) -> Lane:
    topic, incarnation, queue_id, producer = fields
    return Lane(topic, incarnation, queue_id, bytes.fromhex(producer))


def _header(fields: Any) -> EntryHeader:
    return EntryHeader(*fields)
