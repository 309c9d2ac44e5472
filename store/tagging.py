"""The tags codes of an entry's records, all at once. Pure functions over bytes.

A unit carries the hash of its record's tag. An entry may hold 65,535 records, or a few with tags of
32 KiB, and it is derived in one turn of the event loop: so nothing here loops over the records of a
large entry, nor over the letters of a long tag (ADR 27). What comes out must be what
`dledger.records.properties` gives for each record alone.

Source: Java's `String.hashCode`; RocketMQ `MessageExtBrokerInner.tagsString2tagsCode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dledger.records.errors import InvalidRecord
from dledger.records.layout import RECORD
from dledger.records.properties import REMEMBERED_CHARACTERS, find_property, tags_code
from dledger.records.record import FIXED_SIZE, MIN_RECORD_SIZE

TAGS: Final = b"TAGS\x01"
_END: Final = 2  # the byte behind a property
_LATER: Final = b"\x02" + TAGS
LONG_TAG: Final = REMEMBERED_CHARACTERS  # longer ones are hashed by numpy
RUN_BYTES: Final = 1 << 15
# So many records are looked at one by one, as their properties may be long: finding a letter in
# bytes is faster than comparing all of them.
FEW_RECORDS: Final = 1_024

_BODY_LENGTH: Final = RECORD.run("body_length")
_BODY_LENGTH_AT: Final = RECORD.at("body_length")
_TOPIC_ROOM: Final = RECORD.at("properties") - RECORD.at("body")  # Both lengths behind the body.

Positions = npt.NDArray[np.int64]


def code_of_record(frame: bytes, start: int, end: int) -> int:
    """The tags code of the record in `[start, end)`; 0 without a tag."""
    (body_size,) = _BODY_LENGTH.unpack_from(frame, start + _BODY_LENGTH_AT)
    topic_at = start + FIXED_SIZE + body_size
    if body_size > end - start - MIN_RECORD_SIZE or topic_at + _TOPIC_ROOM + frame[topic_at] > end:
        raise InvalidRecord(start, "BODYLENGTH", "within the record", body_size)
    tags = find_property(frame[topic_at + _TOPIC_ROOM + frame[topic_at] : end], b"TAGS")
    if not tags:
        return 0
    return tags_code(tags) if len(tags) <= LONG_TAG else int(codes_of_tags([tags.encode()])[0])


def codes_of_records(frame: bytes, starts: Positions) -> Positions:
    """The tags code of each of the records that begin at `starts` and fill the frame."""
    return codes_between(frame, starts, np.append(starts[1:], len(frame)))


def has_properties(frame: bytes, starts: Positions) -> bool:
    """Whether any of the records that begin at `starts` and fill the frame has properties: by their
    lengths, as a search through all bodies takes ten times as long. True, too, where these lead
    out of a record."""
    ends = np.append(starts[1:], len(frame))
    body_sizes = _body_sizes(frame, starts)
    if (body_sizes > ends - starts - MIN_RECORD_SIZE).any():
        return True
    topics_at = starts + FIXED_SIZE + body_sizes
    topic_sizes = np.frombuffer(frame, dtype=np.uint8)[topics_at]
    return bool((topics_at + _TOPIC_ROOM + topic_sizes != ends).any())


def codes_between(frame: bytes, starts: Positions, ends: Positions) -> Positions:
    """The tags code of each of the records that lie in `[starts, ends)`, ascending; whatever lies
    between them is none of theirs.

    Raises:
        InvalidRecord: a record's lengths lead out of it.
    """
    letters = np.frombuffer(frame, dtype=np.uint8)
    properties = _properties_at(frame, letters, starts, ends)
    if len(starts) <= FEW_RECORDS:
        tags_at, tag_ends, records = _tags_one_by_one(frame, properties, ends)
    else:
        tags_at, records = _first_tags(letters, starts, properties, ends)
        tag_ends = np.minimum(_ends_of(letters, tags_at), ends[records])
    codes = np.zeros(len(starts), dtype=np.int64)
    if len(tags_at):
        spans = zip(tags_at.tolist(), tag_ends.tolist(), strict=True)
        values = [frame[first:end] for first, end in spans]
        distinct = {value: number for number, value in enumerate(dict.fromkeys(values))}
        numbers = np.fromiter((distinct[each] for each in values), np.int64, len(values))
        codes[records] = codes_of_tags(list(distinct))[numbers]
    return codes


def codes_of_tags(tags: Sequence[bytes]) -> Positions:
    """The hash of each tag; they hold no byte 2. What is no UTF-8 in them is replaced."""
    codes = [_codes_of_some(tags[first:end]) for first, end in _runs(tags)]
    return np.concatenate(codes) if codes else np.zeros(0, dtype=np.int64)


def _runs(tags: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Runs of tags whose arrays stay in the processor's cache: that makes them three times as
    fast."""
    first = size = 0
    for at, tag in enumerate(tags):
        size += len(tag)
        if size >= RUN_BYTES:
            yield first, at + 1
            first, size = at + 1, 0
    if first < len(tags):
        yield first, len(tags)


def _codes_of_some(tags: Sequence[bytes]) -> Positions:
    blob = b"".join([each + b"\x02" for each in tags])
    units = np.frombuffer(blob, dtype=np.uint8)
    if not blob.isascii():
        # Letter for letter as if each were decoded alone: an ASCII byte ends what is unfinished.
        encoded = blob.decode(errors="replace").encode("utf-16-le")
        units = np.frombuffer(encoded, dtype="<u2")
    ends = np.flatnonzero(units == _END).astype(np.int32)
    lengths = np.diff(ends, prepend=np.int32(-1))  # each with the byte that ends it
    from_end = np.repeat(ends, lengths) - np.arange(len(units), dtype=np.int32)
    powers = np.full(int(lengths.max()), 31, dtype=np.uint32)
    powers[:2] = [0, 1][: len(powers)]  # of the byte that ends it, and of the last letter
    np.cumprod(powers[1:], out=powers[1:])
    products = powers[from_end] * units.astype(np.uint32)
    sums = np.add.reduceat(products, ends + 1 - lengths, dtype=np.uint32)
    return sums.view(np.int32).astype(np.int64)


def _body_sizes(frame: bytes, starts: Positions) -> Positions:
    lengths = np.ndarray(
        (len(frame) - _BODY_LENGTH.size + 1,), dtype=">u4", buffer=frame, strides=(1,)
    )
    return lengths[starts + _BODY_LENGTH_AT].astype(np.int64)


def _properties_at(
    frame: bytes, letters: npt.NDArray[np.uint8], starts: Positions, ends: Positions
) -> Positions:
    """Where each record's properties begin.

    Raises:
        InvalidRecord: a record's lengths lead out of it.
    """
    body_sizes = _body_sizes(frame, starts)
    good = body_sizes <= ends - starts - MIN_RECORD_SIZE
    topics_at = starts + FIXED_SIZE + np.where(good, body_sizes, 0)
    properties = topics_at + _TOPIC_ROOM + letters[topics_at]
    good &= properties <= ends
    if not good.all():
        at = int(np.argmin(good))
        raise InvalidRecord(int(starts[at]), "BODYLENGTH", "within the record", int(body_sizes[at]))
    return properties


def _tags_one_by_one(
    frame: bytes, properties: Positions, ends: Positions
) -> tuple[Positions, Positions, Positions]:
    """Where the value of each tag begins and ends, and whose it is."""
    found: list[tuple[int, int, int]] = []
    for number, (first, end) in enumerate(zip(properties.tolist(), ends.tolist(), strict=True)):
        at = first if frame.startswith(TAGS, first, end) else frame.find(_LATER, first, end) + 1
        if at:
            tag_at = at + len(TAGS)
            tag_end = frame.find(_LATER[:1], tag_at, end)
            found.append((tag_at, tag_end if tag_end >= 0 else end, number))
    columns = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def _first_tags(
    letters: npt.NDArray[np.uint8], starts: Positions, properties: Positions, ends: Positions
) -> tuple[Positions, Positions]:
    """Where the value of each tag begins, and whose it is: the first in a record's properties."""
    last = len(letters) - len(TAGS) + 1
    found = np.ones(last, dtype=bool)
    for at, letter in enumerate(TAGS):
        found &= letters[at : at + last] == letter
    places = np.flatnonzero(found)
    records = np.searchsorted(starts, places, side="right") - 1
    begins = (places == properties[records]) | (letters[places - 1] == _END)
    good = begins & (places >= properties[records]) & (places + len(TAGS) <= ends[records])
    places, records = places[good], records[good]
    records, firsts = np.unique(records, return_index=True)
    return places[firsts] + len(TAGS), records


def _ends_of(letters: npt.NDArray[np.uint8], tags_at: Positions) -> Positions:
    """Where each property that has a letter at `tags_at` ends, whosever it is."""
    all_ends = np.append(np.flatnonzero(letters == _END), len(letters))
    return all_ends[np.searchsorted(all_ends, tags_at)]
