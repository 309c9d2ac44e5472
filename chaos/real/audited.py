"""The audits of what a run has left: do the replicas agree, and does the log hold what clients were
told? They are the product's commands, on the directories of the stopped nodes.

A delivery audit knows by itself where queues begin in a log that begins later: by the state that
the log begins with, and not by what nodes have told their clients. A run of whose messages old ones
go can't do without: its last reading begins where nodes say that queues begin, so that a node which
says too much would be excused all that it has lost there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.local_group import LocalGroup

GROUP_FOLDER: Final = "group"
HISTORY_FILE: Final = "history.jsonl"
AUDIT_TIMEOUT_S: Final = 3_600.0
SHOWN_LINES: Final = 3
DEFAULT_ENGINE: Final = "local"
LEFT_OUT: Final = (
    "deliveries were not audited: flush is async and power was cut, and an audit calls lost what "
    "that permits (--audit runs it all the same)"
)


def audits(directory: Path, *, retains_all: bool) -> list[list[str]]:
    """The words behind `dledger` of each audit of the run in `directory`."""
    nodes = LocalGroup.open(directory / GROUP_FOLDER).nodes
    data = {node.id: directory / GROUP_FOLDER / node.id / "data" for node in nodes}
    replicas = [word for name, path in data.items() for word in ("--replica", f"{name}={path}")]
    accepted = [] if retains_all else ["--accept-retention"]
    history = str(directory / HISTORY_FILE)
    return [
        ["audit", "replicas", *replicas, *accepted],
        ["audit", "delivery", "--history", history, *replicas],
    ]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The words behind `dledger` of each audit, on which engine; and what is to be said of those
    that were left out."""

    commands: list[list[str]]
    engine: str
    remarks: list[str]


def chosen_audits(
    directory: Path, engine: str | None, *, retains_all: bool, may_lose: bool
) -> Chosen:
    """The audits of a run: all of them where an engine is asked for; else none, but of deliveries
    where old messages go.

    Args:
        may_lose: the log may lack what was acknowledged (`chaos.real.weaker`). An audit of
            deliveries knows of no such promise, and would call it lost.
    """
    if engine is not None:
        return Chosen(audits(directory, retains_all=retains_all), engine, [])
    if retains_all:
        return Chosen([], DEFAULT_ENGINE, [])
    if may_lose:
        return Chosen([], DEFAULT_ENGINE, [LEFT_OUT])
    found = audits(directory, retains_all=False)
    wanted = [words for words in found if words[:2] == ["audit", "delivery"]]
    return Chosen(wanted, DEFAULT_ENGINE, [])


def audited(commands: Sequence[Sequence[str]], engine: str) -> tuple[list[str], list[str]]:
    """What the audits found wrong, and what they say, in words."""
    problems: list[str] = []
    remarks: list[str] = []
    for words in commands:
        name = " ".join(words[:2])
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dledger_cli", *words, "--engine", engine],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=AUDIT_TIMEOUT_S,
            check=False,
        )
        said = " / ".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
        if done.returncode:
            problems.append(f"{name} on {engine} ends with {done.returncode}: {said}")
        else:
            remarks.append(f"{name} on {engine}: {said}")
    return problems, remarks
