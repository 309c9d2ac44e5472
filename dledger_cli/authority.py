"""An authority in a folder: it signs certificates for nodes and clients.

For tests, benchmarks and small groups. Keys are elliptic (P-256), made here, written with mode 0600
and never shown; nothing that exists is overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import read_credential, write_private, write_public
from dledger.credentials.tls import peer_name

AUTHORITY = "ca"
CLOCK_SLACK = datetime.timedelta(minutes=5)  # of machines that don't agree on the time


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in files, and how long it is believed."""

    certificate: Path
    key: Path
    until: datetime.datetime
    is_key_kept: bool = False  # it was there before, without a certificate


def make_authority(folder: Path, days: int) -> Pair:
    """An authority of its own name in the folder.

    Raises:
        CredentialUnusable: there is one, or nothing can be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, is_kept = _key_of_a_new(folder, AUTHORITY)
    # A name of its own: who believes two authorities at once, as while one replaces the other,
    # looks them up by name.
    called = f"dledger authority {secrets.token_hex(4)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    signed = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return _write(folder, AUTHORITY, signed, is_key_kept=is_kept)


def sign_node(
    folder: Path, node_id: str, broker_group: str, hosts: Sequence[str], days: int
) -> Pair:
    """A node's certificate, by the authority in the folder: for its peers, and for clients.

    Args:
        hosts: names and addresses that clients dial.

    Raises:
        CredentialUnusable: there is no authority, or the node has one.
    """
    names = [x509.DNSName(peer_name(broker_group, node_id)), *map(_host, hosts)]
    return _sign(folder, node_id, names, days)


def sign_client(folder: Path, name: str, days: int) -> Pair:
    """A client's certificate; it opens no peer stream.

    Raises:
        CredentialUnusable: there is no authority, or a certificate of that name.
    """
    return _sign(folder, name, [x509.RFC822Name(f"{name}@client.dledger")], days)


def _sign(folder: Path, name: str, names: list[x509.GeneralName], days: int) -> Pair:
    """For servers and clients alike."""
    if name == AUTHORITY:
        raise CredentialUnusable(folder / f"{name}.pem", "is the authority's")
    _, issuer = certificate_in(folder / f"{AUTHORITY}.pem")
    authority_key = _key(folder / f"{AUTHORITY}.key")
    key, is_kept = _key_of_a_new(folder, name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed = (
        _builder(subject, issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(_issued_by(issuer), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _write(folder, name, signed, is_key_kept=is_kept)


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known.value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_of_a_new(folder: Path, name: str) -> tuple[ec.EllipticCurvePrivateKey, bool]:
    """The key of a certificate that isn't there yet, in its file, and whether it was there. It
    comes first: a certificate without a key is what a run that was cut short must not leave. A key
    that such a run has left is the certificate's after all."""
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    if os.path.lexists(certificate_file):
        raise CredentialUnusable(certificate_file, "exists; nothing is overwritten")
    if os.path.lexists(key_file):
        return _key(key_file), True
    key = ec.generate_private_key(ec.SECP256R1())
    secret_bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(key_file, secret_bytes)
    return key, False


def _write(folder: Path, name: str, signed: x509.Certificate, *, is_key_kept: bool) -> Pair:
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    write_public(certificate_file, signed.public_bytes(serialization.Encoding.PEM))
    return Pair(certificate_file, key_file, signed.not_valid_after_utc, is_key_kept)


def certificate_in(path: Path) -> tuple[str, x509.Certificate]:
    """A certificate as its file has it, and what it says.

    Raises:
        CredentialUnusable: there is none.
    """
    content = read_credential(path)
    try:
        return content.decode("ascii"), x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise CredentialUnusable(path, "holds no certificate in PEM") from error


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    content = read_credential(path, is_private=True)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise CredentialUnusable(path, "holds no private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialUnusable(path, "isn't a key that `dledger certs authority` made")
    return key
