"""Tables fit 80 columns of a terminal, whatever is in them."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from dledger.client import GroupInfo
from dledger.terminal.output import print_columns
from dledger_cli.consumers import LISTED_WIDTH, _style
from dledger_cli.tables import NAME_WIDTH, cut, duration


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_wide_characters_are_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of members may be in any script: columns begin below each other all the same."""
    names = ["消费者" * 20, "a" * 100, "消", "é"]
    print_columns(("MEMBER", "QUEUES"), [(cut(each), "4") for each in names])
    lines = lines_of(capsys)
    assert {cell_len(each) for each in lines[1:]} == {NAME_WIDTH + 3}
    assert lines[1].rstrip("4 ").endswith("…")


def test_list_of_groups_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """With the longest name, style and time that there are."""
    longest = GroupInfo(
        *("g" * 119, True, 10_000, 64, 59.9 * 60, True, True, "STICKY", "first", 1, ("t",))
    )
    print_columns(
        ("GROUP", "MEMBERS", "STYLE", "TOPICS", "UNUSED"),
        [
            (
                cut(longest.name, LISTED_WIDTH),
                longest.member_count,
                _style(longest),
                longest.topic_count,
                duration(longest.unused_s),
            )
        ],
    )
    assert max(map(len, lines_of(capsys))) <= 80
