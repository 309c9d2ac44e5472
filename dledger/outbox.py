"""Messages on their way to one stream, bounded in bytes and count."""

from __future__ import annotations

import asyncio
from collections import deque

from dledger.wire.raft_pb2 import PeerMessage

OUTBOX_BYTES = 32 << 20  # past this a message is dropped; the core's windows stay far below
OUTBOX_MESSAGES = 4_096


class Outbox:
    """A queue between who sends, and never waits, and the task that writes to the stream."""

    def __init__(self) -> None:
        self._messages: deque[tuple[PeerMessage, int]] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, message: PeerMessage) -> bool:
        """Queues `message`; False when it was dropped, because of the bound or the end."""
        size = _bytes_of(message)
        full = self._bytes + size > OUTBOX_BYTES or len(self._messages) >= OUTBOX_MESSAGES
        if self._closed or (full and self._messages):
            return False
        self._messages.append((message, size))
        self._bytes += size
        self._ready.set()
        return True

    def close(self) -> None:
        """Ends the iteration once the present message is out."""
        self._closed = True
        self._ready.set()

    async def get(self) -> PeerMessage | None:
        """The next message; None once closed."""
        while not self._messages and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        if self._closed:
            return None
        message, size = self._messages.popleft()
        self._bytes -= size
        return message


def _bytes_of(message: PeerMessage) -> int:
    """Of what it carries that may be much; the rest is bounded by the count of messages."""
    match message.WhichOneof("body"):
        case "append_request":
            return message.append_request.frames_size
        case "entries_response":
            return message.entries_response.frames_size
        case "snapshot_response":
            return len(message.snapshot_response.piece)
        case _:
            return 0
