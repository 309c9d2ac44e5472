"""Histories on disk: what is written is read back, and what is broken is told by its line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from chaos.checkers.history import (
    Commit,
    Create,
    End,
    Exists,
    Fetch,
    History,
    Poll,
    Send,
    parse_history,
    read_history,
)
from dledger.history import Outcome
from dledger.records.errors import HistoryCorrupt
from tests.chaos.histories import Story


def told() -> Story:
    story = Story()
    story.do("admin", Create("t", 2))
    story.send("a", "b", at=0)
    story.send("c")
    story.poll((0, "a"), (1, "b"), seek=True)
    story.do("c", Commit("t", "g", 0, 2))
    story.do("c", Fetch("t", "g", 0), 2)
    story.do("c", Fetch("t", "other", 0), None)
    story.do("c", End("t", 0), 2)
    story.do("c", Exists("t"), True)
    story.do("p", Send("t", 1, 0, ("d",)), outcome=Outcome.FAIL)
    story.do("c", Poll("t", 0, 2), ())
    story.refuse("admin", Create("t", 2), "TOPIC_EXISTS")
    return story


def test_what_is_written_is_read_back() -> None:
    """Lines carry everything: parsing them gives equal operations."""
    history = told().history
    again = parse_history((line + "\n").encode() for line in history.lines())
    assert again.operations == history.operations


def test_lines_are_written_as_things_happen() -> None:
    """A sink gets an event when it happens, so that a run that dies leaves what it saw."""
    sink = io.StringIO()
    history = History(sink=sink)
    send = history.invoke(1, "p", Send("t", 0, 0, ("a",)))
    assert sink.getvalue().count("\n") == 1
    history.complete(2, send, Outcome.OK, 0)
    assert parse_history(io.BytesIO(sink.getvalue().encode())).operations == history.operations


def test_operation_without_an_end_is_unknown() -> None:
    """Nothing heard means nothing known."""
    history = parse_history(
        [b'{"time_us":1,"event":"invoke","op":0,"process":"p","action":"delete","topic":"t"}\n']
    )
    assert history.operations[0].outcome is Outcome.UNKNOWN
    assert history.operations[0].completed_us is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"time_us":1,"event":"invoke","op":0,"process":"p","act', "cut short"),
        ("nonsense\n", "no JSON: Expecting value"),
        ('{"time_us":1,"event":"ok","op":9}\n', "operation 9 ends and isn't under way"),
        ('{"time_us":"1","event":"ok","op":9}\n', "whole number"),
        (
            '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"jump"}\n',
            "unknown action 'jump'",
        ),
        (
            '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"end","topic":"t",'
            '"queue_id":0,"colour":1}\n',
            "unknown fields",
        ),
        (
            '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"end","topic":"t",'
            '"queue_id":[0]}\n',
            "queue_id is a list",
        ),
        (
            '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"poll","topic":"t",'
            '"queue_id":0}\n',
            "a field is missing.*offset",
        ),
        (
            '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"send","topic":"t",'
            '"queue_id":0,"sequence":0,"values":[]}\n',
            "values is empty",
        ),
    ],
)
def test_broken_file_is_told_by_its_line(tmp_path: Path, line: str, reason: str) -> None:
    """A file that was cut short or isn't a history names the line and what is wrong."""
    file = tmp_path / "history.jsonl"
    good = '{"time_us":0,"event":"invoke","op":1,"process":"p","action":"delete","topic":"t"}\n'
    file.write_text(good + line, encoding="utf-8")
    with pytest.raises(HistoryCorrupt, match=reason) as caught:
        read_history(file)
    assert caught.value.line == 2


def test_bytes_that_are_no_text_are_told_by_their_line(tmp_path: Path) -> None:
    """A page of a file that a crash left as anything."""
    file = tmp_path / "history.jsonl"
    file.write_bytes(b"\xff\x00\xfe\n")
    with pytest.raises(HistoryCorrupt, match="line 1: no JSON"):
        read_history(file)


def test_events_out_of_order_are_refused() -> None:
    """An operation ends once, after it began."""
    story = Story()
    story.send("a", at=0)
    lines = [(line + "\n").encode() for line in story.history.lines()]
    with pytest.raises(HistoryCorrupt, match="ends twice"):
        parse_history([*lines, lines[-1]])
    with pytest.raises(HistoryCorrupt, match="invoked twice"):
        parse_history([lines[0], *lines])
