"""New secrets, keys and certificates: there as a whole or not at all, whoever was killed."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.local_group import GroupOptions, LocalGroup
from broker.local_group.layout import GROUP_FILE, SECRET_FILE
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import write_private
from dledger.credentials.secret import GroupSecret
from dledger_cli.app import app
from dledger_cli.authority import certificate_in

KILLED = 9
# Calls the command's arguments; the process is gone at its call of os.fsync number `at`.
RUN = """
import os, sys
from dledger_cli.app import app
at, arguments = int(sys.argv[1]), sys.argv[2:]
sync, count = os.fsync, 0
def fsync(descriptor):
    global count
    count += 1
    if count == at:
        os._exit(9)
    sync(descriptor)
os.fsync = fsync
app(arguments)
"""


def killed_at(sync: int, *arguments: str) -> int:
    """How the command ended, which is killed when it syncs something for that time."""
    return subprocess.run(
        [sys.executable, "-c", RUN, str(sync), *arguments], capture_output=True, check=False
    ).returncode


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_file_is_synced_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads half of it, and what was said to be there is."""
    sync, seen = os.fsync, []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_folder, (tmp_path / "key").exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_private(tmp_path / "key", b"secret")
    assert seen == [(False, False), (True, True)]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(CredentialUnusable, match="File exists"):
        write_private(tmp_path / "key", b"another")
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert names(tmp_path) == ["key"]


def test_a_file_system_without_links_takes_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is overwritten there either, and half a file is taken away again."""

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    write_private(tmp_path / "key", b"secret")
    with pytest.raises(CredentialUnusable, match="File exists"):
        write_private(tmp_path / "key", b"another")
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert names(tmp_path) == ["key"]
    with pytest.raises(CredentialUnusable):
        write_private(Path(), b"no name")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an empty secret, which would be in the way of the next one."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CredentialUnusable, match="No space left"):
        GroupSecret.create(tmp_path / SECRET_FILE)
    assert names(tmp_path) == []


def test_a_group_whose_secret_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    """And nothing of either is left once it is wiped."""
    secret = tmp_path / "run" / SECRET_FILE
    secret.parent.mkdir()
    assert killed_at(1, "certs", "secret", str(secret)) == KILLED
    assert secret.name not in names(secret.parent)
    group = LocalGroup.create(secret.parent, GroupOptions(nodes=1))
    GroupSecret.load(secret)
    group.wipe()
    assert not secret.parent.exists()


def test_nodes_are_configured_before_a_group_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file says that they are: after a power cut, too."""
    sync, synced = os.fsync, []

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        assert not (tmp_path / GROUP_FILE).exists() or synced[-1] == tmp_path.name
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    LocalGroup.create(tmp_path, GroupOptions(nodes=2))
    of_nodes = [name for name in synced if name in ("node.toml", "n1", "n2")]
    assert of_nodes == ["node.toml", "n1", "node.toml", "n2"]


@pytest.mark.parametrize("sync", [1, 2, 3, 4])
def test_an_authority_that_was_cut_short_is_made_by_the_next_call(
    tmp_path: Path, sync: int
) -> None:
    """Behind whichever step; a key that is there is the certificate's."""
    folder = tmp_path / "certs"
    assert killed_at(sync, "certs", "authority", str(folder)) == KILLED
    key = folder / "ca.key"
    was = key.read_bytes() if key.exists() else None
    again = CliRunner().invoke(app, ["certs", "authority", str(folder)])
    if sync == 4:  # All was done but that a power cut might have undone it.
        assert again.exit_code != 0
        assert "nothing is overwritten" in again.output
    else:
        assert again.exit_code == 0, again.output
        assert ("no new key was made" in again.stderr) == (was is not None)
    assert was in (None, key.read_bytes())
    assert (was is None) == (sync == 1)
    certificate_in(folder / "ca.pem")
    node = ["n1", "--broker-group", "g1", "--host", "127.0.0.1"]
    assert CliRunner().invoke(app, ["certs", "node", str(folder), *node]).exit_code == 0
