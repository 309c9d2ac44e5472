"""From when until when certificates are valid, as their signers wrote.

Whose clock that is compared with is for who asks: both sides of a handshake judge by their own. An
own module, as only nodes ask: a client's program needs nothing to be installed for it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Validity:
    """Of all certificates of a file together, both ends inclusive, in ms since the epoch."""

    begins_ms: int
    ends_ms: int

    def holds(self, now_ms: int) -> bool:
        """Whether who has that clock believes each of them."""
        return self.begins_ms <= now_ms <= self.ends_ms


def validity_of(pem: bytes | None) -> Validity | None:
    """Of the certificates in a file; None: there are none, or they can't be read for that."""
    from cryptography import x509  # only nodes with certificates pay for it

    try:
        found = x509.load_pem_x509_certificates(pem or b"")
    except ValueError:
        return None
    return Validity(
        max(int(each.not_valid_before_utc.timestamp() * 1000) for each in found),
        min(int(each.not_valid_after_utc.timestamp() * 1000) for each in found),
    )
