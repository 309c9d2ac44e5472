"""What a node's process can tell of where it lives: its disk's free space, its certificates' end.

Asked when somebody looks, so it must be quick and never fail: what can't be told is None. A full
`statvfs` of a local file system reads counters in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dledger.credentials.tls import TlsMaterial, TlsSource
from store.files import FileSystem


@dataclass(frozen=True, slots=True)
class Premises:
    """Bytes that are free on the disk; when the first of the certificates that the node shows or
    believes expires, in milliseconds since the epoch."""

    free_bytes: int | None = None
    certificate_expires_ms: int | None = None


def nothing_known() -> Premises:
    """Of a replica that isn't a process of its own."""
    return Premises()


class Surveyor:
    """Looks at the premises of one process."""

    def __init__(
        self, files: FileSystem, directory: Path, tls: Callable[[], TlsSource | None]
    ) -> None:
        self._files = files
        self._directory = directory
        self._tls = tls
        self._seen: tuple[TlsMaterial | None, int | None] = (None, None)

    def look(self) -> Premises:
        """As of now."""
        free: int | None = None
        with contextlib.suppress(OSError):
            free = self._files.free_bytes(self._directory)
        return Premises(free, self._expiry())

    def _expiry(self) -> int | None:
        source = self._tls()
        if source is None:
            return None
        material = source.material()
        known, expiry = self._seen
        if material is not known:
            expiry = first_expiry_ms(material)
            self._seen = (material, expiry)
        return expiry


def first_expiry_ms(material: TlsMaterial) -> int | None:
    """When the first of the certificates expires: the node's, with what links it to an authority,
    and the authorities'; None if they can't be read for that."""
    from cryptography import x509  # only nodes with certificates pay for it

    found: list[int] = []
    with contextlib.suppress(ValueError):
        for pem in (material.certificate, material.ca):
            if pem is not None:
                certificates = x509.load_pem_x509_certificates(pem)
                found += [int(each.not_valid_after_utc.timestamp() * 1000) for each in certificates]
    return min(found, default=None)
