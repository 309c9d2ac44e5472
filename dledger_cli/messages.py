"""A message as JSON, the same in `consume` and `query`."""

from __future__ import annotations

import base64

from dledger.client import BodyUnreadable, Message


def message_facts(message: Message) -> dict[str, object]:
    """The JSON object of a message; a body that isn't UTF-8 is in base64, and says so. One that
    can't be decompressed is there as it is stored, and `body_error` says why."""
    error: str | None = None
    try:
        body, encoding = message.body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(message.body).decode("ascii"), "base64"
    except BodyUnreadable as unreadable:
        body, encoding = base64.b64encode(message.stored_body).decode("ascii"), "base64"
        error = unreadable.message
    facts: dict[str, object] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "keys": message.keys,
        "tags": message.tags,
        "properties": dict(message.properties),
        "born_time_ms": message.born_time_ms,
        "store_time_ms": message.store_time_ms,
        "body": body,
        "body_encoding": encoding,
    }
    return facts if error is None else facts | {"body_error": error}
