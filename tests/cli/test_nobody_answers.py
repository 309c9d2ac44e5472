"""Commands that ask nodes, where no node answers: which address, and why, with exit code 3.

A certificate that isn't named or believed looks like this, and so does a wrong address. Nothing is
said then of who leads, or of who is a member, as nobody was there to say it.
"""

from __future__ import annotations

import pytest

from tests.cli.called import command
from tests.integration.group import free_ports

UNREACHABLE = 3


@pytest.mark.parametrize(
    "words",
    [
        ("group", "status"),
        ("group", "replace", "n2", "--wait", "0"),
        ("member", "list"),
        ("member", "add", "n4", "127.0.0.1:1", "--wait", "0"),
        ("member", "remove", "n2", "--wait", "0"),
        ("audit", "replicas"),
    ],
    ids=" ".join,
)
def test_who_is_silent_is_told_and_why(words: tuple[str, ...]) -> None:
    """In a line on standard error; tables have no cell that is empty."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    ended = command(*words, "--bootstrap", address)
    assert ended.returncode == UNREACHABLE
    (said,) = ended.stderr.splitlines()
    assert address in said
    assert said.rstrip(")").endswith("Connection refused")
    assert "member:" not in said
    assert "leads" not in said
    assert "group :" not in ended.stdout
