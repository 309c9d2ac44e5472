"""What a process tells of where it lives."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from broker.doctor.finding import Kind
from broker.premises import Premises, Surveyor, first_expiry_ms
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.tls import TlsFiles, TlsMaterial, TlsSource, read_material
from store.files import OsFiles
from tests.broker.test_doctor import VICTIM, health, kinds, well
from tests.certificates import Authority

DAY_MS = 24 * 3600 * 1000


def files_of(told: dict[str, str]) -> TlsFiles:
    return TlsFiles(Path(told["ca"]), Path(told["certificate"]), Path(told["key"]))


def in_days(expiry_ms: int | None) -> float:
    assert expiry_ms is not None
    return (expiry_ms - time.time() * 1000) / DAY_MS


def wall_ms() -> int:
    return int(time.time() * 1000)


def pem_of(material: TlsMaterial) -> bytes:
    assert material.certificate is not None
    return material.certificate


class Exchanged:
    """A node's pair in its files, and one that takes its place; by a clock that is so far ahead."""

    def __init__(self, folder: Path, old: tuple[int, int], new: tuple[int, int]) -> None:
        authority = Authority(folder)
        self.files = files_of(authority.odd_node("n1", days=old))
        self.new = files_of(authority.odd_node("n2", days=new))
        self.told: list[CredentialUnusable] = []
        self.ahead_ms = 0
        self.source = TlsSource(self.files, self.told.append, self._now_ms)
        self.old_pem = pem_of(read_material(self.files))
        self.new_pem = pem_of(read_material(self.new))
        self._surveyor = Surveyor(OsFiles(), folder, lambda: self.source, self._now_ms)

    def _now_ms(self) -> int:
        return wall_ms() + self.ahead_ms

    def exchange(self) -> None:
        for old, new in (
            (self.files.key, self.new.key),
            (self.files.certificate, self.new.certificate),
        ):
            assert old is not None
            assert new is not None
            new.replace(old)

    def shown(self) -> bytes:
        return pem_of(self.source.material())

    def kinds(self) -> list[Kind]:
        """What the doctor finds in what such a node tells."""
        seen = self._surveyor.look()
        told = health(
            certificate_expires_ms=seen.certificate_expires_ms,
            certificate_begins_ms=seen.certificate_begins_ms,
            next_certificate_ms=seen.next_certificate_ms or 0,
            now_ms=seen.now_ms,
        )
        return kinds(told(well(3), VICTIM))


def test_new_certificate_is_shown_once_it_is_valid(tmp_path: Path) -> None:
    """Signed where the clock is a day ahead, nobody would believe it before tomorrow, and the one
    before is believed today."""
    node = Exchanged(tmp_path, (-1, 99), (1, 99))
    node.exchange()
    for _ in range(2):
        assert node.shown() == node.old_pem
        assert node.kinds() == [Kind.CERTIFICATE_WAITS]
    (told,) = node.told
    assert "isn't valid by this node's clock" in str(told)
    node.ahead_ms = DAY_MS + 60_000
    assert node.shown() == node.new_pem
    assert node.kinds() == []
    assert node.told == [told]


def test_new_certificate_waits_no_longer_than_the_one_before_is_valid(tmp_path: Path) -> None:
    """Then either is believed by nobody here, and the new one by others, maybe."""
    node = Exchanged(tmp_path, (-1, 1), (2, 99))
    node.exchange()
    assert node.shown() == node.old_pem
    node.ahead_ms = DAY_MS + 60_000
    assert node.shown() == node.new_pem
    assert node.kinds() == [Kind.CERTIFICATE_EARLY]


def test_certificate_that_has_expired_does_not_take_the_place_of_a_valid_one(
    tmp_path: Path,
) -> None:
    node = Exchanged(tmp_path, (-1, 99), (-9, -1))
    node.exchange()
    assert node.shown() == node.old_pem
    assert node.kinds() == [Kind.CERTIFICATE_WAITS]


def test_next_change_takes_the_place_of_what_waits(tmp_path: Path) -> None:
    """A valid pair is shown at once, and one that can't be used leaves nothing waiting."""
    node = Exchanged(tmp_path, (-1, 99), (1, 99))
    node.exchange()
    assert node.shown() == node.old_pem
    assert node.files.certificate is not None
    node.files.certificate.write_text("garbage")
    node.ahead_ms = 2 * DAY_MS
    assert node.shown() == node.old_pem
    assert node.source.waiting is None


def test_who_is_believed_no_longer_does_not_wait_for_a_certificate(tmp_path: Path) -> None:
    """Only what is shown does."""
    node = Exchanged(tmp_path, (-1, 99), (1, 99))
    revoked = tmp_path / "revoked"
    revoked.write_text("")
    node.files = replace(node.files, revoked=revoked)
    node.source = TlsSource(node.files, node.told.append, node._now_ms)
    node.exchange()
    revoked.write_text("ab" * 32)
    assert node.shown() == node.old_pem
    assert node.source.material().revoked == {"ab" * 32}


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
    surveyor = Surveyor(OsFiles(), tmp_path, lambda: source, wall_ms)
    assert in_days(surveyor.look().certificate_expires_ms) < 10
    longer = authority.odd_node("n2", days=(-1, 99))
    for old, new in ((files.key, longer["key"]), (files.certificate, longer["certificate"])):
        assert old is not None
        Path(new).replace(old)
    assert in_days(surveyor.look().certificate_expires_ms) > 90


def test_what_cannot_be_told_is_nothing(tmp_path: Path) -> None:
    """No certificates; a directory that is gone. Never an error: it is asked for a status."""
    here = Surveyor(OsFiles(), tmp_path, lambda: None, wall_ms).look()
    assert here.certificate_expires_ms is None
    assert here.free_bytes is not None
    assert here.free_bytes > 0
    gone = Surveyor(OsFiles(), tmp_path / "gone", lambda: None, lambda: 7)
    assert gone.look() == Premises(now_ms=7)
