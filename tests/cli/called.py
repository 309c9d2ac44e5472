"""The program's commands, called within the tests' process.

An interpreter that starts and imports them takes ten times as long as most of them do, and a test
that asks until something is so asks often. What the program's process itself does (its start, its
pipes, signals to it) is looked at where that is the subject: `test_process`, `test_streams`.
"""

from __future__ import annotations

import subprocess

from typer.testing import CliRunner

from dledger_cli.app import app


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`dledger WORDS`, nothing on its standard input: how it ended, and both its outputs.

    Raises:
        Exception: what would have been a traceback.
    """
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(list(words), result.exit_code, result.stdout, result.stderr)
