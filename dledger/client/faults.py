"""What the client does about its own defects: it tells of them, and keeps its promises.

An exception that nobody foresaw must end neither a task that others wait for nor a callback that
was to arm the next one. So everything that the event loop runs for the client has a boundary of
this kind: whatever comes there is told to the loop's exception handler, as asyncio does with its
own, and becomes a `ClientFault` for those whom it concerns. Nothing else in the client catches
what it doesn't know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dledger.client.errors import ClientError, ClientFault
from dledger.outcome import Outcome


def fault(
    doing: str,
    error: Exception,
    outcome: Outcome = Outcome.DID_NOT_HAPPEN,
    *,
    retriable: bool = False,
) -> ClientFault:
    """The error for those who wait for what `error` has stopped; the loop's handler is told.

    Args:
        doing: what the client was at, as a noun.
    """
    loop = asyncio.get_running_loop()
    loop.call_exception_handler(
        {"message": f"dledger.client: {doing} failed unexpectedly", "exception": error}
    )
    text = f"{doing} failed unexpectedly: {type(error).__name__}: {error}"
    told = ClientFault(text, outcome=outcome, retriable=retriable)
    told.__cause__ = error
    return told


def client_error(doing: str, error: Exception) -> ClientError:
    """`error` as one that callers expect: itself, or a fault with it as its cause."""
    return error if isinstance(error, ClientError) else fault(doing, error)


@contextmanager
def contained(doing: str, otherwise: Callable[[ClientFault], None] | None = None) -> Iterator[None]:
    """What is done within ends here if it fails; `otherwise` is then called in its place."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the boundary that this module is about
        told = fault(doing, error)
        if otherwise is not None:
            otherwise(told)
