"""The machine that figures were taken on, in the few facts that explain them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from dledger.terminal.loops import EVENT_LOOP


def machine_facts(directory: Path | None) -> dict[str, str | int]:
    """What stands above every report.

    Args:
        directory: where the nodes keep their data; None when that is not known here.
    """
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "file_system": "unknown" if directory is None else file_system_of(directory),
        "event_loop": EVENT_LOOP,
    }


def file_system_of(directory: Path) -> str:
    """The type of the file system that `directory` is on, as the kernel names it."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
