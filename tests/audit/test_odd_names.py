"""File names that are no text, or would move a terminal's cursor: shown and never obeyed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from broker.doors.grpc.audit import AuditDoor
from broker.services.audit import Audit, AuditedPlace
from dledger.reading.files import printable
from dledger.wire import audit_pb2 as apb
from tests.audit.replicas import ReplicaSet

ODD = (b"\xff\xfe", b"\x1b[2J", b"two\nlines", b"<b>&", "\u202e".encode())


@pytest.fixture
def odd(three: ReplicaSet) -> ReplicaSet:
    """Strays of such names in one replica, whose own folder has one as well."""
    for name in ODD:
        Path(os.fsdecode(os.fsencode(three.paths["n2"] / "commitlog") + b"/" + name)).touch()
    moved = Path(os.fsdecode(os.fsencode(three.root) + b"/n2\xff"))
    three.paths["n2"].rename(moved)
    three.paths["n2"] = moved
    return three


def audited(three: ReplicaSet, *options: str) -> str:
    named = [f"--replica={name}={path}" for name, path in three.paths.items()]
    command = ["replicas", "--derived", "--processes", "1", *options, *named]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_report_with_odd_names(odd: ReplicaSet) -> None:
    """On a terminal nothing of them is obeyed."""
    said = audited(odd)
    assert r"\xff\xfe" in said
    assert all(line.isprintable() for line in said.splitlines())
    assert r"two\nlines" in said


def test_page_with_odd_names(odd: ReplicaSet, tmp_path: Path) -> None:
    """It is UTF-8, whatever the names are."""
    audited(odd, "--html", str(tmp_path / "audit.html"))
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert r"\xff\xfe" in page
    assert "<b>&" not in page


def test_json_with_odd_names(odd: ReplicaSet) -> None:
    """It can be read again."""
    facts = json.loads(audited(odd, "--json"))
    assert facts["coverage"][1]["foreign"]


class Whole:
    """`AuditedLog`: nothing has gone, and nothing is committed."""

    first_index = 1

    def retired_end(self) -> int:
        return 0

    def durable_end(self) -> int:
        return 0


def test_survey_with_odd_names(odd: ReplicaSet) -> None:
    """Whoever asks the node is told of every file: those of such names ended the call, and with it
    every audit and backup that asks nodes."""
    folder = odd.paths["n2"] / "commitlog"
    audit = Audit(AuditedPlace("g", "n2", folder, 4096), Whole(), bytes_per_s=0)
    survey = asyncio.run(AuditDoor(audit).survey_log(apb.SurveyLogRequest(), None))
    told = [each.name for each in survey.files]
    assert len(told) == len(os.listdir(folder))
    assert {r"\xff\xfe", "two\nlines", "<b>&"} <= set(told)
    assert survey.commitlog.endswith(r"/n2\xff/commitlog")
    assert apb.LogSurvey.FromString(survey.SerializeToString()) == survey


def test_what_is_written_out() -> None:
    """Bytes as bytes, everything else as Python writes it; text stays."""
    name = os.fsdecode(b"\xc3\xa4 \xff\x1b\n") + "\u202e\ud800"
    assert printable(name) == "\xe4 " + r"\xff\x1b\n\u202e\ud800"
