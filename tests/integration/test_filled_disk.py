"""Disks without a free byte, from each step of the protocol on: what safety needs goes on.

On the simulated disk, and on a small tmpfs that somebody else fills, where root may mount one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.sim.disk import SimulatedDisk
from chaos.sim.machine_config import DATA
from tests.integration.filled_disk import formed, protocol

ROOT = Path(__file__).parent.parent.parent
ALONE = ("unshare", "-m", "--propagation", "private")  # a mount namespace of its own


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    mount = [*ALONE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(mount, check=False, capture_output=True).returncode == 0


def test_simulated_disk_that_fills_at_any_step_ends_nothing() -> None:
    """Terms, a cut and the checkpoint need no space that isn't there, nor does the next start."""
    disk = SimulatedDisk()
    formed(disk, DATA)
    protocol(disk, DATA)
    step = 0
    while True:
        before = disk.operations
        disk.fill_up(0, in_operations=step)
        protocol(disk, DATA)
        used = disk.operations - before
        disk.make_room()
        if used <= step:
            break
        step += 3
    assert step > 50


def said_on_a_real_disk(program: str, folder: Path) -> str:
    """What the program of that name prints, alone with a small file system."""
    done = subprocess.run(
        [*ALONE, sys.executable, "-m", f"tests.integration.{program}", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(not can_mount(), reason="needs root and a mount namespace of its own")
def test_real_disk_that_others_fill_at_any_step_ends_nothing(tmp_path: Path) -> None:
    """The same below a real file system; a first start without space is refused as StorageFull."""
    said = said_on_a_real_disk("filled_disk", tmp_path)
    steps, refused = (int(word) for word in said.split("\n")[-2].split() if word.isdigit())
    assert steps > 40
    assert 0 < refused < steps


@pytest.mark.skipif(not can_mount(), reason="needs root and a mount namespace of its own")
def test_group_on_a_real_disk_goes_on_by_itself_when_there_is_space_again(tmp_path: Path) -> None:
    """Three processes on one disk that somebody else fills: sends are refused, pulls go on, the
    doctor names it; with the space back the same processes store what comes."""
    said = said_on_a_real_disk("resumed_disk", tmp_path)
    assert "stored, then DeadlineExceeded" in said  # the client tries until then
