"""Histories that go on being written while they are compared: a log's end is of one moment, and
what clients were told after it is nothing that the log up to there must have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.delivery.check import DeliveryReport, audit_delivery
from audit.delivery.history import sizes_of
from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake
from audit.reading.replica import Replica
from chaos.checkers.history import Send
from dledger.history import Outcome
from tests.audit.test_delivery import log_of, told, written
from tests.chaos.histories import Story


def before(story: Story) -> None:
    """What was told before the nodes were asked."""
    story.send("a", at=0)
    story.poll((0, "a"))


def after(story: Story) -> None:
    """What was told afterwards, of messages behind the log's end too."""
    story.send("b", at=1)
    story.send("c", at=2)
    story.poll((1, "b"), (2, "c"))


def grown(tmp_path: Path, cut: int = 0) -> tuple[str, int]:
    """A history, and how long it was before `after`; its last `cut` bytes aren't there yet."""
    story = Story()
    before(story)
    file = Path(written(tmp_path, story))
    size = file.stat().st_size
    after(story)
    written(tmp_path, story)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - cut])
    return str(file), size


def test_what_was_acknowledged_after_the_log_was_asked_is_not_lost(
    tmp_path: Path, engine: Engine
) -> None:
    """One of the two messages had come by then, and none is a phantom. A note says what isn't
    judged."""
    path, size = grown(tmp_path)
    report = audit_delivery([log_of(tmp_path, "a", "b")], [path], engine, ends=(size,))
    assert (report.verdict, told(report)) == ("delivered", [])
    (queue,) = report.queues
    assert (queue.acknowledged, queue.unknown, queue.stored, queue.delivered) == (1, 2, 2, 1)
    (note,) = (each for each in report.notes if "went on" in each)
    assert path in note
    assert f"byte {size}" in note


def test_what_was_acknowledged_before_is_lost(tmp_path: Path, engine: Engine) -> None:
    """All of it was there when the nodes were asked."""
    path, _ = grown(tmp_path)
    report = audit_delivery([log_of(tmp_path, "a", "b")], [path], engine, ends=sizes_of([path]))
    assert ("lost", 2, "c") in told(report)
    assert not any("went on" in each for each in report.notes)


@pytest.mark.parametrize("cut", [1, 30])
def test_a_line_that_is_being_written_is_not_cut_short(
    tmp_path: Path, engine: Engine, cut: int
) -> None:
    """Behind what there was before; one that hasn't grown since is a torn one, as ever."""
    path, size = grown(tmp_path, cut)
    replica = log_of(tmp_path, "a", "b")
    report = audit_delivery([replica], [path], engine, ends=(size,))
    assert (report.verdict, told(report)) == ("delivered", [])
    with pytest.raises(UsageMistake, match="cut short"):
        audit_delivery([replica], [path], engine, ends=sizes_of([path]))


@pytest.mark.parametrize("at", range(1, 60, 7))
def test_a_line_that_was_begun_before_is_of_after(tmp_path: Path, at: int) -> None:
    """Wherever it was cut then."""
    path, size = grown(tmp_path)
    report = audit_delivery([log_of(tmp_path, "a")], [path], LocalEngine(), ends=(size + at,))
    assert (report.verdict, told(report)) == ("delivered", [])


def test_what_was_refused_afterwards_still_counts(tmp_path: Path, engine: Engine) -> None:
    """A refusal is for good, whenever it was told."""
    story = Story()
    before(story)
    size = Path(written(tmp_path, story)).stat().st_size
    story.do("p", Send("t", 0, 0, ("x",)), outcome=Outcome.FAIL)
    path = written(tmp_path, story)
    report = audit_delivery([log_of(tmp_path, "a", "x")], [path], engine, ends=(size,))
    assert told(report) == [("phantom", 1, "x")]


def test_command_looks_at_histories_before_it_asks_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients go on while they are asked. And once before it: what was committed by then was so
    before anything that a history says later."""
    story = Story()
    before(story)
    path = written(tmp_path, story)

    answers = [log_of(tmp_path, "a", "b")]
    told_of: list[Sequence[Replica]] = []

    def asked(*_: object) -> Sequence[Replica]:
        told_of.append(list(answers))
        if len(told_of) > 1:
            after(story)
            written(tmp_path, story)
        return told_of[-1]

    def audited(*given: Any, **named: Any) -> DeliveryReport:
        assert named["earlier"] is told_of[0]
        assert given[0] is told_of[1]
        return audit_delivery(*given, **named)

    monkeypatch.setattr("audit.commands.delivery.wanted_replicas", asked)
    monkeypatch.setattr("audit.commands.delivery.audit_delivery", audited)
    done = CliRunner().invoke(app, ["delivery", "--history", path])
    assert done.exit_code == 0, done.stdout
    assert "went on being written" in done.stdout
