"""`dledger group priority` on a group of real processes: shown, refused, handed over, kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger.outcome import ExitCode
from tests.cli.called import command
from tests.cli.test_out_of_service import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("priority") / "run"
    up = command("group", "up", "--dir", str(where))
    assert up.returncode == ExitCode.DONE, up.stderr
    yield where
    command("group", "down", "--dir", str(where))


def facts(folder: Path, *words: str) -> dict[str, Any]:
    done = command(*words, "--dir", str(folder), "--json")
    assert done.returncode == ExitCode.DONE, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def leader(folder: Path) -> str | None:
    """Who leads, if anybody does: while leadership is handed over nobody may."""
    done = command("group", "status", "--dir", str(folder), "--json")
    assert done.returncode in (ExitCode.DONE, ExitCode.UNREACHABLE), done.stderr
    found: str | None = json.loads(done.stdout)["leader"]
    return found


def prefers(folder: Path, *words: str) -> str | None:
    """What `group priority` says; a group in which level 2 isn't in use yet is asked again."""
    done = until(
        lambda: (
            told
            if (told := command("group", "priority", *words, "--dir", str(folder), "--json")).stdout
            else None
        )
    )
    found: str | None = json.loads(done.stdout)["preferred"]
    return found


def test_preferred_member_leads_after_a_while_and_is_shown(folder: Path) -> None:
    assert prefers(folder) is None
    first = until(lambda: leader(folder))
    chosen = next(name for name in ("n1", "n2", "n3") if name != first)
    assert prefers(folder, chosen) == chosen
    assert prefers(folder, chosen) == chosen, "asked again it is so already"
    assert facts(folder, "member", "list")["preferred"] == chosen
    said = command("member", "list", "--dir", str(folder)).stdout
    assert f"{chosen} is preferred as the leader" in said
    until(lambda: leader(folder) == chosen)
    status = facts(folder, "group", "status")
    assert (status["leader"], status["preferred"]) == (chosen, chosen)
    assert f"preferred {chosen}" in command("group", "status", "--dir", str(folder)).stdout
    assert prefers(folder, "--none") is None


@pytest.mark.long
def test_preferred_member_that_dies_leads_again_when_it_is_back(folder: Path) -> None:
    """Nobody waits for it."""
    chosen = until(lambda: leader(folder))
    assert prefers(folder, chosen) == chosen
    command("group", "kill", chosen, "--dir", str(folder))
    until(lambda: leader(folder) not in (chosen, None))
    assert command("group", "start", chosen, "--dir", str(folder)).returncode == 0
    until(lambda: leader(folder) == chosen)
    assert prefers(folder, "--none") is None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("n9",), ExitCode.FAILED, "n9 doesn't vote, and only who votes can lead"),
        (("n1", "--none"), ExitCode.USAGE, "either ID or --none"),
    ],
)
def test_mistakes_are_named(
    folder: Path, words: tuple[str, ...], code: ExitCode, said: str
) -> None:
    done = command("group", "priority", *words, "--dir", str(folder))
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
