"""How the installed program is called: by the interpreter that runs the test, whatever its PATH."""

from __future__ import annotations

import sys
from typing import Final

PROGRAM: Final = (sys.executable, "-P", "-m", "dledger_cli")  # -P: not from the current folder
