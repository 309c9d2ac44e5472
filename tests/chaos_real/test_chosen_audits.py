"""Which audits a run can't do without."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.real.audited import chosen_audits

ALL = [["audit", "replicas", "--replica", "n1=d"], ["audit", "delivery", "--replica", "n1=d"]]


@pytest.mark.parametrize(
    ("engine", "retains_all", "wanted"),
    [
        (None, True, ([], "local")),
        (None, False, (ALL[1:], "local")),  # else the nodes' word is all there is
        ("spark", True, (ALL, "spark")),
        ("spark", False, (ALL, "spark")),
    ],
)
def test_where_old_messages_go_deliveries_are_audited_unasked(
    monkeypatch: pytest.MonkeyPatch,
    engine: str | None,
    retains_all: bool,
    wanted: tuple[list[list[str]], str],
) -> None:
    monkeypatch.setattr("chaos.real.audited.audits", lambda _, **__: ALL)
    assert chosen_audits(Path("run"), engine, retains_all=retains_all) == wanted
