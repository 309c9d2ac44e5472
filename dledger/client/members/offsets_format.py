"""What a broadcast member's file says: JSON, with a checksum over all of it. Pure.

    {"format": 2, "sum": "1c291ca3", "group": "g",
     "topics": {"t": {"incarnation": 7, "created_ms": 1790000000000, "epoch": [1, "0f..."],
                      "queues": {"0": [frontier, [gap, count, ...]]}}}}

and `"whole": false` in a topic of which not every queue that was there at first has its place yet.
A broker group that was made anew has the same incarnations again: so a topic says when it was made,
and of which epoch of the group its places are (absent: none that was recovered, ADR 52). Format 1,
of releases before, has neither, and no checksum.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dledger.client.group_epoch import FIRST_EPOCH, EpochName
from dledger.client.members.finished import Run, decode_runs, encode_runs
from dledger.client.members.process_queue import Place

FORMAT: Final = 2
UNSEALED_FORMAT: Final = 1
MAX_OFFSET: Final = 1 << 62  # no queue comes near it, and whoever begins there reads nothing

Kept = tuple[int, list[Run]]
Topic = tuple[str, int]  # its name and incarnation


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose places a topic's are: when it was made, and in which epoch of the broker group."""

    created_ms: int
    epoch: EpochName = FIRST_EPOCH


@dataclass(frozen=True, slots=True)
class OffsetsFile:
    """What a file holds. `in_part`: topics that are new; `origins`: as far as they are known."""

    kept: Mapping[Place, Kept] = field(default_factory=dict)
    in_part: frozenset[Topic] = frozenset()
    origins: Mapping[Topic, Origin] = field(default_factory=dict)


def encode_file(
    group: str,
    kept: Mapping[Place, Kept],
    in_part: Container[Topic],
    origins: Mapping[Topic, Origin],
) -> str:
    """The file's content."""
    topics: dict[str, dict[str, Any]] = {}
    for place in sorted(kept):
        frontier, runs = kept[place]
        fresh: dict[str, Any] = {"incarnation": place.incarnation}
        if (origin := origins.get(place[:2])) is not None:
            fresh["created_ms"] = origin.created_ms
            if origin.epoch.number:
                fresh["epoch"] = [origin.epoch.number, origin.epoch.recovery_id.hex()]
        fresh["queues"] = {}
        if place[:2] in in_part:
            fresh["whole"] = False
        of = topics.setdefault(place.topic, fresh)
        of["queues"][str(place.queue_id)] = [frontier, encode_runs(frontier, runs)]
    said = {"format": FORMAT, "group": group, "topics": topics}
    return json.dumps({**said, "sum": _sum(said)}, indent=1) + "\n"


def decode_file(content: str, group: str) -> OffsetsFile:
    """What the file of that consumer group says.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError: it is no
            such file.
    """
    said = json.loads(content)
    if said["format"] not in (UNSEALED_FORMAT, FORMAT) or said["group"] != group:
        raise ValueError("another format or group")
    if said["format"] == FORMAT and said.pop("sum") != _sum(said):
        raise ValueError("its sum is wrong")
    kept: dict[Place, Kept] = {}
    in_part: set[Topic] = set()
    origins: dict[Topic, Origin] = {}
    for name, of in said["topics"].items():
        topic = (name, int(of["incarnation"]))
        if type(whole := of.get("whole", True)) is not bool:
            raise ValueError("whole or not")
        if not whole:
            in_part.add(topic)
        if "created_ms" in of:
            origins[topic] = Origin(_number(of["created_ms"]), _epoch(of.get("epoch")))
        for queue_id, (frontier, numbers) in of["queues"].items():
            runs = decode_runs(_number(frontier), [_number(each) for each in numbers])
            _number(runs[-1][1] if runs else frontier)
            kept[Place(*topic, int(queue_id))] = (frontier, runs)
    return OffsetsFile(kept, frozenset(in_part), origins)


def _sum(said: Mapping[str, Any]) -> str:
    """Over all that it says, however that is laid out."""
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise ValueError(f"{value!r} is no offset")
    return value


def _epoch(said: Any) -> EpochName:
    if said is None:
        return FIRST_EPOCH
    number, recovery_id = said
    return EpochName(_number(number), bytes.fromhex(recovery_id))
