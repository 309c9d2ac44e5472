"""What a node's process can tell of where it lives: its disk's free space, its clock, and from when
until when its certificates are valid, which others judge by theirs.

Asked when somebody looks, so it must be quick and never fail: what can't be told is None. A full
`statvfs` of a local file system reads counters in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dledger.credentials.tls import TlsMaterial, TlsSource
from dledger.credentials.validity import validity_of
from store.files import FileSystem


@dataclass(frozen=True, slots=True)
class Premises:
    """As of one moment; times in milliseconds since the epoch.

    Attributes:
        free_bytes: of the disk.
        certificate_expires_ms: the first of those that the node shows or believes.
        certificate_begins_ms: the last of those that it shows.
        next_certificate_ms: the same of a newer one in its files, which isn't shown as it isn't
            valid by the node's clock; None: there is none.
        now_ms: what that clock shows.
    """

    free_bytes: int | None = None
    certificate_expires_ms: int | None = None
    certificate_begins_ms: int | None = None
    next_certificate_ms: int | None = None
    now_ms: int | None = None


def nothing_known() -> Premises:
    """Of a replica that isn't a process of its own."""
    return Premises()


class Surveyor:
    """Looks at the premises of one process."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        tls: Callable[[], TlsSource | None],
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self._tls = tls
        self._now_ms = now_ms
        self._seen: tuple[TlsMaterial | None, int | None, int | None] = (None, None, None)

    def look(self) -> Premises:
        """As of now."""
        free: int | None = None
        with contextlib.suppress(OSError):
            free = self._files.free_bytes(self._directory)
        now_ms, source = self._now_ms(), self._tls()
        if source is None:
            return Premises(free, now_ms=now_ms)
        material = source.material()
        if material is not self._seen[0]:
            self._seen = (material, first_expiry_ms(material), _begins_ms(material))
        _, expires_ms, begins_ms = self._seen
        return Premises(free, expires_ms, begins_ms, _begins_ms(source.waiting), now_ms)


def first_expiry_ms(material: TlsMaterial) -> int | None:
    """When the first of the certificates expires: the node's, with what links it to an authority,
    and the authorities'; None if they can't be read for that."""
    found = [validity_of(pem) for pem in (material.certificate, material.ca)]
    return min((each.ends_ms for each in found if each is not None), default=None)


def _begins_ms(material: TlsMaterial | None) -> int | None:
    """From when on what is shown is valid; None: nothing is, or it can't be read for that."""
    found = None if material is None else validity_of(material.certificate)
    return None if found is None else found.begins_ms
