"""TLS: whose certificates are believed, and which name stands for which node.

One authority per broker group (or several groups) signs the nodes' certificates, and those of
clients where clients must show one. A node's certificate carries, beside the host names that
clients dial, the DNS name `<node id>.<broker group>.dledger`: a peer is dialed under that name and
believed under that name only, so a certificate of another node, group or client opens no peer
stream. Files are read again when they have changed: by servers at each handshake, by peers at each
dial, by clients at each connection to a node.

This owns files, names and credentials. It must never fall back to a connection without TLS, and an
unreadable new file leaves what was read before in force. So does a new certificate that isn't valid
by a node's clock while the one before is: signed where the clock is a day ahead, nobody would
believe the node before tomorrow. Whom to believe is taken from the new files at once all the same.

    read ─ valid by the clock, or what is in force isn't either ─▶ in force
      └─ not yet ─▶ waits ─ valid, or what is in force isn't any more ─▶ in force
"""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc

from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import read_credential
from dledger.credentials.validity import validity_of

_NAMES: Final = "x509_subject_alternative_name"
_CERTIFICATE: Final = "x509_pem_cert"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files lie.

    Attributes:
        ca: the authorities that are believed, one or more.
        certificate: of this program, with what links it to an authority behind it; None for a
            client that shows none.
        key: of that certificate, not encrypted; only its owner may read it.
        revoked: SHA-256 fingerprints of certificates that are believed no longer, a line each, as
            64 hexadecimal digits with or without colons; `#` begins a comment.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
    revoked: Path | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key", "revoked"):
            if isinstance(getattr(self, name), str):  # as other libraries take it
                object.__setattr__(self, name, Path(getattr(self, name)))
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key come together")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What was read from the files.

    Attributes:
        shows: handshakes in which the certificate is shown; None without one.
        checks: handshakes in which the other side's is asked for, and its authority checked.
    """

    ca: bytes
    certificate: bytes | None
    key: bytes | None
    shows: ssl.SSLContext | None
    checks: ssl.SSLContext
    revoked: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return "TlsMaterial(...)"  # The key belongs into no log.

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For who dials."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """For who is dialed."""
        assert self.key is not None
        assert self.certificate is not None
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.ca)


class TlsSource:
    """The files' material, read again when one of them has changed.

    Args:
        on_error: is told why changed files weren't taken; may be called by any thread.
        now_ms: the wall clock that certificates must be valid by; None: nobody asks for that.
    """

    def __init__(
        self,
        files: TlsFiles,
        on_error: Callable[[CredentialUnusable], None],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Raises:
        CredentialUnusable: they can't be used.
        """
        self._files = files
        self._on_error = on_error
        self._now_ms = now_ms
        self._waiting: TlsMaterial | None = None
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._material = read_material(files)

    def material(self) -> TlsMaterial:
        """As of now; what was read before as long as the files can't be used. From any thread."""
        with self._lock:
            return self._now()

    def _now(self) -> TlsMaterial:
        stamps, waiting = self._look(), self._waiting
        if stamps != self._stamps:
            self._waiting = None
            try:
                self._take(read_material(self._files))
            except CredentialUnusable as error:
                self._on_error(error)
            # Either way nothing is read again before the next change: a pair of files is
            # replaced one after the other, and each of the two is a change.
            self._stamps = stamps
        elif waiting is not None and not self._has_to_wait(waiting):
            self._material, self._waiting = waiting, None
        return self._material

    @property
    def waiting(self) -> TlsMaterial | None:
        """What was read and isn't shown, as it isn't valid by the clock; None: nothing waits."""
        return self._waiting

    def _take(self, new: TlsMaterial) -> None:
        """It is in force, but for a certificate that has to wait.

        Raises:
            CredentialUnusable: it has.
        """
        old = self._material
        if not self._has_to_wait(new):
            self._material = new
            return
        self._waiting = new
        self._material = replace(new, certificate=old.certificate, key=old.key, shows=old.shows)
        assert self._files.certificate is not None
        reason = "isn't valid by this node's clock; the one before is, and is shown until then"
        raise CredentialUnusable(self._files.certificate, reason)

    def _has_to_wait(self, new: TlsMaterial) -> bool:
        """Whether nobody with this clock would believe it, but what is in force."""
        if self._now_ms is None or new.certificate is None:
            return False
        now_ms = self._now_ms()
        old, its = validity_of(self._material.certificate), validity_of(new.certificate)
        return bool(old and its and old.holds(now_ms) and not its.holds(now_ms))

    def server_credentials(self, *, asks_for_certificate: bool) -> grpc.ServerCredentials:
        """For a server whose new connections are under the files of their time."""
        served = [self._material]

        def changed() -> grpc.ServerCertificateConfiguration | None:
            now = self.material()
            if now is served[0]:
                return None
            served[0] = now
            return now.server_configuration()

        return grpc.dynamic_ssl_server_credentials(
            served[0].server_configuration(),
            changed,  # type: ignore[arg-type]  # None for no change, which the stubs don't know
            asks_for_certificate,
        )

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = self._files
        paths = (files.ca, files.certificate, files.key, files.revoked)
        return tuple(_stamp(path) for path in paths if path is not None)


def read_material(files: TlsFiles) -> TlsMaterial:
    """The files' content, checked: they are PEM, and the key is the certificate's.

    Raises:
        CredentialUnusable: one of them can't be used.
    """
    ca = read_credential(files.ca)
    checks = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    checks.check_hostname = False  # Names are compared byte by byte, by whoever asks.
    checks.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        checks.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise CredentialUnusable(files.ca, f"holds no certificates in PEM: {error}") from None
    certificate = key = shows = None
    if files.certificate is not None and files.key is not None:
        certificate, key = (
            read_credential(files.certificate),
            read_credential(files.key, is_private=True),
        )
        shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shows.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            # Without a password: a key that asks for one would make the node wait at a terminal.
            shows.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (ssl.SSLError, ValueError, OSError) as error:
            reason = f"with {files.key} it is no certificate and its key in PEM ({error})"
            raise CredentialUnusable(files.certificate, reason) from None
    revoked = frozenset[str]() if files.revoked is None else _fingerprints(files.revoked)
    return TlsMaterial(ca, certificate, key, shows, checks, revoked)


def peer_name(broker_group: str, node: str) -> str:
    """The DNS name that a node's certificate must carry for peers to believe it."""
    return f"{node}.{broker_group}.dledger"


def refusal_of(
    auth: Mapping[str, Iterable[bytes]], expected_name: str, revoked: frozenset[str]
) -> str | None:
    """Why who showed this certificate isn't who is called so; None if it is.

    Args:
        auth: of a gRPC call that the authority's signature has been checked for.
    """
    shown = [each.decode("ascii", "replace") for each in auth.get(_NAMES, ())]
    return refusal_of_names(shown, fingerprint_of(auth), expected_name, revoked)


def refusal_of_names(
    shown: Sequence[str], found: str | None, expected_name: str, revoked: frozenset[str]
) -> str | None:
    """The same of a certificate with these names and this fingerprint."""
    if not shown:
        return "no certificate with a name was shown"
    if expected_name not in shown:  # Not by a pattern: a wildcard stands for no node.
        return f"its certificate is for {', '.join(shown)}, not for {expected_name}"
    if found is None or found in revoked:
        return f"its certificate is revoked (SHA-256 {found})"
    return None


def fingerprint_of(auth: Mapping[str, Iterable[bytes]]) -> str | None:
    """SHA-256 of the certificate of a gRPC call, in lower-case hexadecimal; None without one."""
    for pem in auth.get(_CERTIFICATE, ()):
        return fingerprint(pem.decode("ascii"))
    return None


def fingerprint(pem: str) -> str:
    """SHA-256 of a certificate's DER bytes, as `openssl x509 -fingerprint -sha256` takes it."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def open_blocking_channel(
    address: str, options: Sequence[tuple[str, object]], material: TlsMaterial | None
) -> grpc.Channel:
    """`open_channel` for threads."""
    if material is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, material.channel_credentials(), options=options)


def open_channel(
    address: str,
    options: Sequence[tuple[str, object]],
    material: TlsMaterial | None,
    name: str | None = None,
) -> grpc.aio.Channel:
    """A channel, under TLS if there is material for it.

    Args:
        name: what the other side's certificate must be for, if not for the host in `address`.
    """
    if material is None:
        return grpc.aio.insecure_channel(address, options=options)
    if name is not None:
        options = (*options, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(address, material.channel_credentials(), options=options)


def _fingerprints(path: Path) -> frozenset[str]:
    found = set()
    for number, line in enumerate(read_credential(path).decode("utf-8", "replace").splitlines(), 1):
        told = line.partition("#")[0].strip().replace(":", "").lower()
        if not told:
            continue
        if len(told) != 64 or not set(told) <= set("0123456789abcdef"):
            # A list that is half understood would let somebody in.
            raise CredentialUnusable(path, f"line {number} is no SHA-256 fingerprint")
        found.add(told)
    return frozenset(found)


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
