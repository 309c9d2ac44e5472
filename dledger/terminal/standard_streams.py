"""Descriptors 0 to 2 belong to the standard streams, also where nobody opened any.

Who starts a program with one of them closed (a supervisor, `2>&-`) gives its number to the next
file that is opened. A segment of the log could be descriptor 2 then, and whatever C code says on
standard error would be written into it; libuv ends the process that closes such a descriptor.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_held: set[int] = set()  # numbers at which nobody opened anything
_STREAMS: Final = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


def hold_standard_streams() -> None:
    """Opens the null device in the place of each that is closed. To be called before any file is
    opened; a program whose streams are open is left as it is."""
    for number, name, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            _held.add(number)
            # The lowest free number is this one: those below are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
        if getattr(sys, name) is None:  # what the interpreter leaves of a closed one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def was_closed(number: int) -> bool:
    """Whether the program was started without that stream: what is written there goes nowhere, and
    nobody has asked for that, as who names the null device has."""
    return number in _held
