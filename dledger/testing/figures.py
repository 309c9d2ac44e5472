"""How long a group for a test takes, beside a bare start of the interpreter.

    python -m dledger.testing.figures [ROUNDS]

A bare start is `python -c "import grpc"` from its call to its end, as the same interpreter runs it:
the least that a node which was started could take; an empty one (`python -c pass`) is shown beside
it. Rounds alternate, so that both meet the same
machine; the first group of a process waits for the warm one (`dledger.testing.warm`), and is told
by itself.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from dledger.testing.broker_group import BrokerGroup

ROUNDS: Final = 7


def bare() -> None:
    """The yardstick."""
    subprocess.run([sys.executable, "-c", "import grpc"], check=True)


def empty() -> None:
    """A program that does nothing."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def took_s(call: Callable[[], object]) -> float:
    """How long it takes, in seconds."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def group_s(nodes: int) -> float:
    """From the call until the group serves; its end isn't counted."""
    begun = time.perf_counter()
    with BrokerGroup(nodes):
        return time.perf_counter() - begun


def main(rounds: int = ROUNDS) -> None:
    """Prints medians, and each as a multiple of a bare start."""
    first = group_s(1)
    names = ("empty start", "bare start", "one node", "three nodes")
    rows: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        rows["empty start"].append(took_s(empty))
        rows["bare start"].append(took_s(bare))
        rows["one node"].append(group_s(1))
        rows["three nodes"].append(group_s(3))
    unit = statistics.median(rows["bare start"])
    for name, each in (*rows.items(), ("first node of a process", [first])):
        median = statistics.median(each)
        print(f"{name:24}{median * 1000:8.0f} ms  {median / unit:6.1f} bare starts")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
