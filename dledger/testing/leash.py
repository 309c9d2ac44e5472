"""Ends a local group when whoever started it is gone, however that one ended.

A process of its own: it holds the read end of a pipe that its parent never writes to. The end of
file comes when the parent closes it, dies, or is killed; then the nodes are killed and their folder
is removed. Killed, not stopped: nobody is left whom an orderly end would serve.

    python -P -m dledger.testing.leash DIRECTORY
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from dledger.testing.program import PROGRAM


def main(directory: Path) -> None:
    """Waits for the parent's end, then ends the group in `directory`."""
    sys.stdin.buffer.read()
    for folder in sorted(directory.glob("*/node.toml")):
        node = folder.parent.name
        subprocess.run(
            [*PROGRAM, "group", "kill", node, "--dir", str(directory)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # of a node that wasn't running
            check=False,
        )
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
