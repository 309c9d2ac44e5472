"""Examples run as they stand, against a real node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dledger.testing import BrokerGroup
from dledger.testing.fixtures import dledger_group

__all__ = ["dledger_group"]

ROOT = Path(__file__).parents[2]


def test_members_that_share_the_work(dledger_group: BrokerGroup) -> None:
    """One leaves in the middle; every order is billed once, and committed."""
    done = subprocess.run(
        [sys.executable, "examples/work_in_a_group.py", str(dledger_group._directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *each, once, committed = done.stdout.splitlines()
    assert [line.split(":")[0] for line in each] == ["anna", "ben"]
    assert once == "400 orders, each once: True"
    assert committed == "committed: 400"


def test_dead_letters_that_are_sent_again(dledger_group: BrokerGroup) -> None:
    """Once, whoever asks how often; in the end everything is booked."""
    done = subprocess.run(
        [sys.executable, "examples/dead_letters.py", str(dledger_group._directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "dead: ten, rejected, attempt 1",
        "sent again",
        "was sent again before",
        "booked: 50",
    ]
