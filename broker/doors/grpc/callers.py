"""Whose certificate is believed no longer, asked as each call of a client begins, and while streams
go on: members of consumer groups keep their queues by one, and it has no other end.

TLS has checked the authority and the dates as the connection was made; the list of fingerprints is
this program's own matter. Its file is looked at once a second at most, so most calls cost nothing;
streams are asked about only once the list is another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from broker.doors.grpc.errors import Context
from dledger.credentials.tls import TlsSource, fingerprint_of

log = structlog.get_logger(__name__)

LOOKED_AT_EVERY_S: Final = 1.0


STREAMS_CHECKED_EVERY_S: Final = 2.0
CHECKED_AT_ONCE: Final = 64  # streams, in one turn of the event loop


class RevokedCallers:
    """`Callers`, for an address where everybody shows a certificate."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._revoked = frozenset[str]()
        self._look_again = 0.0
        self._streams: dict[Context, Callable[[str], None]] = {}  # how each is ended
        self._checked: frozenset[str] | None = frozenset()  # of these no stream is; None: who knows
        self._timer: asyncio.TimerHandle | None = None

    def refusal_of(self, context: Context) -> str | None:
        """Why the caller isn't served; None if it is."""
        self._look()
        if not self._revoked:
            return None
        found = fingerprint_of(context.auth_context())
        if found is None or found in self._revoked:
            return f"the caller's certificate is revoked (SHA-256 {found})"
        return None

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._look_again:
            self._revoked = self._source.material().revoked
            self._look_again = now + LOOKED_AT_EVERY_S

    def lasts(self, context: Context, end: Callable[[str], None]) -> None:
        """See `Callers`."""
        self._streams[context] = end
        self._set_timer()

    def is_over(self, context: Context) -> None:
        """See `Callers`."""
        self._streams.pop(context, None)

    def _set_timer(self) -> None:
        if self._timer is None and self._streams:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(STREAMS_CHECKED_EVERY_S, self._check)

    def _check(self) -> None:
        try:
            self._look()
            if self._revoked != self._checked:
                self._checked = self._revoked
                self._check_some(list(self._streams))
        finally:  # whatever befell this look, there is another
            self._timer = None
            self._set_timer()

    def _check_some(self, left: list[Context]) -> None:
        some, left = left[:CHECKED_AT_ONCE], left[CHECKED_AT_ONCE:]
        for context in some:
            try:
                end = self._streams.get(context)
                if end is not None and (reason := self.refusal_of(context)) is not None:
                    end(reason)
            except Exception:  # nobody else would hear of it, and others are to be looked at
                log.exception("certificate_not_checked")
                self._checked = None
        if left:
            asyncio.get_running_loop().call_soon(self._check_some, left)
