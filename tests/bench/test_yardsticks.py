"""The yardsticks run, measure what they say, and leave nothing behind. No figure is judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger.terminal.loops import run
from dledger_cli.bench.yardsticks import (
    EchoSample,
    echo_client,
    echo_server,
    sample_disk,
    sample_echo,
)


def test_the_echo_answers_over_a_real_connection() -> None:
    """One short round against the server in its own process."""

    async def one_round(address: str) -> EchoSample:
        async with echo_client(address) as echo:
            assert await echo(b"hello") == b"hello"
            return await sample_echo(echo, 0.01)

    with echo_server() as address:
        sample = run(one_round(address))
    assert sample.calls_per_s > 0
    assert sample.p50_s > 0


def test_the_echo_server_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the block ends with an error."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remembered(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remembered)
    with pytest.raises(ZeroDivisionError), echo_server():
        raise ZeroDivisionError
    assert started[0].poll() == 0


def test_the_echo_server_ends_when_its_benchmark_is_killed() -> None:
    """It reads its standard input, which ends with whoever held the other side."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dledger_cli.bench.echo_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    output, _ = process.communicate(timeout=30)  # closes standard input at once
    assert int(output) > 0
    assert process.returncode == 0


def test_the_disk_round_leaves_no_file(tmp_path: Path) -> None:
    """Each append was timed, and the directory is as it was."""
    sample = sample_disk(tmp_path, appends=5)
    assert 0 < sample.p50_s <= sample.p99_s
    assert sample.appends_per_s > 0
    assert os.listdir(tmp_path) == []
