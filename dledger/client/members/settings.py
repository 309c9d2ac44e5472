"""What a member joins with: names, and the settings that its group agrees on."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from dledger.client.arguments import check_tags_of_group, milliseconds
from dledger.client.errors import InvalidArgument
from dledger.client.options import StartFrom
from dledger.wire import commands_pb2 as kpb

GROUP_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,119}")
MAX_TOPICS: Final = 64
TOKEN_SIZE: Final = 8


def group_name(value: object) -> str:
    """`value`, which a consumer group may be called.

    Raises:
        InvalidArgument: it may not.
    """
    if not isinstance(value, str) or not GROUP_PATTERN.fullmatch(value):
        raise InvalidArgument(
            f"group {str(value)[:160]!r}: 1 to 119 characters of A-Z a-z 0-9 _ % -"
        )
    return value


def member_name(given: str) -> str:
    """`given`, or a name that nobody else has."""
    if given:
        return given
    host = socket.gethostname().encode(errors="replace")[:200].decode(errors="replace")
    return f"{host}-{os.getpid()}-{os.urandom(4).hex()}"


def fresh_token() -> bytes:
    """What a new session is asked for with."""
    return os.urandom(TOKEN_SIZE)


def group_settings(
    topics: Iterable[str],
    *,
    version: int = 0,
    broadcast: bool = False,
    in_order: bool = False,
    strategy: str = "STICKY",
    start: StartFrom | datetime = StartFrom.FIRST,
    max_attempts: int | None = None,
    tags: Mapping[str, Collection[str]] | None = None,
) -> kpb.GroupSettings:
    """The settings on the wire.

    Raises:
        InvalidArgument: there are no topics, or too many; too many tags, or too long ones.
    """
    names = sorted(set(topics))
    if not 1 <= len(names) <= MAX_TOPICS:
        raise InvalidArgument(f"a group reads 1 to {MAX_TOPICS} topics, not {len(names)}")
    check_tags_of_group([tag for each in (tags or {}).values() for tag in each])
    settings = kpb.GroupSettings(
        version=version,
        broadcast=broadcast,
        orderly=in_order,
        strategy=strategy,
        start=kpb.START_LAST if start is StartFrom.LAST else kpb.START_FIRST,
        topics=names,
        max_attempts=max_attempts or 0,
    )
    settings.filters.SetInParent()  # says something, if only that every message is wanted
    for topic in sorted(tags or {}):
        settings.filters.topics.add(topic=topic, tags=sorted((tags or {})[topic]))
    if isinstance(start, datetime):
        settings.start = kpb.START_TIME
        settings.start_time_ms = milliseconds("start", start)
    return settings


def queue_choices(queues: Mapping[str, Sequence[int]]) -> list[kpb.QueueChoice]:
    """The queues that a member of strategy CONFIG is to have, by topic."""
    return [kpb.QueueChoice(topic=topic, queue_ids=queues[topic]) for topic in sorted(queues)]
