"""Filters of consumer groups: which messages of a topic the members of a group are given.

They are part of a group's settings (`broker.state.groups`): replicated, versioned, compared at each
join. This owns what may be one, how two are compared, and their section in a snapshot. `None` says
nothing: so joins who is older than filters, or whose leader couldn't write them yet. That is
another thing than no filters; the first who joins with something to say says it for all.

Bounds: `MAX_…`. A state in which nobody has said anything has no section in its snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.state.errors import SnapshotDamaged
from broker.state.layout import FILTERED_TOPIC, GROUP_FILTERS_SECTION
from broker.state.snapshot import MAX_TEXT_BYTES, PayloadReader, pack_text
from dledger.wire.commands_pb2 import GroupSettings, TagFilter, TagFilters

SECTION: Final = "group-filters"
VERSION: Final = 1
MAX_TAGS: Final = 1_024  # of one group's settings
MAX_TAGS_BYTES: Final = 8 << 10  # of them all, and so of one
MAX_TAG_BYTES: Final = MAX_TEXT_BYTES  # of one that a leader lets a group name: see `too_long`
_HEAD: Final = GROUP_FILTERS_SECTION.run("version", "topic_count")
_COUNT: Final = FILTERED_TOPIC.run("tag_count")

Tags = tuple[str, ...]  # ascending, each once
Filters = tuple[tuple[str, Tags], ...]  # by topic, ascending; of others every message is given


def tags_for(filters: Filters | None, topic: str) -> Tags:
    """The tags that are wanted of the topic; none: every message is."""
    return next((tags for name, tags in filters or () if name == topic), ())


def differ(one: Filters | None, other: Filters | None) -> bool:
    """Whether they say different things; who says nothing agrees with everybody."""
    return one is not None and other is not None and one != other


def malformed(filters: Filters | None, topics: tuple[str, ...]) -> str:
    """Why a group of these topics can't have them; empty if it can."""
    if not filters:
        return ""
    named = [topic for topic, _ in filters]
    if named != sorted(set(named)) or not set(named) <= set(topics):
        return "filters are for the group's topics, in ascending order, each once"
    return malformed_tags([tag for _, tags in filters for tag in tags]) or next(
        (why for _, tags in filters if (why := _disordered(tags))), ""
    )


def malformed_tags(tags: list[str]) -> str:
    """Why nobody may ask for so many, or for one of them; empty if it is all right."""
    if len(tags) > MAX_TAGS or sum(len(tag.encode()) for tag in tags) > MAX_TAGS_BYTES:
        return f"{MAX_TAGS:,} tags of {MAX_TAGS_BYTES >> 10} KiB in all are wanted at most"
    return "" if all(tags) else "a tag has one letter at least"


def too_long(filters: Filters | None) -> str:
    """Why a leader lets no group want them; empty if it does. It is asked before they are in the
    log, and never of what is in there: that holds. But a member that is older than this bound has
    none to write such a tag by, and would end at its next snapshot."""
    longest = max((len(tag.encode()) for _, tags in filters or () for tag in tags), default=0)
    return f"a group's tag has {MAX_TAG_BYTES:,} bytes at most" if longest > MAX_TAG_BYTES else ""


def _disordered(tags: Tags) -> str:
    if not tags or list(tags) != sorted(set(tags)):
        return "a filter has one tag or more, in ascending order, each once"
    return ""


# --- on the wire, and in the log ---------------------------------------------------------------


def filters_of(wire: GroupSettings) -> Filters | None:
    """What the settings say of tags."""
    if not wire.HasField("filters"):
        return None
    return tuple((each.topic, tuple(each.tags)) for each in wire.filters.topics)


def wire_filters(filters: Filters | None) -> TagFilters | None:
    """The same for `GroupSettings.filters`."""
    if filters is None:
        return None
    return TagFilters(topics=[TagFilter(topic=topic, tags=tags) for topic, tags in filters])


# --- in a snapshot -----------------------------------------------------------------------------


def filters_record(group: str, version: int, filters: Filters) -> bytes:
    """The record of one version of a group's settings."""
    topics = [
        b"".join((pack_text(topic), _COUNT.pack(len(tags)), *map(_packed_tag, tags)))
        for topic, tags in filters
    ]
    return b"".join((pack_text(group), _HEAD.pack(version, len(topics)), *topics))


def _packed_tag(tag: str) -> bytes:
    """By the bound on tags: whatever was accepted has to be written."""
    return pack_text(tag, MAX_TAGS_BYTES)


def take_filters(reader: PayloadReader) -> Iterator[tuple[str, int, Filters]]:
    """Group, version and filters, as `filters_record` wrote them, up to the payload's end.

    Raises:
        SnapshotDamaged: they can't be.
    """
    while not reader.is_at_end:
        group = reader.take_text()
        version, count = reader.take(_HEAD)
        filters = tuple(_take_topic(reader) for _ in range(count))
        why = malformed(filters, tuple(topic for topic, _ in filters))
        if why:
            raise SnapshotDamaged(SECTION, "filters that can be", why)
        yield group, version, filters


def _take_topic(reader: PayloadReader) -> tuple[str, Tags]:
    topic = reader.take_text()
    (count,) = reader.take(_COUNT)
    return topic, tuple(reader.take_text() for _ in range(count))
