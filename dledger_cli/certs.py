"""`dledger certs`: an authority for tests and small groups, and a broker group's secret.

Who has an authority of their own uses that one; what a node's certificate must carry is told by
`dledger certs name`. Keys are elliptic (P-256), made here, written with mode 0600 and never shown;
nothing that exists is overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dledger.addresses import split_address
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import read_credential, write_private
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import fingerprint, peer_name
from dledger.terminal.outcome import errors_told

AUTHORITY = "ca"
CLOCK_SLACK = datetime.timedelta(minutes=5)  # of machines that don't agree on the time
DEFAULT_DAYS = 825
MAX_DAYS = 36_500

app = typer.Typer(
    no_args_is_help=True, help="Certificates and secrets that tell members from strangers."
)

PEER_NAMES = ".dledger"  # what the names end with that peers are believed under
_NAME = re.compile(
    r"[A-Za-z0-9_-]{1,64}"
)  # of nodes and broker groups, as configurations take them
_CLIENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def _checked_name(name: str) -> str:
    """Anything else could be another node's name, or a pattern that fits all of them."""
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("1 to 64 characters of A-Z, a-z, 0-9, _ and -")
    return name


def _checked_client(name: str) -> str:
    if not _CLIENT.fullmatch(name):
        raise typer.BadParameter("1 to 64 of A-Z, a-z, 0-9, _, - and dots, no dot or - first")
    return name


def _checked_hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        try:
            split_address(f"[{host}]:1" if ":" in host else f"{host}:1")
        except ValueError:
            raise typer.BadParameter(f"{host!r} is no host name and no IP address") from None
        if f".{host.lower()}".endswith(PEER_NAMES):
            raise typer.BadParameter(f"{host!r} would be a node's name, not a host's")
    return hosts


FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the authority: ca.pem and ca.key.")
]
DaysOption = Annotated[
    int, typer.Option("--days", min=1, max=MAX_DAYS, help="How long it is believed.")
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--broker-group", metavar="NAME", help="The node's broker group.", callback=_checked_name
    ),
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The node's id.", callback=_checked_name)
]


@app.command()
def authority(folder: FolderArgument, days: DaysOption = 3_650) -> None:
    """Make an authority: DIR/ca.pem, which everybody gets, and DIR/ca.key, which nobody gets.

    \b
    Example:
      dledger certs authority certs
    """
    with errors_told():
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
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
        _write(folder, AUTHORITY, key, signed)


@app.command()
def node(
    folder: FolderArgument,
    node_id: NodeArgument,
    broker_group: GroupOption,
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME",
            help="Host name or address that clients dial.",
            callback=_checked_hosts,
        ),
    ],
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Make a node's certificate and key: DIR/ID.pem and DIR/ID.key.

    \b
    Example:
      dledger certs node certs n1 --broker-group orders --host n1.example --host 10.0.0.1
    """
    with errors_told():
        names = [x509.DNSName(peer_name(broker_group, node_id)), *map(_host, hosts)]
        _sign(folder, node_id, names, days)


@app.command()
def client(
    folder: FolderArgument,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="What the client is called.", callback=_checked_client),
    ],
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Make a client's certificate and key: DIR/NAME.pem and DIR/NAME.key. It opens no peer stream.

    \b
    Example:
      dledger certs client certs billing
    """
    with errors_told():
        _sign(folder, name, [x509.RFC822Name(f"{name}@client.dledger")], days)


@app.command()
def secret(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, mode 0600.")],
) -> None:
    """Make a broker group's secret, for `secret_file` of each of its nodes.

    \b
    Example:
      dledger certs secret group.secret
    """
    with errors_told():
        GroupSecret.create(file)
    typer.echo(f"{file}: a new secret; every node of the group gets the same")


@app.command(name="name")
def name_of(
    node_id: NodeArgument,
    broker_group: GroupOption,
) -> None:
    """Show the DNS name that a node's certificate must carry, for authorities other than this one.

    \b
    Example:
      dledger certs name n1 --broker-group orders
    """
    typer.echo(peer_name(broker_group, node_id))


@app.command(name="fingerprint")
def fingerprint_of(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate in PEM.")],
) -> None:
    """Show a certificate's SHA-256 fingerprint, as a list of revoked ones has it (`tls.revoked`).

    \b
    Example:
      dledger certs fingerprint certs/n3.pem >> certs/revoked
    """
    with errors_told():
        typer.echo(fingerprint(_certificate(file)[0]))


def _sign(folder: Path, name: str, names: list[x509.GeneralName], days: int) -> None:
    """A certificate of the folder's authority, for servers and clients alike."""
    if name == AUTHORITY or Path(name).name != name:
        raise typer.BadParameter(f"{name!r} can't be the name of a file beside the authority's")
    _, issuer = _certificate(folder / f"{AUTHORITY}.pem")
    authority_key = _key(folder / f"{AUTHORITY}.key")
    key = ec.generate_private_key(ec.SECP256R1())
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
    _write(folder, name, key, signed)


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


def _write(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, signed: x509.Certificate
) -> None:
    """The key first: a certificate without one is what a run that was cut short must not leave."""
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    if certificate_file.exists():
        raise CredentialUnusable(certificate_file, "exists; nothing is overwritten")
    secret_bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(key_file, secret_bytes)
    certificate_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    typer.echo(f"{certificate_file}, {key_file}: until {signed.not_valid_after_utc:%Y-%m-%d}")


def _certificate(path: Path) -> tuple[str, x509.Certificate]:
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
