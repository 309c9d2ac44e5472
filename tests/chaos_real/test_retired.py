"""Runs in which old messages go: what may be missing, what may not, and years in some seconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from chaos.checkers.history import History, Poll, Send
from chaos.cli import app
from chaos.errors import ScenarioInvalid
from chaos.real.arena import SEGMENT_BYTES
from chaos.real.audited import audited
from chaos.real.reading import Retained, missing_at_the_end, read_everything
from chaos.real.retired import READER, check_retained, first_kept
from chaos.real.scenario import load_file
from chaos.real.verdict import judge
from chaos.real.weaker import LOSSES
from dledger.client import Client, OffsetOutOfRange, PullResult, QueueOffsets
from dledger.history import Outcome
from tests.chaos_real.test_reading import message

YEARS = '''"""A year in a minute."""
from chaos.real.scenario import Load
from chaos.scenarios.years import schedule

LOAD = Load(rate=40, size_bytes=16_384, consumers=1, callers=1)
RETAIN_BYTES = 4 << 20
'''


class Shrinking:
    """A queue of ten messages that begins later each time that somebody pulls what has gone."""

    def __init__(self, *begins: int) -> None:
        self.begins = list(begins)

    async def queue_offsets(self, _: str, __: int, **___: object) -> QueueOffsets:
        return QueueOffsets(min_offset=self.begins[0], max_offset=10)

    async def pull(self, _: str, __: int, offset: int, **___: object) -> PullResult:
        if len(self.begins) > 1:
            del self.begins[0]
        if offset < self.begins[0]:
            raise OffsetOutOfRange("it has gone")
        found = [message(at, physical=at, stored_ms=at) for at in range(offset, 10)]
        return PullResult(found, 10, min_offset=self.begins[0], max_offset=10)


def sent(history: History, count: int = 10) -> None:
    for offset in range(count):
        operation = history.invoke(offset, "p0", Send("chaos", 0, offset, (f"p0-0-{offset}",)))
        history.complete(offset, operation, Outcome.OK, offset)


def read(history: History, client: Shrinking, retained: Retained) -> None:
    fake = cast(Client, cast(Any, client))
    asyncio.run(read_everything(fake, history, lambda: 99, 1, 1e12, retained=retained))


def test_what_has_gone_is_not_missing() -> None:
    """The reading begins where the queue does by then; what is kept has to be there."""
    history = History()
    sent(history, 11)
    read(history, Shrinking(2, 4), Retained.NEWER)
    polls = [o.action for o in history.operations if o.process == READER]
    assert [(p.offset, p.seek, p.final) for p in polls if isinstance(p, Poll)] == [(4, True, True)]
    assert first_kept(history) == {("chaos", 0): 4}
    assert [value for value, _ in missing_at_the_end(history)] == ["p0-0-10"]
    verdict = judge(history, [])
    assert [each.name for each in verdict.anomalies if each.name in LOSSES] == ["unseen"]
    assert {each.name for each in verdict.excused} == {"lost-write"}
    assert len(verdict.excused) == 4
    assert verdict.remarks == [
        "permitted, since old messages go, and nobody had read these: 4 × lost-write"
    ]


def test_what_lay_nobody_knows_where_may_have_gone() -> None:
    """Where old messages go; where the queue is whole it is missing, and -1 is no offset."""
    history = History()
    sent(history, 8)
    forgotten = history.invoke(8, "p0", Send("chaos", 0, 8, ("p0-0-99",)))
    history.complete(8, forgotten, Outcome.OK)
    read(history, Shrinking(0, 4), Retained.NEWER)
    assert "p0-0-99" not in [value for value, _ in missing_at_the_end(history)]
    whole = History()
    whole.complete(1, whole.invoke(0, "p0", Send("chaos", 0, 0, ("p0-0-99",))), Outcome.OK)
    read(whole, Shrinking(0, 0), Retained.ALL)
    assert [value for value, _ in missing_at_the_end(whole)] == ["p0-0-99"]


def test_nothing_may_go_where_everything_is_kept() -> None:
    """A queue that begins later all the same is a finding."""
    history = History()
    sent(history)
    with pytest.raises(OffsetOutOfRange):
        read(history, Shrinking(0, 4), Retained.ALL)


def test_the_logs_hold_what_is_asked_for_and_not_much_more(tmp_path: Path) -> None:
    """A segment too few is too much gone; many too many: nothing goes."""
    end, retain = 40 * SEGMENT_BYTES + 100, 10 * SEGMENT_BYTES

    def told(first_segment: int) -> list[str]:
        folder = tmp_path / str(first_segment) / "commitlog"
        folder.mkdir(parents=True)
        (folder / f"{first_segment * SEGMENT_BYTES:020}").touch()
        return check_retained({"n1": folder.parent}, end, retain)[0]

    assert told(30) == []
    assert told(31) == []
    assert "too much" in told(32)[0]
    assert told(16) == []
    assert "lets nothing go" in told(10)[0]


@pytest.mark.parametrize("text", ["RETAIN_BYTES = -1", "RETAIN_BYTES = '4 MiB'"])
def test_a_scenario_says_how_much_is_kept_in_bytes(tmp_path: Path, text: str) -> None:
    """Anything else is told before anything starts."""
    file = tmp_path / "mine.py"
    file.write_text(f"{YEARS}{text}\n")
    with pytest.raises(ScenarioInvalid, match="RETAIN_BYTES must be a number of bytes"):
        load_file(file)


def test_an_audit_that_does_not_hold_is_a_problem(tmp_path: Path) -> None:
    """With its last lines; a command that can't be carried out is none that holds."""
    words = ["audit", "replicas", "--replica", f"n1={tmp_path}", "--replica", f"n2={tmp_path}"]
    problems, remarks = audited([words], "local")
    assert remarks == []
    assert problems[0].startswith("audit replicas on local ends with")


@pytest.mark.slow
@pytest.mark.long
def test_years_in_some_seconds(tmp_path: Path) -> None:
    """Members come and go, nodes die, bytes rot, old messages go: nothing is lost of what is kept,
    and the audits say the same."""
    file = tmp_path / "year.py"
    file.write_text(YEARS)
    out = tmp_path / "out"
    arguments = ["run", str(file), "--seconds", "12", "--seed", "5", "--audit", "local", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, (result.output, result.exception)
    facts = json.loads(result.stdout)
    assert facts["holds"]
    assert facts["retain_bytes"] == 4 << 20
    assert facts["sends"]["acknowledged"] > 50
    assert facts["bands"]  # as many as a busy machine gets round to
    for audit in ("replicas", "delivery"):
        said = next(each for each in facts["remarks"] if each.startswith(f"audit {audit} on local"))
        assert audit != "delivery" or "DELIVERED" in said
    assert any(remark.startswith("the logs end at byte") for remark in facts["remarks"])
