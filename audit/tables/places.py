"""Where tables lie, and what is said of it: no credential is ever printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from audit.errors import UsageMistake

_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_LOCAL: Final = "file://"
MAX_REASON: Final = 300


def check_place(place: str) -> str:
    """The place, which names no credentials.

    Raises:
        UsageMistake: it does; they aren't repeated.
    """
    if "://" in place and "@" in urlsplit(place).netloc:
        scheme = urlsplit(place).scheme
        raise UsageMistake(
            f"a {scheme} address with credentials in it: leave them to the environment, where "
            "other users of this machine don't see them"
        )
    return place


def storage_options() -> dict[str, str]:
    """What Delta's stores aren't told by the environment: that an address without TLS is meant."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    return {"allow_http": "true"} if endpoint.startswith("http://") else {}


def check_is_empty(place: str) -> None:
    """Nothing lies where a table is to be made.

    Raises:
        UsageMistake: something does: the rest of a table, perhaps, or other files.
    """
    folder = Path(place.removeprefix(_LOCAL))
    if (folder.is_dir() and any(folder.iterdir())) or folder.is_file():
        raise UsageMistake(f"{place} isn't empty and holds no table (any more)")


def first_line(error: BaseException) -> str:
    """What an error of a store's library says first, without secrets, colours and line ends."""
    lines = (_plain(line) for line in str(error).splitlines())
    text = next((line for line in lines if line), type(error).__name__)
    for name in _SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text[:MAX_REASON]


def _plain(line: str) -> str:
    return "".join(each for each in line if each.isprintable()).strip()
