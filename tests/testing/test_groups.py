"""`dledger.testing` as an application's tests would use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dledger.client import ClientOptions, InvalidArgument, NotLeader, SendsFailed
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup, BrokerGroup, GroupFailed, make_message
from dledger.testing.fixtures import dledger_fake, dledger_group, dledger_three
from dledger.testing.warm import WarmProgram

__all__ = ["dledger_fake", "dledger_group", "dledger_three"]

CHILD = """
import json, sys
from dledger.testing import BrokerGroup
group = BrokerGroup(nodes=1)
print(json.dumps(str(group._directory)), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_failover(dledger_three: BrokerGroup) -> None:
    """The leader is killed, paused, brought back; every message is there once."""
    with BlockingClient.connect(dledger_three.addresses) as client, client.producer() as producer:
        topic = dledger_three.topic()
        producer.send(topic, b"1").result()
        dead = dledger_three.kill()
        assert producer.send(topic, b"2").result().queue_offset == 1
        dledger_three.restart(dead)
        paused = dledger_three.pause()
        assert paused in dledger_three.node_ids
        assert producer.send(topic, b"3").result().queue_offset == 2
        dledger_three.resume(paused)
        bodies = [message.body for message in client.pull_consumer(topic, idle_timeout_s=0)]
    assert bodies == [b"1", b"2", b"3"]


def test_shared_node_has_topics_for_each_test(dledger_group: BrokerGroup) -> None:
    """And says what it can't do in the program's own words."""
    assert dledger_group.topic() != dledger_group.topic()
    with pytest.raises(GroupFailed, match="n9"):
        dledger_group.kill("n9")


@pytest.mark.slow
def test_group_dies_with_its_parent() -> None:
    """Killed, the parent can't clean up; its leash does."""
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    directory = Path(json.loads(parent.stdout.readline()))
    (node,) = json.loads((directory / "group.json").read_text())["nodes"]
    assert Path(f"/proc/{node['pid']}").exists()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 60
    while directory.exists() or Path(f"/proc/{node['pid']}").exists():
        assert time.monotonic() < deadline, "left behind"
        time.sleep(0.05)


def test_failed_start_shows_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder is gone with the group; what a build keeps is the error."""
    run = WarmProgram.run

    def late(warm: WarmProgram, *words: str) -> subprocess.CompletedProcess[str]:
        done = run(warm, *words)
        if "up" not in words:
            return done
        directory = words[-1]
        with (Path(directory) / "n1" / "node.log").open("a") as log:
            log.write("a line\n" * 10_000)
            log.write(f"dledger: {directory}/n1/node.toml is wrong\n")
        text = f"dledger: no answer from n1 after 30 s (logs: {directory}/*/node.log)\n"
        return subprocess.CompletedProcess(words, 1, "", text)

    monkeypatch.setattr(WarmProgram, "run", late)
    with pytest.raises(GroupFailed) as caught:
        BrokerGroup(nodes=1)
    text = str(caught.value)
    first, name, *lines = text.splitlines()
    assert first.endswith("dledger: no answer from n1 after 30 s (logs: */node.log)")
    assert name == "n1/node.log ends:"
    assert lines[-1] == "  dledger: n1/node.toml is wrong"
    assert lines[0] == "  a line"
    assert len(lines) == 20


def test_node_that_does_not_come_back_shows_its_log() -> None:
    """The end of a group's test is the end of its folder, too."""
    with BrokerGroup(nodes=1) as group:
        node = group.kill()
        with (group._directory / node / "node.toml").open("a") as configuration:
            configuration.write("nonsense = 1\n")
        with pytest.raises(GroupFailed, match=r"n1/node\.log ends:\n(.*\n)*.*nonsense") as caught:
            group.restart(node)
        assert str(group._directory) not in str(caught.value)


def test_closed_group_says_so() -> None:
    """At once; its nodes are no more looked for."""
    real, fake = BrokerGroup(nodes=1), BlockingFakeGroup()
    topic = fake.topic()
    for _ in range(2):
        real.close()
        fake.close()
    of_fake = (
        fake.__enter__,
        fake.topic,
        fake.kill,
        fake.pause,
        fake.resume,
        lambda: fake.bodies(topic),
        lambda: fake.refuse("BUSY"),
    )
    of_real = (
        real.__enter__,
        real.topic,
        real.kill,
        real.pause,
        lambda: real.resume("n1"),
        lambda: real.restart("n1"),
    )
    for call in (*of_real, *of_fake):
        with pytest.raises(GroupFailed, match="the group is closed"):
            call()


def test_fake_loses_an_answer_after_it_has_acted(dledger_fake: BlockingFakeGroup) -> None:
    """The client asks again, and is told that it was stored before."""
    topic = dledger_fake.topic()
    with (
        BlockingClient.connect(dledger_fake.addresses) as client,
        client.producer() as producer,
    ):
        dledger_fake.lose_answer()
        assert producer.send(topic, b"x").result().duplicate
        assert dledger_fake.calls("Send") == 2
    assert dledger_fake.bodies(topic) == [b"x"]


def test_fake_refuses_by_name(dledger_fake: BlockingFakeGroup) -> None:
    """Once, and then it works; what may not be repeated is told."""
    topic = dledger_fake.topic()
    with BlockingClient.connect(dledger_fake.addresses) as client:
        dledger_fake.refuse("NOT_LEADER", "ListTopics")
        assert [info.name for info in client.topics()] == [topic]
        dledger_fake.refuse("RECORD_CORRUPT")
        producer = client.producer()
        producer.send(topic, b"x")
        with pytest.raises(SendsFailed, match="RECORD_CORRUPT"):
            producer.close()
    assert NotLeader.default_retriable


def test_fake_group_fails_over() -> None:
    """The next living node leads; a silent one costs what the client allows."""
    with BlockingFakeGroup(nodes=2) as group:
        topic = group.topic()
        options = ClientOptions(presume_after_s=0.02)
        with (
            BlockingClient.connect(group.addresses, options=options) as client,
            client.producer() as producer,
        ):
            producer.send(topic, b"1").result()
            group.kill()
            assert producer.send(topic, b"2").result().queue_offset == 1


def test_made_message_is_like_a_read_one() -> None:
    """With the labels that a producer would have given it."""
    message = make_message("t", b"x", key="k", tag="g", properties={"a": "b"}, queue_offset=7)
    assert (message.keys, message.tags, message.queue_offset) == ("k", "g", 7)
    assert message.properties == {"a": "b", "KEYS": "k", "TAGS": "g"}
    with pytest.raises(InvalidArgument):
        make_message("t", b"x", properties={"DELAY": "1"})
