"""Messages as a consumer would hand them over, for tests of what works on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger.client import Message
from dledger.client.routing import labels
from dledger.records.record import FIXED_SIZE

HOST: Final = ("127.0.0.1", 9_999)
TIME_MS: Final = 1_700_000_000_000


def make_message(
    topic: str,
    body: bytes,
    *,
    key: str | None = None,
    tag: str | None = None,
    properties: Mapping[str, str] | None = None,
    queue_offset: int = 0,
) -> Message:
    """The message in queue 0 of `topic`, with the labels that `Producer.send` would give it.

    Raises:
        InvalidArgument: `Producer.send` would refuse the labels.
    """
    raw = labels(key, tag, properties)
    return Message(
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        physical_offset=1_000 + 1_000 * queue_offset,
        born_time_ms=TIME_MS,
        born_host=HOST,
        store_time_ms=TIME_MS,
        store_host=HOST,
        body=body,
        raw_properties=raw,
        flag=0,
        reconsume_times=0,
        sysflag=0,
        size=FIXED_SIZE + len(body) + 1 + len(topic) + 2 + len(raw),
    )
