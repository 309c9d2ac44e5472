"""Replicas in an object store: read as if they were files, and what can't be asked there is said.

Most of it is tested with fsspec's store in memory. `test_object_server.py` has a real server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.contents.stats import stats_as_json, sum_log
from audit.delivery.witness import witness_among
from audit.engines.engine import LocalEngine
from audit.errors import NotTheGroups, UsageMistake
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.proof.scope import Files
from audit.reading.replica import Replica, parse_replica
from audit.reading.service import not_the_groups
from dledger.reading import objects
from dledger.reading.errors import CredentialsShown
from dledger.reading.survey import survey_folder
from tests.audit.replicas import ReplicaSet

fsspec = pytest.importorskip("fsspec", reason="fsspec isn't installed: pip install '.[s3]'")


@pytest.fixture
def store(three: ReplicaSet) -> Iterator[str]:
    """The address of a copy of n2 in a store that nobody else has."""
    memory = fsspec.filesystem("memory")
    memory.put(str(three.paths["n2"]) + "/", "/backup/n2", recursive=True)
    yield "memory://backup/n2"
    memory.rm("/backup", recursive=True)
    objects._kept.clear()


def audited(three: ReplicaSet, store: str, options: Options | None = None) -> Report:
    """n1's files beside n2's objects."""
    replicas = [three.replicas[0], parse_replica(f"n2={store}")]
    return audit_replicas(replicas, LocalEngine(), options).report


def test_objects_are_surveyed_as_files_are(three: ReplicaSet, store: str) -> None:
    """Every field is the same, but for where it lies."""
    here = survey_folder("n2", str(three.paths["n2"]))
    there = survey_folder("n2", store)
    for name in here.__dataclass_fields__:
        if name != "commitlog":
            assert getattr(there, name) == getattr(here, name), name
    assert survey_folder("n2", f"file://{three.paths['n2']}") == here


def test_equal_logs_are_identical_and_the_scope_says_that_it_is_the_log(
    three: ReplicaSet, store: str
) -> None:
    """ConsumeQueues, and whether a node would start there, are not asked, and so not said."""
    report = audited(three, store)
    assert (report.exit_code, report.scope.files, report.scope.starts) == (0, Files.LOG, False)
    assert report.coverage[1].compared_bytes == report.coverage[0].compared_bytes > 0
    with pytest.raises(UsageMistake, match=r"--derived reads ConsumeQueues .*n2"):
        audited(three, store, Options(derived=True))


def test_a_mark_beside_objects_keeps_a_log_out_of_service(three: ReplicaSet, store: str) -> None:
    """A member was given up, and its directory put aside in a store: its log isn't the group's."""
    replica = parse_replica(f"n2={store}")
    assert not_the_groups(replica) == ""
    fsspec.filesystem("memory").pipe("/backup/n2/out-of-service.json", b"{}")
    told = f"n2 is out of service: {store} holds out-of-service.json"
    assert not_the_groups(replica) == told
    assert witness_among([three.replicas[0], replica]).replica.id == "n1"
    with pytest.raises(NotTheGroups, match="n2 is out of service"):
        witness_among([replica])


def test_flipped_bit_in_an_object_is_found_where_it_is(three: ReplicaSet, store: str) -> None:
    """With the same finding as in a file, though the object was fetched before."""
    assert audited(three, store).exit_code == 0
    at = three.header_of(after=20_000).physical_offset + 100
    path = three.flip("n2", at)
    fsspec.filesystem("memory").put(str(path), f"/backup/n2/commitlog/{path.name}")
    report, beside = audited(three, store), audit_replicas(
        three.replicas[:2], LocalEngine(), Options(derived=False)
    ).report  # fmt: skip
    assert report.exit_code == 1
    assert [(f.cause, f.start, f.end) for f in report.findings] == [
        (f.cause, f.start, f.end) for f in beside.findings
    ]


def test_missing_object_is_a_missing_segment(three: ReplicaSet, store: str) -> None:
    """Incomplete, by name."""
    fsspec.filesystem("memory").rm(f"/backup/n2/commitlog/{16384:020d}")
    report = audited(three, store)
    assert (int(report.exit_code), report.findings[0].segment) == (3, 16384)


def test_data_is_read_from_objects(three: ReplicaSet, store: str, tmp_path: Path) -> None:
    """Statistics and exports are those of the files."""
    there = Replica("n2", store)
    here = three.replicas[1]
    told = [stats_as_json(sum_log(each, LocalEngine())) for each in (here, there)]
    assert told[0] == told[1]
    target = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["export", target, "--replica", f"n2={store}", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["end"] == three.end


def test_store_that_falls_silent_is_not_an_empty_log(
    three: ReplicaSet, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever question: an audit is incomplete, an export ends with exit code 3."""
    memory = type(fsspec.filesystem("memory"))
    asked = {"ls": memory.ls, "info": memory.info, "cat_file": memory.cat_file}

    def silent(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to AKIAEXAMPLE")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    for name, method in asked.items():
        monkeypatch.setattr(memory, name, silent)
        objects._kept.clear()
        assert int(audited(three, store).exit_code) == 3
        done = CliRunner().invoke(app, ["stats", "--replica", f"n2={store}"])
        assert done.exit_code == 3, done.output
        assert "no route to ***" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        monkeypatch.setattr(memory, name, method)


def test_object_that_changes_while_it_is_read_is_no_copy_of_either(
    three: ReplicaSet, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer bytes than the store said are an error, and never a short file."""
    memory = type(fsspec.filesystem("memory"))
    whole = memory.cat_file
    monkeypatch.setattr(memory, "cat_file", lambda *a, **k: whole(*a, **k)[:-1])
    with pytest.raises(OSError, match="changed while it was read"):
        objects.fetched(f"{store}/identity.json")


def test_object_that_was_replaced_is_fetched_again(store: str) -> None:
    """What is kept is of one version of the object; the descriptor of who has it open stays."""
    path = f"{store}/identity.json"
    before = objects.fetched(path)
    again = objects.fetched(path)
    content = os.pread(before, 4096, 0)
    assert os.path.sameopenfile(before, again)
    fsspec.filesystem("memory").pipe_file("/backup/n2/identity.json", content.swapcase())
    after = objects.fetched(path)
    assert os.pread(after, 4096, 0) == content.swapcase()
    assert os.pread(before, 4096, 0) == content
    for descriptor in (before, again, after):
        os.close(descriptor)


def test_few_objects_are_kept(three: ReplicaSet, store: str) -> None:
    """As files without names; what was opened stays open for whoever did."""
    names = sorted(each for each in objects.sizes_in(f"{store}/commitlog"))
    assert len(names) > objects.KEPT_FILES - 2
    opened = [objects.fetched(f"{store}/commitlog/{name}") for name in names for _ in range(3)]
    assert len(objects._kept) <= objects.KEPT_FILES
    for descriptor, name in zip(opened[::3], names, strict=True):
        content = os.pread(descriptor, 1 << 20, 0)
        assert content == (three.paths["n2"] / "commitlog" / name).read_bytes()
    for descriptor in opened:
        os.close(descriptor)


def test_addresses(three: ReplicaSet) -> None:
    """Hadoop's name for S3 is S3, a local address is a path, and credentials are not repeated."""
    assert parse_replica("n1=s3a://lake/n@1/").path == "s3://lake/n@1"
    assert parse_replica("n1=file:///data/n1@h9") == Replica("n1", "/data/n1", "h9")
    for text in ("n1=s3://me:secret@lake/n1", "n 1=s3a://me:secret@lake"):
        with pytest.raises(CredentialsShown) as told:
            parse_replica(text)
        assert "secret" not in str(told.value)


def test_commands_say_what_is_wrong_with_an_address(three: ReplicaSet, tmp_path: Path) -> None:
    """One line each, and the exit code of its kind."""
    for arguments, code, words in (
        (["stats", "--replica", "n1=memory://nothing/here"], 2, "No such file"),
        (["stats", "--replica", "n1=gopher://lake/n1"], 2, "Protocol not known: gopher"),
        (["stats", "--replica", "n1=s3://me:secret@lake/n1"], 2, "with credentials in it"),
        (["export", "s3://lake/files", "--dir", str(tmp_path)], 2, "--format delta"),
    ):
        done = CliRunner().invoke(app, arguments)
        assert (done.exit_code, len(done.stderr.splitlines())) == (code, 1), done.output
        assert words in done.stderr
        assert "secret" not in done.stderr
