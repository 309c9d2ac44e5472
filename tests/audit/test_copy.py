"""`dledger audit copy`: what is said of a cold copy, how it ends, and that it only reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.proof.copy import SCHEMA
from dledger.reading.checkpoint import CheckpointState, encode_checkpoint
from dledger.records.layout import UNITS_PER_FILE
from store.directory import write_sealed
from store.files import OsFiles
from tests.audit.replicas import copy_sparse, flip_bit, listed
from tests.starting.members import SEGMENT, lived, segment

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A member that was killed."""
    return lived(tmp_path_factory.mktemp("lived"), UNITS_PER_FILE).killed


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "n1", copy_function=copy_sparse)
    return tmp_path / "n1"


class Said(NamedTuple):
    code: int
    text: str


def audited(*arguments: object) -> Said:
    """How the command ended, which is never in a traceback."""
    result = CliRunner().invoke(app, ["copy", "--processes", "1", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return Said(result.exit_code, result.stdout)


def unit_of(path: Path) -> Path:
    return next((path / "consumequeue").rglob("0" * 20))


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_link(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


CASES: dict[str, tuple[Damage, int, str]] = {
    "nothing": (lambda path: None, 0, "SOUND"),
    "a stray": (lambda path: (path / "stray").touch(), 0, "IGNORED: stray: stray"),
    "a name that is no text": (
        lambda path: Path(os.fsdecode(os.fsencode(path) + b"/commitlog/\xff\x1b")).touch(), 0,
        r"\xff\x1b",
    ),
    "no identity": (lambda path: (path / "identity.json").unlink(), 3, "identity missing"),
    "no term and vote": (
        lambda path: (path / "raft" / "hard_state").unlink(), 3, "term and vote missing",
    ),
    "a bit of term and vote": (
        lambda path: flip_bit(path / "raft" / "hard_state", 8), 1, "term and vote damaged",
    ),
    "no checkpoint": (lambda path: (path / "checkpoint").unlink(), 3, "checkpoint missing"),
    "a bit of the checkpoint": (
        lambda path: flip_bit(path / "checkpoint", 99), 1, "checkpoint damaged",
    ),
    "a checkpoint from beyond": (
        lambda path: (path / "checkpoint").write_bytes(
            encode_checkpoint(CheckpointState(watermark=1 << 63))
        ),
        1, "REFUSED: log damaged",
    ),
    "a segment less": (lambda path: segment(path, 2).unlink(), 3, "segment missing"),
    "no segments": (lambda path: shutil.rmtree(path / "commitlog"), 3, "segment missing"),
    "a last segment too long": (
        lambda path: os.truncate(segment(path, 6), SEGMENT + 9), 1, "log damaged",
    ),
    "a name beyond all offsets": (
        lambda path: (path / "commitlog" / ("9" * 20)).touch(), 3, "segment missing",
    ),
    "a bit of an entry": (lambda path: flip_bit(segment(path, 1), 900), 1, "BIT ROT"),
    "a bit of a unit": (lambda path: flip_bit(unit_of(path), 3), 1, "consume queue unit wrong"),
    "no queues": (lambda path: shutil.rmtree(path / "consumequeue"), 3, "units missing"),
    "a pipe": (lambda path: to_pipe(segment(path, 3)), 1, "a pipe"),
    "a pipe among the queues": (lambda path: to_pipe(unit_of(path)), 1, "no regular file"),
    "a link": (lambda path: to_link(segment(path, 3)), 1, "a symbolic link"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "code", "said"), CASES.values(), ids=CASES.keys())
def test_copy_is_judged_and_left_alone(path: Path, damage: Damage, code: int, said: str) -> None:
    """Every line fits a terminal, none moves its cursor, and nothing there has changed."""
    damage(path)
    before = listed(path)
    result = audited(path)
    assert listed(path) == before
    assert result.code == code, result.text
    assert said in " ".join(result.text.split())
    assert all(len(line) <= 80 and line.isprintable() for line in result.text.splitlines())


def test_copy_of_somebody_else(path: Path) -> None:
    """Whoever says whose it must be, is told whose it is."""
    assert audited(path, "--group", "g1", "--node", "n1").code == 0
    for wanted in (("--group", "g2"), ("--node", "n2")):
        result = audited(path, *wanted)
        assert result.code == 1
        assert "made for something else" in result.text


def test_identity_that_no_terminal_could_show(path: Path) -> None:
    """A name of half a character, its seal repaired."""
    fields = json.loads((path / "identity.json").read_text())
    del fields["crc32c"]
    write_sealed(OsFiles(), path / "identity.json", fields | {"group": "\ud800\x1b[2J"})
    said = audited(path)
    assert r"\ud800\x1b[2J" in said.text
    assert json.loads(audited(path, "--json").text)["directory"]["broker_group"]


def test_facts_as_json(path: Path) -> None:
    """The directory's, the findings', and the log's report as the other audits have it."""
    for name in ("hard_state", "hard_state.copy"):
        flip_bit(path / "raft" / name, 8)
    facts = json.loads(audited(path, "--json").text)
    assert (facts["schema"], facts["verdict"], facts["exit_code"]) == (SCHEMA, "damaged", 1)
    assert facts["directory"]["node_id"] == "n1"
    assert facts["starts"] is False
    assert "raft/hard_state at byte" in facts["refusal"]
    assert [each["effect"] for each in facts["findings"]] == ["refused"]
    assert facts["log"]["schema"] == "dledger-audit/1"
    assert facts["log"]["verdict"] == "identical"


def test_directory_that_is_none(tmp_path: Path) -> None:
    """A mistake of the caller's: there is nothing that could be wrong."""
    assert audited(tmp_path / "nothing").code == 2
    (tmp_path / "file").touch()
    assert audited(tmp_path / "file").code == 2
