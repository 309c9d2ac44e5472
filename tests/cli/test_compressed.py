"""Compressed bodies at the command line: produced, consumed, queried; and what can not be read."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

from dledger.records.compression import Codec
from dledger.records.record import RecordTemplate, decode_records
from dledger.testing import BlockingFakeGroup
from dledger.wire import broker_pb2 as pb
from tests.codecs import EACH
from tests.warm import program

LINE = b"the same line again and again, " * 400


def dledger(
    group: BlockingFakeGroup, *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """What the program answers."""
    words = [*arguments, "--bootstrap", group.addresses]
    if given:
        command = [sys.executable, "-m", "dledger_cli", *words]
        return subprocess.run(command, input=given, capture_output=True, check=False)
    done = program(*words)
    return subprocess.CompletedProcess(
        words, done.returncode, done.stdout.encode(), done.stderr.encode()
    )


def stored(group: BlockingFakeGroup, topic: str) -> list[bytes]:
    """The records of queue 0, as the group has them."""
    found: list[bytes] = []
    group._act(lambda: found.extend(group._group.model.topics[topic][0].records))
    return found


def poison(group: BlockingFakeGroup, topic: str, count: int) -> None:
    """Messages that say they are compressed, and aren't."""
    record = RecordTemplate(topic, ("127.0.0.1", 0)).encode(
        0, b"garbage", b"", 1, 0, Codec.ZSTD.sysflag
    )

    def store() -> None:
        model = group._group.model
        model._append(model.queue(topic, 0), pb.SendBatch(count=count, records=record * count))

    group._act(store)


@pytest.mark.parametrize(
    "codec",
    [each if each is Codec.ZSTD else pytest.param(each, marks=pytest.mark.long) for each in EACH],
)
def test_lines_are_stored_compressed_and_consumed_as_they_were(codec: Codec) -> None:
    """`--compression` asks for it; whoever reads need not know."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        done = dledger(
            group, "produce", topic, "--compression", codec.name.lower(), given=LINE + b"\nshort\n"
        )
        assert done.returncode == 0, done.stderr
        first, second = (decode_records(record)[0] for record in stored(group, topic))
        assert (first.sysflag, second.sysflag) == (codec.sysflag, 0)
        assert len(first.stored_body) < 1_000
        done = dledger(group, "consume", topic, "--max", "2")
        assert done.stdout == LINE + b"\nshort\n"
        done = dledger(group, "query", "offset", topic, "0", "0", "--json")
        assert json.loads(done.stdout)["body"].encode() == LINE


def test_unreadable_bodies_are_told_left_out_and_end_nothing() -> None:
    """The exit code says so, and committed offsets pass them by: reading again wouldn't help."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        assert dledger(group, "produce", topic, given=b"before\n").returncode == 0
        poison(group, topic, 30)
        assert dledger(group, "produce", topic, given=b"behind\n").returncode == 0
        done = dledger(group, "consume", topic, "--group", "g", "--max", "32")
        assert (done.returncode, done.stdout) == (1, b"before\nbehind\n")
        told = done.stderr.decode().splitlines()
        assert sum("left out" in line for line in told) == 10
        assert f"{topic}/0 offset 1" in told[0]
        assert "30" in told[-1]
        done = dledger(group, "consume", topic, "--group", "g", "--idle-timeout", "0.2")
        assert (done.returncode, done.stdout) == (0, b"")


def test_unreadable_bodies_in_json_are_there_as_stored() -> None:
    """Each says why."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        poison(group, topic, 1)
        consumed = dledger(group, "consume", topic, "--json", "--max", "1")
        queried = dledger(group, "query", "offset", topic, "0", "0", "--json")
        for done in (consumed, queried):
            assert done.returncode == 0, done.stderr
            facts = json.loads(done.stdout)
            assert base64.b64decode(facts["body"]) == b"garbage"
            assert facts["body_encoding"] == "base64"
            assert "zstd" in facts["body_error"]
        assert b"body_error" in dledger(group, "query", "offset", topic, "0", "0").stdout
