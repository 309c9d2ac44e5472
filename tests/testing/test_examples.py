"""Examples run as they stand, against a real node."""

from __future__ import annotations

import os
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


def test_a_suite_on_real_and_fake_nodes() -> None:
    """As its author runs it, which is with none of this project's settings."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
            str(ROOT / "examples" / "tests_of_billing.py"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
