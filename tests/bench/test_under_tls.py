"""TLS beside none: two groups under the same loads, their figures in pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.local_group import GroupOptions, LocalGroup, LocalGroupError
from dledger.terminal.outcome import new_runner
from dledger_cli.bench import rounds, under_tls
from dledger_cli.bench.arena import Arena, arena
from dledger_cli.bench.figures import Comparison, Figure, Spread, Target
from dledger_cli.bench.produce import Case
from dledger_cli.bench.under_tls import produce_beside_tls
from dledger_cli.bench.yardsticks import echo_server


def test_each_figure_stands_beside_the_one_of_the_same_round() -> None:
    """A promise is one of the group in the clear."""
    target = Target(Comparison.AT_LEAST, 1)
    plain = Figure("rate", "msgs/s", Spread.of([100.0, 50.0]), target=target)
    beside = under_tls._beside([plain], [Figure("rate", "msgs/s", Spread.of([90.0, 50.0]))])
    assert [figure.name for figure in beside] == ["rate", "rate_tls"]
    assert beside[0] == plain
    assert beside[1].ratio == Spread.of([0.9, 1.0])
    assert beside[1].target is None


def test_groups_that_go_on_are_not_put_under_tls(tmp_path: Path) -> None:
    """They are somebody's."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=1))
    before = (tmp_path / "run" / "n1" / "node.toml").read_text()
    existing = Arena(tuple(group.addresses), group, group.directory, temporary=False)
    for place in (existing, Arena(("h:1",), None, None, temporary=False)):
        with (
            pytest.raises(LocalGroupError, match="--tls compares two new groups"),
            under_tls.arena_under_tls(place),
        ):
            pass
    assert (tmp_path / "run" / "n1" / "node.toml").read_text() == before


@pytest.mark.slow
@pytest.mark.long
def test_both_groups_are_loaded_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node each, one round; nothing is left, no process and no key."""
    monkeypatch.setattr(under_tls, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setattr(rounds, "SETTLE_S", 0.0)
    options = GroupOptions(nodes=1)
    with (
        arena(bootstrap=None, directory=tmp_path / "run", options=options) as place,
        echo_server() as echo,
        new_runner() as runner,
    ):
        report = runner.run(
            produce_beside_tls(
                place, echo, [Case(8, 1)], seconds=0.2, rounds=1, tell=lambda _: None
            )
        )
    names = {figure.name for figure in report.figures}
    assert {"8B_x1_p50", "8B_x1_p50_tls", "8B_x1_cpu_leader_tls", "failed"} <= names
    assert report.holds
    assert list(tmp_path.iterdir()) == []
