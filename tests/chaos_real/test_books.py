"""The books of groups' members: a run is checked again with all of them, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.errors import RunBroken
from chaos.real.crew import BOOKS_FOLDER, CREW_FILE, Crew, Process, read_deliveries
from chaos.real.finished import check
from chaos.real.measure import report_facts
from tests.chaos_real.finished_run import finished_run

FORGOTTEN = "p0-0-7"


def left_behind(folder: Path) -> Path:
    """The folder of a run in which the group that has no order was done with all but one message,
    and the others with all."""
    finished = finished_run()
    load = replace(finished.options.load, queues=1)
    finished.options = replace(finished.options, directory=folder, load=load)
    lines = list(finished.history.lines())
    (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))
    polled = finished.history.operations[-1].result
    assert isinstance(polled, tuple)
    made = crew_with_books(folder, [value for _, value in polled])
    made.save(0)
    check(finished)
    (folder / "report.json").write_text(json.dumps(report_facts(finished)))
    return folder


def crew_with_books(folder: Path, values: list[str]) -> Crew:
    """Two processes of each group, of which the second died before it had begun."""
    (folder / BOOKS_FOLDER).mkdir()
    made = Crew(folder / BOOKS_FOLDER, [], 1, 1)
    for group, (member,) in made.names.items():
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        for number in (1, 2):
            book = folder / BOOKS_FOLDER / f"{member}.{number}.jsonl"
            made._processes.append(Process(group, member, number, ended, book, 0))
        done = [each for each in values if group != "any-order" or each != FORGOTTEN]
        events = [
            {"us": 2 * at + (what == "done"), "what": what, "value": value, "call": at}
            for at, value in enumerate(done)
            for what in ("begin", "done")
        ]
        text = "".join(json.dumps(event) + "\n" for event in events)
        # The last line was cut short by SIGKILL.
        made._processes[-2].book.write_text(text + '{"us":')
    return made


def checked_again(folder: Path) -> tuple[int, str, dict[str, Any]]:
    ended = CliRunner().invoke(app, ["report", str(folder)])
    return ended.exit_code, ended.stderr, json.loads((folder / "report.json").read_text())


def test_what_members_did_is_found_again(tmp_path: Path) -> None:
    """The same, however often it is asked for."""
    folder = left_behind(tmp_path)
    before = json.loads((folder / "report.json").read_text())
    assert before["anomaly_counts"] == {"forgotten": 1}
    for _ in range(2):
        exit_code, told, facts = checked_again(folder)
        assert (exit_code, told) == (1, "")
        assert {k: facts[k] for k in ("anomalies", "deliveries", "holds")} == {
            k: before[k] for k in ("anomalies", "deliveries", "holds")
        }


def without_account(folder: Path) -> str:
    (folder / CREW_FILE).unlink()
    return f"{CREW_FILE}: there is no such file, and the run had members"


def without_a_book(folder: Path) -> str:
    (folder / "any-order-1.1.jsonl").unlink()
    return "any-order-1.1.jsonl: cut short: it has 0 lines"


def with_a_cut_book(folder: Path) -> str:
    book = folder / "any-order-1.1.jsonl"
    lines = book.read_bytes().splitlines(keepends=True)
    book.write_bytes(b"".join(lines[:10]))
    return f"cut short: it has 10 lines, the run wrote {len(lines) - 1}"


def without_the_folder(folder: Path) -> str:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return "there is no such file"


@pytest.mark.parametrize(
    "ruin", [without_account, without_a_book, with_a_cut_book, without_the_folder]
)
def test_run_whose_books_are_gone_is_not_judged(
    tmp_path: Path, ruin: Callable[[Path], str]
) -> None:
    """The report stays as it is: what was found in them would be forgotten."""
    folder = left_behind(tmp_path)
    before = (folder / "report.json").read_text()
    reason = ruin(folder / BOOKS_FOLDER)
    exit_code, told, _ = checked_again(folder)
    assert exit_code == 2
    assert reason in " ".join(told.split())
    assert (folder / "report.json").read_text() == before


@pytest.mark.parametrize(
    ("name", "untold"),
    [
        (CREW_FILE, "lines"),  # Nobody knows whether its books are whole.
        (CREW_FILE, "zero_us"),  # Nobody knows which faults were meanwhile.
        ("any-order-1.1.jsonl", "call"),
    ],
)
def test_what_an_earlier_release_left_is_not_judged(tmp_path: Path, name: str, untold: str) -> None:
    """It told less of its members, and says so in no version."""
    folder = left_behind(tmp_path)
    file = folder / BOOKS_FOLDER / name
    file.write_text(file.read_text().replace(f'"{untold}"', '"something_else"'))
    reason = f"made by an earlier release, which didn't tell '{untold}'"
    with pytest.raises(RunBroken, match=reason):
        read_deliveries(folder / BOOKS_FOLDER)
    exit_code, told, _ = checked_again(folder)
    assert exit_code == 2
    assert reason in " ".join(told.split())


def test_a_call_that_ends_and_never_began_is_damage(tmp_path: Path) -> None:
    folder = left_behind(tmp_path) / BOOKS_FOLDER
    book = folder / "any-order-1.1.jsonl"
    book.write_text(book.read_text().replace('"what": "begin"', '"what": "settled"', 1))
    with pytest.raises(RunBroken, match=r"is no account of members: any-order-1.1.jsonl: call"):
        read_deliveries(folder)
