"""Starts Spark's JVM beside threads of gRPC's.

pyspark starts the JVM with a function to be run between fork and exec. That takes a real fork, and
with it gRPC's handlers in the child, which crash in about one of six where a client or a node's
thread is in a call just then (measured: SIGSEGV or an abort; the error is JAVA_GATEWAY_EXITED or a
broken pipe). All that the function does is to have Ctrl-C ignored. A shell does that as well, and
without the function Python forks nothing that handlers are run in (vfork).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark import java_gateway

_DEAF_TO_CTRL_C: Final = ("/bin/sh", "-c", 'trap "" INT; exec "$0" "$@"')


def spawn(command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """The process, which ignores SIGINT; nothing of this one runs between fork and exec."""
    settings.pop("preexec_fn", None)
    return subprocess.Popen([*_DEAF_TO_CTRL_C, *command], **settings)


@contextmanager
def without_forking() -> Iterator[None]:
    """A JVM that pyspark starts within is started by `spawn`."""
    before = java_gateway.Popen
    java_gateway.Popen = spawn
    try:
        yield
    finally:
        java_gateway.Popen = before
