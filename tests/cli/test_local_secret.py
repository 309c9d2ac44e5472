"""The secret of a local group: who has it, who is told of it, and groups that have none."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from broker.config import dump_toml, load_config
from broker.local_group import GroupOptions, LocalGroup, LocalGroupError, NodeDied
from broker.local_group.layout import SECRET_FILE
from dledger.core.types import DiskId, NodeId
from dledger.credentials.secret import GroupSecret
from dledger.greeting import Identity
from dledger.promises import Start
from dledger.transport import METHOD
from dledger.wire.raft_pb2 import PeerMessage
from dledger_cli.app import app


def as_made_before(group: LocalGroup) -> None:
    """Takes the secret away, from the folder and from what the nodes are configured with."""
    for node in group.nodes:
        file = Path(node.config)
        plain = load_config(file).model_copy(update={"secret_file": None})
        file.write_text(dump_toml(plain, file.parent))
    (group.directory / SECRET_FILE).unlink()


def test_new_group_has_a_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    """All nodes are given the same file; what it holds stands nowhere else."""
    before = os.umask(0)
    try:
        group = LocalGroup.create(tmp_path / "run")
    finally:
        os.umask(before)
    secret = group.directory / SECRET_FILE
    assert secret.stat().st_mode & 0o777 == 0o600
    assert {load_config(Path(node.config)).secret_file for node in group.nodes} == {secret}
    digits = secret.read_text().strip()
    holders = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and digits in p.read_text()]
    assert holders == [secret]
    other = LocalGroup.create(tmp_path / "other")
    assert (other.directory / SECRET_FILE).read_text() != secret.read_text()
    group.wipe()
    assert not group.directory.exists()


def test_group_that_was_cut_short_is_made_with_the_secret_that_is_there(tmp_path: Path) -> None:
    """And something else in its place is no secret: nothing is overwritten."""
    GroupSecret.create(tmp_path / SECRET_FILE)
    was = (tmp_path / SECRET_FILE).read_text()
    LocalGroup.create(tmp_path, GroupOptions(nodes=1))
    assert (tmp_path / SECRET_FILE).read_text() == was
    for name, content, mode in (("empty", "", 0o600), ("read", was, 0o644)):
        file = tmp_path / name / SECRET_FILE
        file.parent.mkdir()
        file.write_text(content)
        file.chmod(mode)
        with pytest.raises(LocalGroupError, match=r"group\.secret: (holds no secret|others than)"):
            LocalGroup.create(file.parent, GroupOptions(nodes=1))
        assert file.read_text() == content
        assert not (file.parent / "group.json").exists()


@pytest.mark.slow
def test_local_group_turns_away_who_lacks_its_secret(
    tmp_path: Path, shared_runner: asyncio.Runner
) -> None:
    """A program of the same machine that knows all names; and a node whose file is gone."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=2))
    try:
        shared_runner.run(group.up())
        node = group.node("n1")
        said = shared_runner.run(greeted(node.address, "n2"))
        assert "asks for the group's secret" in said
        digits = (group.directory / SECRET_FILE).read_text().strip()
        assert digits not in node.log_file.read_text()
        shared_runner.run(group.down())
        (group.directory / SECRET_FILE).unlink()
        with pytest.raises(NodeDied, match=r"group\.secret: No such file"):
            shared_runner.run(group.start("n1"))
    finally:
        group.kill_all()


async def greeted(address: str, name: str) -> str:
    """Why a stream that begins with a Hello in that name is ended."""
    opened: Any = grpc.aio.insecure_channel(address)
    async with opened as channel:
        call = channel.stream_stream(
            METHOD,
            request_serializer=PeerMessage.SerializeToString,
            response_deserializer=PeerMessage.FromString,
        )()
        speaker = Identity("local", NodeId(name), 64 << 20, DiskId(b"d" * 16), Start(1))
        await call.write(speaker.hello(NodeId("n1")))
        return str(await asyncio.wait_for(call.details(), 20))


@pytest.mark.slow
def test_group_from_before_there_were_secrets_comes_up_and_is_told(
    tmp_path: Path, shared_runner: asyncio.Runner
) -> None:
    """It goes on as it was: a secret that only some of its nodes had would split it."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=2))
    as_made_before(group)
    try:
        result = CliRunner().invoke(app, ["group", "up", "--dir", str(group.directory)])
        assert result.exit_code == 0
        assert re.search(r"leader n[12]", result.stdout)
        assert "from before groups had a secret" in result.stderr
        assert not (group.directory / SECRET_FILE).exists()
        result = CliRunner().invoke(app, ["group", "down", "--wipe", "--dir", str(group.directory)])
        assert (result.exit_code, group.directory.exists()) == (0, False)
    finally:
        if group.directory.exists():
            group.kill_all()
