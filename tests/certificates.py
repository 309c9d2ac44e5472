"""Certificates for tests, made by the commands that a user has."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from dledger.credentials.tls import TlsFiles
from dledger_cli.certs import app


def certs(*arguments: str) -> str:
    """What `dledger certs …` printed; it succeeded."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


class Authority:
    """A folder with an authority in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certs("authority", str(folder))

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def node(self, name: str, broker_group: str = "g1") -> dict[str, str]:
        """`[tls]` of a node that has a certificate."""
        where = ["--broker-group", broker_group, "--host", "127.0.0.1"]
        certs("node", str(self.folder), name, *where)
        return self.files(name)

    def client(self, name: str = "client") -> TlsFiles:
        certs("client", str(self.folder), name)
        return TlsFiles(self.ca, self.folder / f"{name}.pem", self.folder / f"{name}.key")

    def files(self, name: str) -> dict[str, str]:
        return {
            "ca": str(self.ca),
            "certificate": str(self.folder / f"{name}.pem"),
            "key": str(self.folder / f"{name}.key"),
        }

    def expired_node(self, name: str, broker_group: str = "g1") -> dict[str, str]:
        """The same, believed until yesterday."""
        return self.odd_node(name, broker_group, days=(-9, -1))

    def odd_node(
        self,
        name: str,
        broker_group: str = "g1",
        *,
        days: tuple[int, int] = (-1, 9),
        names: Sequence[str] = (),
    ) -> dict[str, str]:
        """The same, signed by hand, since no command makes such: believed on those days from now,
        and for these DNS names instead of its own."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization

        files = self.node(name, broker_group)
        path = Path(files["certificate"])
        good = x509.load_pem_x509_certificate(path.read_bytes())
        key = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(good.subject)
            .issuer_name(good.issuer)
            .public_key(good.public_key())
            .serial_number(good.serial_number)
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
        )
        others = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        for extension in good.extensions:
            is_names = isinstance(extension.value, x509.SubjectAlternativeName)
            value = others if names and is_names else extension.value
            builder = builder.add_extension(value, extension.critical)
        signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return files
