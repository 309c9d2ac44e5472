"""Which audits a run can't do without."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.real.audited import LEFT_OUT, Chosen, chosen_audits

ALL = [["audit", "replicas", "--replica", "n1=d"], ["audit", "delivery", "--replica", "n1=d"]]


@pytest.mark.parametrize(
    ("engine", "retains_all", "wanted"),
    [
        (None, True, Chosen([], "local", [])),
        (None, False, Chosen(ALL[1:], "local", [])),  # else the nodes' word is all there is
        ("spark", True, Chosen(ALL, "spark", [])),
        ("spark", False, Chosen(ALL, "spark", [])),
    ],
)
def test_where_old_messages_go_deliveries_are_audited_unasked(
    monkeypatch: pytest.MonkeyPatch, engine: str | None, retains_all: bool, wanted: Chosen
) -> None:
    monkeypatch.setattr("chaos.real.audited.audits", lambda _, **__: ALL)
    found = chosen_audits(Path("run"), engine, retains_all=retains_all, may_lose=False)
    assert found == wanted


def test_what_a_weaker_mode_may_have_lost_is_audited_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`--flush async` and a power cut: the checks permit what an audit calls lost."""
    monkeypatch.setattr("chaos.real.audited.audits", lambda _, **__: ALL)
    unasked = chosen_audits(Path("run"), None, retains_all=False, may_lose=True)
    assert unasked == Chosen([], "local", [LEFT_OUT])
    assert not chosen_audits(Path("run"), None, retains_all=True, may_lose=True).remarks
    asked = chosen_audits(Path("run"), "local", retains_all=False, may_lose=True)
    assert asked == Chosen(ALL, "local", [])
