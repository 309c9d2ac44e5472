"""Names and texts that others chose, shown to a person: none of them speaks to the terminal."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
import typer

from audit.commands.data import _print_stats
from audit.commands.delivery import delivery_lines
from audit.contents.stats import LogSum, QueueSum
from audit.delivery.check import DeliveryReport
from audit.delivery.judge import Anomaly, Kind
from broker.local_group.status import GroupStatus, NodeView
from dledger.client import Message, PushOptions
from dledger.client.blocking import BlockingClient
from dledger.terminal.outcome import complain
from dledger.terminal.output import print_columns, print_facts, shown
from dledger.testing import BlockingFakeGroup
from dledger_cli.group import _tell_status
from tests.cli.called import command

EVIL = "\x1b]0;owned\x07\x1b[2Jw"
PATIENCE_S = 20.0


def test_what_a_terminal_would_act_on_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    """In cells and in facts; what is to be read stays as it is."""
    assert shown("a\x1b[2J\r\n\x9b\u202e\ud800é 漢") == r"a\x1b[2J\r\n\x9b\u202e\ud800é 漢"
    values: tuple[object, ...] = (None, "", {}, 0, False)
    assert [shown(each) for each in values] == ["-", "-", "-", "0", "False"]
    print_columns(("NAME", "COUNT"), [(EVIL, 1), ("b", None)])
    print_facts({"tags": EVIL, "properties": {"a": EVIL}, "keys": None})
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\x07" not in told
    assert told.splitlines() == [
        "NAME                      COUNT",
        r"\x1b]0;owned\x07\x1b[2Jw  1",
        "b                         -",
        r"tags           \x1b]0;owned\x07\x1b[2Jw",
        r"properties     {'a': '\x1b]0;owned\x07\x1b[2Jw'}",
        "keys           -",
    ]


def test_reports_and_complaints_dont_speak_to_the_terminal_either(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Producers' keys, what a history says, and what a stranger's node answers."""
    _print_stats(LogSum({("t", 0): QueueSum()}, Counter({("t", EVIL): 3})))
    anomaly = Anomaly(Kind.LOST, "t", 0, 0, "v", EVIL, EVIL)
    counts = {kind.value: 0 for kind in Kind}
    report = DeliveryReport("local", "n1", 0, True, True, 1, (), counts, (anomaly,), (EVIL,), 0.1)
    for line in delivery_lines(report):
        typer.echo(line)
    node = NodeView("n1", "h:1", True, apply_stopped=EVIL, other_group=EVIL, other_directory=EVIL)
    _tell_status(GroupStatus(EVIL, None, None, (node,)), as_json=False)
    complain(f"h:1 is answered by a node on {EVIL}\nwhich isn't this one")
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert told.out.count(r"\x1b]0;owned\x07") == 8
    assert told.err.splitlines() == [
        r"dledger: h:1 is answered by a node on \x1b]0;owned\x07\x1b[2Jw",
        "which isn't this one",
    ]


def test_members_and_messages_are_shown_without_speaking_to_the_terminal() -> None:
    """And as they are in JSON."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic, seen = group.topic(), threading.Event()
        place = ("--bootstrap", group.addresses)
        with client.producer() as producer:
            producer.send(topic, b"x\x1b[2J", tag=EVIL).result(PATIENCE_S)
        service = client.push_consumer("billing", PushOptions(member=EVIL))

        @service.on(topic)
        def handle(_message: Message) -> None:
            seen.set()

        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            assert seen.wait(PATIENCE_S)
            describe = ("consumers", "describe", "billing", "--interval", "0", *place)
            query = ("query", "offset", topic, "0", "0", *place)
            for words in (describe, query):
                done = command(*words)
                assert done.returncode == 0, done.stderr
                assert r"\x1b]0;owned\x07" in done.stdout
                assert "\x1b" not in done.stdout
            assert json.loads(command(*describe, "--json").stdout)["members"][0]["name"] == EVIL
        finally:
            service.stop()
            thread.join(PATIENCE_S)
