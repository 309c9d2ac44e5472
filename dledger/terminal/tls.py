"""Which certificates a command uses: three variables of the environment, and options that set them.

Variables, because a command starts others (an engine's workers, nodes of a local group), and since
a shell that talks to one broker group all day sets them once.
"""

from __future__ import annotations

import os
from pathlib import Path

from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.tls import TlsFiles, TlsMaterial, read_material

CA_VARIABLE = "DLEDGER_TLS_CA"
CERTIFICATE_VARIABLE = "DLEDGER_TLS_CERTIFICATE"
KEY_VARIABLE = "DLEDGER_TLS_KEY"


def chosen_files() -> TlsFiles | None:
    """The files that the environment names; None: connections in the clear.

    Raises:
        CredentialUnusable: only some of those that go together are named.
    """
    ca, certificate, key = map(_path, (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    if certificate is not None and key is None:
        raise CredentialUnusable(certificate, f"its key is missing: {KEY_VARIABLE} or --tls-key")
    if key is not None and certificate is None:
        missing = f"its certificate is missing: {CERTIFICATE_VARIABLE} or --tls-certificate"
        raise CredentialUnusable(key, missing)
    if ca is None:
        if certificate is not None:
            missing = f"who is believed is missing: {CA_VARIABLE} or --tls-ca"
            raise CredentialUnusable(certificate, missing)
        return None
    return TlsFiles(ca, certificate, key)


def chosen_material() -> TlsMaterial | None:
    """What those files hold.

    Raises:
        CredentialUnusable: they can't be used.
    """
    files = chosen_files()
    return None if files is None else read_material(files)


def choose(ca: Path | None, certificate: Path | None, key: Path | None) -> None:
    """What options say goes before what the environment does, here and in what is started."""
    given = {CA_VARIABLE: ca, CERTIFICATE_VARIABLE: certificate, KEY_VARIABLE: key}
    os.environ.update({name: str(path.absolute()) for name, path in given.items() if path})


def forget() -> None:
    """The command turns out to be about a local group, which has no certificates."""
    for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE):
        os.environ.pop(name, None)


def _path(variable: str) -> Path | None:
    named = os.environ.get(variable, "")
    return Path(named) if named else None
