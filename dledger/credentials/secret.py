"""A broker group's secret: 32 random bytes in a file, which every node has and nobody else.

This owns the file and the one thing that is done with its content. The secret is never in a text,
a log or a message; how nodes prove to each other that they hold it is `dledger.proof`.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import read_credential, write_private

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class GroupSecret:
    """32 random bytes that every node of a broker group has, and nobody else."""

    _key: bytes = field(repr=False)

    @classmethod
    def load(cls, path: Path) -> GroupSecret:
        """The secret in a file of 64 hexadecimal digits that only its owner may read.

        Raises:
            CredentialUnusable: there is none, it is something else, or others may read it.
        """
        content = read_credential(path, is_private=True)
        try:
            key = bytes.fromhex(content.decode("ascii").strip())
        except ValueError:
            key = b""
        if len(key) != SECRET_BYTES:  # What it holds instead is nobody's business.
            digits = 2 * SECRET_BYTES
            reason = f"holds no secret: {digits} hexadecimal digits are expected"
            raise CredentialUnusable(path, reason) from None
        return cls(key)

    @classmethod
    def create(cls, path: Path) -> GroupSecret:
        """A new secret in a new file, durable, mode 0600.

        Raises:
            CredentialUnusable: it can't be written, or the file exists: none is ever overwritten.
        """
        key = secrets.token_bytes(SECRET_BYTES)
        write_private(path, f"{key.hex()}\n".encode())
        return cls(key)

    def mac(self, *parts: bytes) -> bytes:
        """HMAC-SHA256 of the parts, each with its length before it, so that none runs into the
        next."""
        told = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, told, "sha256")
