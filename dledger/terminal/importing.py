"""While the program's modules are imported, which takes up to a second: how that ends.

Ctrl-C and SIGTERM end the process at once: nothing is begun in that time, so nothing has to be
tidied up, and an exception would surface wherever a module is half made. Where only the client is
installed, what is missing is told. This itself imports only what the interpreter has brought along.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

OURS = ("dledger", "dledger_cli", "store", "broker", "chaos", "audit")
USED_WRONGLY, INTERRUPTED = 2, 130  # `dledger.outcome.ExitCode`, which may not be imported yet


@contextmanager
def importing() -> Iterator[None]:
    """Meanwhile an interrupt ends the process with 130, without a word; a library that isn't there
    ends it with 2, and is named."""
    try:
        with _interrupts_end():
            yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in OURS:
            raise
        sys.stderr.write(
            f"dledger: the program needs more than the client does ({missing} is missing): "
            "pip install 'dledger[node]'\n"
        )
        sys.exit(USED_WRONGLY)


@contextmanager
def _interrupts_end() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # threads have no say in signals
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ignored in the background of a script: it stays so.
    usual = (signal.default_int_handler, signal.SIG_DFL)
    ours = {number: known for number, known in before.items() if known in usual}
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, known in ours.items():
            signal.signal(number, known)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
