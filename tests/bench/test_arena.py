"""Where a benchmark takes place, and that nothing is left of a group of its own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from broker.local_group import GROUP_FILE, GroupOptions, LocalGroup, LocalGroupError
from dledger.terminal.loops import sigterm_interrupts, uninterrupted
from dledger_cli.bench.arena import arena
from dledger_cli.bench.failover import store_host_of
from dledger_cli.bench.steady import require_room

OPTIONS = GroupOptions(nodes=1)


def test_a_group_of_its_own_lies_beside_the_directory_and_goes(tmp_path: Path) -> None:
    """On the same file system as what was named, since its disk is what is measured."""
    with arena(bootstrap=None, directory=tmp_path / "run", options=OPTIONS) as place:
        assert place.directory is not None
        assert place.directory.parent == tmp_path
        assert place.temporary
        assert (place.directory / GROUP_FILE).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_group_of_its_own_goes_however_the_benchmark_ends(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """An error and Ctrl-C too."""
    with (
        pytest.raises(error),
        arena(bootstrap=None, directory=tmp_path / "run", options=OPTIONS),
    ):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_exists_is_used_and_stays(tmp_path: Path) -> None:
    """Its files are as they were."""
    group = LocalGroup.create(tmp_path, OPTIONS)
    before = sorted(tmp_path.rglob("*"))
    with arena(bootstrap=None, directory=tmp_path, options=OPTIONS) as place:
        assert list(place.addresses) == group.addresses
        assert not place.temporary
        assert place.local_group().directory == group.directory
    assert sorted(tmp_path.rglob("*")) == before


def test_a_group_known_by_address_has_no_processes(tmp_path: Path) -> None:
    """Benchmarks that need them say so."""
    with arena(bootstrap=["h:1"], directory=tmp_path, options=OPTIONS) as place:
        assert place.addresses == ("h:1",)
        assert place.directory is None
        with pytest.raises(LocalGroupError, match="--bootstrap"):
            place.local_group()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    """With a bound that fits it is not."""
    group = LocalGroup.create(tmp_path, OPTIONS)
    with pytest.raises(LocalGroupError, match="--bytes"):
        require_room(group, minutes=1e9, bytes_limit=None)
    with pytest.raises(LocalGroupError, match="MiB left"):
        require_room(group, minutes=1, bytes_limit=1 << 60)
    require_room(group, minutes=1e9, bytes_limit=1 << 10)


def test_the_store_host_is_the_first_half_of_message_ids() -> None:
    """IPv4 and port, big-endian: how an acknowledgement tells who stamped it."""
    assert store_host_of("127.0.0.1:7001") == bytes.fromhex("7f000001 00001b59")


def test_sigterm_is_an_interrupt_and_then_itself_again() -> None:
    """A service manager's stop leaves no more behind than Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_ends_a_program_that_ignores_ctrl_c() -> None:
    """As one does that a script started in its background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_tidying_up_is_not_interrupted() -> None:
    """A second Ctrl-C, while nodes are being killed, must not leave some of them."""
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
