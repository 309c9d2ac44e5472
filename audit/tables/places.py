"""Where tables lie: folders and addresses of stores, without credentials."""

from __future__ import annotations

import os

from audit.errors import UsageMistake
from dledger.reading.files import names_in
from dledger.reading.objects import is_object, plain


def checked_place(place: str) -> str:
    """The place, as Delta takes it.

    Raises:
        CredentialsShown: it holds credentials.
    """
    plain(place)
    return place


def storage_options() -> dict[str, str]:
    """What Delta's stores aren't told by the environment: that an address without TLS is meant."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    return {"allow_http": "true"} if endpoint.startswith("http://") else {}


def check_is_empty(place: str) -> None:
    """Nothing lies where a table is to be made.

    Raises:
        UsageMistake: something does: the rest of a table, perhaps, or other files.
        OSError: a store doesn't say.
    """
    try:
        is_empty = not names_in(plain(place))
    except FileNotFoundError:
        is_empty = True
    except NotADirectoryError:
        is_empty = False
    if not is_empty:
        raise UsageMistake(f"{place} isn't empty and holds no table (any more)")


def check_bucket(place: str) -> None:
    """The store has the bucket that the place is in, and says so to whoever is asking.

    Raises:
        UsageMistake: it hasn't.
        OSError: it doesn't say.
    """
    scheme, _, inner = plain(place).partition("://")
    bucket = inner.partition("/")[0]
    if is_object(place) and bucket:
        try:
            names_in(f"{scheme}://{bucket}")
        except FileNotFoundError as error:
            raise UsageMistake(f"{place}: there is no bucket {bucket!r}") from error
