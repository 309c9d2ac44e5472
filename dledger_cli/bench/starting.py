"""What `from dledger.client import Client` costs a program, beside importing grpc alone.

Each round is a fresh interpreter, which imports grpc first and the client then, and says how long
each took: so both are paired. The interpreters share a folder of bytecode that the first one fills,
unmeasured, as an installation's is filled. They never look into the current folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target

MOST_MS = 60.0  # beyond grpc's own
CHILD_TIMEOUT_S = 60.0

_CHILD = """
import time
begun = time.perf_counter()
import grpc, grpc.aio
between = time.perf_counter()
import dledger.client
print((between - begun) * 1e3, (time.perf_counter() - between) * 1e3)
"""


def measure_import(rounds: int) -> Report:
    """The report of `rounds` paired imports, one at least.

    Raises:
        subprocess.CalledProcessError: the client can't be imported at all.
    """
    with tempfile.TemporaryDirectory(prefix="dledger-bench-") as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        _import_once(environment)
        found = [_import_once(environment) for _ in range(rounds)]
    alone, beyond = (Spread.of(column) for column in zip(*found, strict=True))
    return Report(
        benchmark="import",
        parameters={"rounds": rounds},
        yardsticks=(Figure("grpc alone", "ms", alone),),
        figures=(
            Figure(
                "dledger.client beyond it",
                "ms",
                beyond,
                target=Target(Comparison.AT_MOST, MOST_MS),
            ),
        ),
    )


def _import_once(environment: dict[str, str]) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHILD_TIMEOUT_S,
    )
    alone, beyond = done.stdout.split()
    return float(alone), float(beyond)
