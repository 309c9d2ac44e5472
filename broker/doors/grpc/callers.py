"""Whose certificate is believed no longer, asked as each call of a client begins.

TLS has checked the authority and the dates as the connection was made; the list of fingerprints is
this program's own matter. Its file is looked at once a second at most, so most calls cost nothing.
"""

from __future__ import annotations

import time
from typing import Final

from broker.doors.grpc.errors import Context
from dledger.credentials.tls import TlsSource, fingerprint_of

LOOKED_AT_EVERY_S: Final = 1.0


class RevokedCallers:
    """`RefusalOf`, for an address where everybody shows a certificate."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._revoked = frozenset[str]()
        self._look_again = 0.0

    def __call__(self, context: Context) -> str | None:
        """Why the caller isn't served; None if it is."""
        now = time.monotonic()
        if now >= self._look_again:
            self._revoked = self._source.material().revoked
            self._look_again = now + LOOKED_AT_EVERY_S
        if not self._revoked:
            return None
        found = fingerprint_of(context.auth_context())
        if found is None or found in self._revoked:
            return f"the caller's certificate is revoked (SHA-256 {found})"
        return None
