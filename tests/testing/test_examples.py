"""Examples run as they stand, against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.testing import BrokerGroup
from dledger.testing.fixtures import dledger_group

__all__ = ["dledger_group"]

ROOT = Path(__file__).parents[2]


def lines_of(example: str, group: BrokerGroup) -> list[str]:
    """What the example prints."""
    done = subprocess.run(
        [sys.executable, f"examples/{example}", str(group._directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_members_that_share_the_work(dledger_group: BrokerGroup) -> None:
    """One leaves in the middle; every order is billed once, and committed."""
    *each, once, committed = lines_of("work_in_a_group.py", dledger_group)
    assert [line.split(":")[0] for line in each] == ["anna", "ben"]
    assert once == "400 orders, each once: True"
    assert committed == "committed: 400"


def test_workers_that_share_long_jobs(dledger_group: BrokerGroup) -> None:
    """What one fails at another one does; each is acknowledged once."""
    assert lines_of("long_jobs.py", dledger_group) == [
        "60 jobs done, each once: True",
        "some failed at first: True",
        "finished: 60",
    ]


def test_a_topic_that_gets_more_queues(dledger_group: BrokerGroup) -> None:
    """And fewer again, and is closed for a while; each key stays in order."""
    assert lines_of("more_queues.py", dledger_group) == [
        "read and written: 8 and 8 queues",
        "read and written: 8 and 4 queues",
        "each customer's orders in order: True",
        "read and written: 4 and 4 queues",
        "closed: nothing more is stored",
        "open again",
    ]


def test_the_page_of_single_messages(
    dledger_group: BrokerGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it shows does what it says."""
    page = (ROOT / "docs" / "deliveries.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "deliveries.md", "exec"), {"addresses": dledger_group.addresses})
    assert capsys.readouterr().out == "b'cats.mov' 1\n"


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
    assert "6 passed" in done.stdout


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
