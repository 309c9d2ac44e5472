"""How a local group's nodes come from a warm process (`dledger_cli.warm`), not from a start."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.local_group.process import ProcessIdentity, Spawner, spawn_detached
from dledger.testing.warm import Forked

FLAGS: Final = (sys.executable, "-P", "-m")


def forked_by(path: Path) -> Spawner:
    """Processes of Python's modules are forked by the warm process at that socket, and others
    started as ever."""

    def spawn(command: Sequence[str], output: Path) -> ProcessIdentity:
        if tuple(command[:3]) != FLAGS:
            return spawn_detached(command, output)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(output, flags, 0o644)
        try:
            forked = Forked.of(path, command[3], command[4:], (nothing, log, log))
        finally:
            os.close(nothing)
            os.close(log)
        forked.close()
        return ProcessIdentity(forked.pid, forked.started)

    return spawn
