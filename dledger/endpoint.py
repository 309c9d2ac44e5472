"""The metrics endpoint: a small HTTP server that strangers can't fill.

It answers GET with what it is given and knows nothing of metrics. Everything is bounded where it
begins: connections at once, the bytes of a request, and the time from the first of them to the last
byte of the answer. One thread with an event loop of its own serves them all; each connection
carries one request. Prometheus and curl need no more of HTTP than this (RFC 9112).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from threading import Thread
from typing import Final

MAX_CONNECTIONS: Final = 32  # at once; one more is closed unheard
MAX_HEAD_BYTES: Final = 8 << 10
REQUEST_S: Final = 5.0  # to say all of a request
ANSWER_S: Final = 10.0  # to take all of the answer
PATHS: Final = ("/", "/metrics")
HEAD_END: Final = b"\r\n\r\n"

# The type of the text, and the text. Called in the endpoint's thread; raises TimeoutError where
# there is none now.
Text = Callable[[], tuple[str, bytes]]


class Endpoint:
    """Answers from `open` to `close`.

    Args:
        text: what a GET is answered with.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._over = asyncio.Event()
        self._busy: set[asyncio.Task[None]] = set()

    def open(self, host: str, port: int) -> int:
        """Listens; the port, for those who asked for any (0).

        Raises:
            OSError: the address can't be had.
        """
        listening = socket.create_server((host, port))
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, args=(self._loop, listening), name="metrics")
        self._thread.daemon = True
        self._thread.start()
        found: int = listening.getsockname()[1]
        return found

    def close(self) -> None:
        """No connection is left; none was there before `open`."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        try:
            loop.run_until_complete(self._listen(listening))
        finally:
            loop.close()

    async def _listen(self, listening: socket.socket) -> None:
        server = await asyncio.start_server(self._accept, sock=listening, limit=MAX_HEAD_BYTES)
        await self._over.wait()
        server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._busy) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._busy.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # it broke off, said too much, or took too long: there is nobody to tell
        except asyncio.CancelledError:
            pass  # the end; asyncio would complain of a handler that was cancelled
        finally:
            self._busy.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_S):
            head = await reader.readuntil(HEAD_END)
        status, kind, body = self._answer(head)
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        writer.write("\r\n".join(lines).encode() + HEAD_END)
        if not head.startswith(b"HEAD "):
            writer.write(body)
        async with asyncio.timeout(ANSWER_S):
            await writer.drain()
            writer.write_eof()
            # Until the other end has read it and closes: to abort sooner could take it back.
            with contextlib.suppress(ConnectionError):
                while await reader.read(MAX_HEAD_BYTES):
                    pass

    def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        """Status, type and body for a request that begins so."""
        plain = "text/plain; charset=utf-8"
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", plain, b"that is no HTTP/1.1\n"
        if words[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", plain, b"use GET\n"
        if words[1].partition(b"?")[0].decode("latin-1") not in PATHS:
            return "404 Not Found", plain, b"there is /metrics\n"
        try:
            kind, body = self._text()
        except TimeoutError:
            return "503 Service Unavailable", plain, b"the node is too busy to say\n"
        return "200 OK", kind, body
