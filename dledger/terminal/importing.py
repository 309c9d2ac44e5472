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
        with interrupts_end(INTERRUPTED):
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
def interrupts_end(code: int) -> Iterator[None]:
    """Meanwhile Ctrl-C and SIGTERM end the process with `code`, wherever it is."""
    if threading.current_thread() is not threading.main_thread():  # threads have no say in signals
        yield
        return

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Ignored in the background of a script: it stays so.
    others = (signal.SIG_IGN, None)
    ours = {number: known for number, known in before.items() if known not in others}
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, known in ours.items():
            signal.signal(number, known)
