"""`dledger dlq` at a real node: listed within 80 columns, shown, sent again once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from dledger.client import Message, PushOptions, Reject
from dledger.client.blocking import BlockingClient
from dledger.outcome import ExitCode
from dledger.testing import BrokerGroup
from dledger.testing.fixtures import dledger_group
from tests.warm import program

__all__ = ["dledger_group"]


def dlq(group: BrokerGroup, *arguments: str, fails: bool = False) -> str:
    """What the command says."""
    done = program("dlq", *arguments, "--bootstrap", group.addresses, timeout_s=120)
    assert bool(done.returncode) is fails, done.stderr
    return done.stdout


@pytest.fixture
def topic(dledger_group: BrokerGroup) -> str:
    """A topic with a long name, of which a group `g` has rejected three messages."""
    name = "orders-" + "of-the-northern-branch-" * 4
    reject_three(dledger_group, name, "g")
    return name


def reject_three(group: BrokerGroup, name: str, consumers: str) -> None:
    """A new topic, of which `consumers` have rejected three messages."""
    with BlockingClient.connect(group.addresses) as client:
        client.create_topic(name, queues=1)
        with client.producer() as producer:
            for number in range(3):
                producer.send(name, b"bad %d" % number)
        service = client.push_consumer(consumers, PushOptions(handlers=1))
        left = 3

        @service.on(name)
        def handle(message: Message) -> None:
            nonlocal left
            left -= 1
            if not left:
                service.stop()
            raise Reject("nobody can")

        service.run()


def test_dead_letters_are_listed_shown_and_sent_again(
    dledger_group: BrokerGroup, topic: str
) -> None:
    title, *rows = dlq(dledger_group, "list", "g").splitlines()
    assert len(rows) == 3
    assert max(map(len, (title, *rows))) <= 80
    listed = json.loads(dlq(dledger_group, "list", "g", "--from", "1", "--max", "1", "--json"))
    (letter,) = listed
    assert (letter["reason"], letter["attempts"], letter["resent"]) == ("rejected", 1, False)
    assert letter["origin_topic"] == topic
    assert "rejected" in dlq(dledger_group, "show", "g", "1")
    sent = json.loads(dlq(dledger_group, "resend", "g", "1", "1", "--json"))
    assert [each["resent"] for each in sent] == [True, False]
    assert (sent[0]["topic"], sent[0]["queue_id"], sent[0]["offset"]) == (topic, 0, 3)
    told = dlq(dledger_group, "resend", "g", "1", "99", "2", fails=True)  # there is none at 99
    assert told == "1: was sent again before\n"
    resent = [each["resent"] for each in json.loads(dlq(dledger_group, "list", "g", "--json"))]
    assert resent == [False, True, False]


def test_a_list_of_a_group_that_nobody_knows_ends_with_1(dledger_group: BrokerGroup) -> None:
    """A name that was typed wrongly isn't a group without dead letters, whose list is empty."""
    done = program("dlq", "list", "nobody", "--bootstrap", dledger_group.addresses, timeout_s=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dledger: consumer group 'nobody' does not exist")
    with BlockingClient.connect(dledger_group.addresses) as client:
        client.create_topic("read-well", queues=1)
        client.commit_offsets("healthy", "read-well", {0: 0})
    assert dlq(dledger_group, "list", "healthy").splitlines() == [
        "OFFSET  TRIES  WHY  TOPIC  WAS AT  AGAIN"
    ]


def test_the_topic_of_a_group_that_is_known_ends_a_deletion_with_1(
    dledger_group: BrokerGroup,
) -> None:
    """The command is right: it is the group for which it stays."""
    reject_three(dledger_group, "kept", "keepers")
    place = ("--bootstrap", dledger_group.addresses)
    done = program("topic", "delete", "%DLQ%keepers", *place, timeout_s=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert "can't be deleted: consumer group 'keepers' is known" in done.stderr


def test_a_list_that_was_cut_says_so(dledger_group: BrokerGroup) -> None:
    """And where it goes on; on standard error, beside JSON too. One that is whole says nothing."""
    reject_three(dledger_group, "cut", "cutters")
    place = ("--bootstrap", dledger_group.addresses)
    for form in ([], ["--json"]):
        cut = program("dlq", "list", "cutters", "--max", "1", *form, *place, timeout_s=120)
        assert cut.stderr == "dledger: ... and up to 2 more: --from 1\n"
        rest = program(
            "dlq", "list", "cutters", "--from", "1", "--max", "2", *form, *place, timeout_s=120
        )
        assert rest.stderr == ""
    assert [each["queue_offset"] for each in json.loads(rest.stdout)] == [1, 2]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_who_is_interrupted_says_what_was_sent_again(
    dledger_group: BrokerGroup, number: signal.Signals
) -> None:
    """Signalled once the first one is. The others are still dead."""
    consumers = f"g{number}"
    reject_three(dledger_group, f"interrupted-{number}", consumers)
    asked = ["resend", consumers, *(["0"] * 500), "1", "2", "--bootstrap", dledger_group.addresses]
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger_cli", "dlq", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with BlockingClient.connect(dledger_group.addresses) as client:
        while not client.dead_letters(consumers).queues[0].was_resent(0):
            assert process.poll() is None, process.communicate()
    process.send_signal(number)
    told, errors = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    assert told.startswith("0: sent again, as ") or not told
    assert "1:" not in told
    assert "sends none twice" in errors
    assert "Traceback" not in errors
    listed = json.loads(dlq(dledger_group, "list", consumers, "--json"))
    assert [each["resent"] for each in listed] == [True, False, False]
