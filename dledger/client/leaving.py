"""How the block of a producer, a client or a push consumer is left.

This owns which ends have no time to flush, and who is told of the sends that failed as one had. It
must never let messages go in silence: a generator that nobody asks for more ends like any block.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger.client.errors import SendsFailed

# They aren't errors either, and nobody is in a hurry: a generator is closed, the program ends.
_ORDERLY: Final = (Exception, GeneratorExit, SystemExit)
_log = logging.getLogger("dledger.client")


def is_hurried(kind: type[BaseException] | None) -> bool:
    """Whether a block that ends with this waits for nothing: who is cancelled, or interrupted."""
    return kind is not None and not issubclass(kind, _ORDERLY)


def tell(failed: SendsFailed, error: BaseException | None) -> None:
    """Who leaves a block, by `error` or without one, knows what failed. An error stays the one that
    is raised, and has a note of it. Nobody sees the note of a `SystemExit`, which has the program's
    exit code to keep: the log is told.

    Raises:
        SendsFailed: there is no error; or it is a generator's end, which its `close` swallows.
    """
    if error is None or isinstance(error, GeneratorExit):
        raise failed
    error.add_note(str(failed))
    if isinstance(error, SystemExit):
        _log.error("as the program ends: %s", failed)
