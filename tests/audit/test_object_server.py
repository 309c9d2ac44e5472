"""Replicas and tables at a real object-store server, which runs here: versitygw, S3 over a folder.

`make object-server` builds it; where it isn't, these tests are skipped by its name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.engines.engine import LocalEngine
from audit.errors import TableTaken
from audit.proof.replicas import audit_replicas
from audit.reading.replica import Replica, parse_replica
from audit.tables.delta import DeltaMessages
from audit.tables.export import export_to_table
from audit.tables.mark import Choice, Mark
from dledger.reading import objects
from tests.audit.replicas import ReplicaSet
from tests.audit.tables import keys_of, lake_of, reload_configuration, use
from tests.audit.test_tables import expected_keys

SERVER = "versitygw"
ACCESS, SECRET = "tests-access", "tests-secret-never-printed"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers, with a bucket `lake`."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]

    def store(self) -> Any:
        """A client that remembers nothing."""
        s3fs = pytest.importorskip("s3fs", reason="s3fs isn't installed: pip install '.[s3]'")
        s3fs.S3FileSystem.clear_instance_cache()
        objects._kept.clear()
        return s3fs.S3FileSystem()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Stopped at the module's end."""
    beside = Path(sys.executable).parent / SERVER
    program = str(beside) if beside.exists() else shutil.which(SERVER)
    if program is None:
        pytest.skip(f"{SERVER} isn't installed: make object-server")
    folder = tmp_path_factory.mktemp("objects")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = f"127.0.0.1:{port}"
    command = [
        program,
        "--access",
        ACCESS,
        "--secret",
        SECRET,
        "--port",
        where,
        "posix",
        str(folder),
    ]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait(process, port)
        yield Server(
            process,
            {
                "AWS_ENDPOINT_URL": f"http://{where}",
                "AWS_ACCESS_KEY_ID": ACCESS,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_CONFIG_FILE": "/nonexistent",
                "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(300):
        assert process.poll() is None, "the server has ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server doesn't answer")


@pytest.fixture
def bucket(
    server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """An empty bucket, and the server in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"lake-{abs(hash(request.node.name))}"
    store = server.store()
    store.mkdir(name)
    yield name
    server.store().rm(name, recursive=True)


def test_replica_at_the_server_is_audited(three: ReplicaSet, server: Server, bucket: str) -> None:
    """Identical, and a flipped bit is found, by Hadoop's name for the store as well."""
    store = server.store()
    store.put(str(three.paths["n2"]) + "/", f"{bucket}/n2", recursive=True)
    there = parse_replica(f"n2=s3a://{bucket}/n2")
    whole = audit_replicas([three.replicas[0], there], LocalEngine()).report
    assert int(whole.exit_code) == 0, whole.findings
    assert whole.coverage[1].compared_bytes == whole.coverage[0].compared_bytes > 0
    at = three.header_of(after=20_000).physical_offset + 100
    path = three.flip("n2", at)
    store.put(str(path), f"{bucket}/n2/commitlog/{path.name}")
    rotten = audit_replicas([three.replicas[0], there], LocalEngine()).report
    assert int(rotten.exit_code) == 1
    assert rotten.findings[0].start <= at < rotten.findings[0].end


def test_delta_table_at_the_server(three: ReplicaSet, server: Server, bucket: str) -> None:
    """Every message once, through runs that follow each other; a replica at the server, too."""
    pytest.importorskip("deltalake", reason="deltalake isn't installed: pip install '.[delta]'")
    server.store().put(str(three.paths["n1"]) + "/", f"{bucket}/n1", recursive=True)
    place = f"s3://{bucket}/messages"
    for replica in ("n1=" + str(three.paths["n1"]), f"n1=s3://{bucket}/n1"):
        arguments = ["export", place, "--format", "delta", "--replica", replica]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    import deltalake

    table = deltalake.DeltaTable(place, storage_options={"allow_http": "true"})
    assert keys_of(table.to_pyarrow_table()) == expected_keys(three)
    with pytest.raises(TableTaken):
        export_to_table(three.replicas[0], _Overtaken(f"{place}-2", three), (None, False))
    table = deltalake.DeltaTable(f"{place}-2", storage_options={"allow_http": "true"})
    assert keys_of(table.to_pyarrow_table()) == expected_keys(three)


def test_iceberg_table_at_the_server(
    three: ReplicaSet, server: Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is a file here, and the rows are objects."""
    pytest.importorskip("pyiceberg", reason="pyiceberg isn't installed: pip install '.[iceberg]'")
    lake = lake_of("iceberg", tmp_path / "lake")
    for name, value in lake.environment().items():
        monkeypatch.setenv(name, value)
    use(lake)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"s3://{bucket}/iceberg")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    reload_configuration()
    export_to_table(three.replicas[0], lake.table(), (None, False), step_bytes=16_384)
    assert keys_of(lake.rows()) == expected_keys(three)
    assert server.store().find(f"{bucket}/iceberg")
    assert not list(lake.folder.rglob("*.parquet"))


class _Overtaken:
    """A table to which another run gets between reading and appending: the server has to refuse
    the second commit of one version."""

    def __init__(self, place: str, three: ReplicaSet) -> None:
        self._inner = DeltaMessages(place)
        self._other, self._replica = DeltaMessages(place), three.replicas[1]
        self.name, self.next_offset = self._inner.name, self._inner.next_offset
        self.append, self.sync = self._inner.append, self._inner.sync
        self.is_there = self._inner.is_there

    def opened(self, choice: Choice) -> Mark | None:
        mark = self._inner.opened(choice)
        export_to_table(self._replica, self._other, (None, False))
        return mark


def test_what_is_wrong_is_one_line(three: ReplicaSet, server: Server, bucket: str) -> None:
    """Wrong bucket, other credentials, none: each its exit code, and no secret."""
    wrong = {"AWS_SECRET_ACCESS_KEY": "another-secret"}
    for environment, arguments, code, words in (
        ({}, ["stats", "--replica", "n1=s3://no-such-bucket/n1"], 2, "No such file"),
        (wrong, ["stats", "--replica", f"n1=s3://{bucket}/n1"], 2, "no permission"),
        (wrong, ["export", f"s3://{bucket}/t", "--format", "delta",
                 "--replica", f"n1={three.paths['n1']}"], 2, "no permission"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
         ["stats", "--replica", f"n1=s3://{bucket}/n1"], 2, "credentials"),
        ({}, ["export", "s3://no-such-bucket/t", "--format", "delta",
              "--replica", f"n1={three.paths['n1']}"], 2, "no bucket"),
    ):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value) if value else patch.delenv(name)
            server.store()
            done = CliRunner().invoke(app, arguments)
        lines = done.stderr.splitlines()
        assert (done.exit_code, len(lines), words in lines[0]) == (code, 1, True), done.output
        assert SECRET not in done.output
        assert "another-secret" not in done.output
    server.store()


def test_server_that_is_gone_is_incomplete(
    three: ReplicaSet, server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port at which nobody answers: exit code 3, whatever was asked."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        server.store()
        done = CliRunner().invoke(app, ["stats", "--replica", f"n1=s3://{bucket}/n1"])
        assert (done.exit_code, len(done.stderr.splitlines())) == (3, 1), done.output
        there = Replica("n2", f"s3://{bucket}/n2")
        report = audit_replicas([three.replicas[0], there], LocalEngine()).report
        assert int(report.exit_code) == 3
    server.store()
    assert os.environ["AWS_ENDPOINT_URL"] != f"http://127.0.0.1:{port}"
