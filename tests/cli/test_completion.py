"""Completion by the shell: what each TAB is answered, and what is installed where."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli import COMPLETE, main
from dledger_cli.app import PROGRAMS, app
from dledger_cli.completion import program_for


def completed(line: str) -> list[str]:
    """How bash is told that the line goes on."""
    words = line.split()
    at = len(words) - (not line.endswith(" "))
    asked = {COMPLETE: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    result = CliRunner().invoke(program_for(words), [], env=asked, prog_name="dledger")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dledger to", ["topic"]),
        ("dledger topic up", ["update"]),
        ("dledger topic update t --pe", ["--perm"]),
        ("dledger topic update t --perm ", ["rw", "r", "w"]),
        ("dledger consumers reset", ["reset-offset"]),
        ("dledger consume --fro", ["--from"]),
        ("dledger produce --js", ["--json"]),
        ("dledger dlq re", ["resend"]),
        ("dledger --vers", ["--version"]),
        ("dledger nonsense x", []),
    ],
)
def test_a_line_goes_on_as_the_program_would_take_it(line: str, expected: list[str]) -> None:
    """Programs that stand behind a word, too, whether they have commands or are one."""
    assert completed(line) == expected


def test_every_word_is_offered() -> None:
    assert set(PROGRAMS) | {"version"} == set(completed("dledger "))


def test_what_is_installed_asks_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into the user's own folder; only what it says is written, and what it says is true."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    def told(option: str) -> str:
        assert option in CliRunner().invoke(app, ["--help"]).stdout
        # One of its own: what was asked for anything before has looked for its shell already.
        result = CliRunner().invoke(program_for([]), [option, "bash"], prog_name="dledger")
        assert result.exit_code == 0
        return result.stdout

    shown = told("--show-completion")
    assert f"{COMPLETE}=complete_bash" in shown
    assert not list(tmp_path.iterdir()), "showing writes nothing"
    told("--install-completion")
    written = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert written == {".bashrc", ".bash_completions/dledger.sh"}
    assert (tmp_path / ".bash_completions/dledger.sh").read_text().strip() == shown.strip()

    asked = {COMPLETE: "complete_bash", "COMP_WORDS": "dledger topic cr", "COMP_CWORD": "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main()
    assert (end.value.code, capsys.readouterr().out.split()) == (0, ["create"])
