"""What a process tells of where it lives."""

from __future__ import annotations

import time
from pathlib import Path

from broker.premises import Premises, Surveyor, first_expiry_ms
from dledger.credentials.tls import TlsFiles, TlsSource, read_material
from store.files import OsFiles
from tests.certificates import Authority

DAY_MS = 24 * 3600 * 1000


def files_of(told: dict[str, str]) -> TlsFiles:
    return TlsFiles(Path(told["ca"]), Path(told["certificate"]), Path(told["key"]))


def in_days(expiry_ms: int | None) -> float:
    assert expiry_ms is not None
    return (expiry_ms - time.time() * 1000) / DAY_MS


def test_first_certificate_to_expire_counts(tmp_path: Path) -> None:
    """The node's own, or the authority's if that ends sooner; past ones, too."""
    authority = Authority(tmp_path)
    short = read_material(files_of(authority.odd_node("n1", days=(-1, 9))))
    assert 8.9 < in_days(first_expiry_ms(short)) < 9.1
    long = read_material(files_of(authority.odd_node("n2", days=(-1, 99_999))))
    assert in_days(first_expiry_ms(long)) < 40_000, "the authority's"
    gone = read_material(files_of(authority.expired_node("n3")))
    assert in_days(first_expiry_ms(gone)) < 0


def test_new_files_are_looked_at(tmp_path: Path) -> None:
    """As nodes read them again when they change."""
    authority = Authority(tmp_path)
    files = files_of(authority.odd_node("n1", days=(-1, 9)))
    source = TlsSource(files, lambda error: None)
    surveyor = Surveyor(OsFiles(), tmp_path, lambda: source)
    assert in_days(surveyor.look().certificate_expires_ms) < 10
    longer = authority.odd_node("n2", days=(-1, 99))
    for old, new in ((files.key, longer["key"]), (files.certificate, longer["certificate"])):
        assert old is not None
        Path(new).replace(old)
    assert in_days(surveyor.look().certificate_expires_ms) > 90


def test_what_cannot_be_told_is_nothing(tmp_path: Path) -> None:
    """No certificates; a directory that is gone. Never an error: it is asked for a status."""
    here = Surveyor(OsFiles(), tmp_path, lambda: None).look()
    assert here.certificate_expires_ms is None
    assert here.free_bytes is not None
    assert here.free_bytes > 0
    assert Surveyor(OsFiles(), tmp_path / "gone", lambda: None).look() == Premises()
