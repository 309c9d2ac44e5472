"""What a node under test is configured with: other addresses to dial, faults below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import FAULT_INJECTION_VARIABLE, ConfigError, dump_toml, load_config
from broker.surroundings import machine_of
from chaos.faults import ClockFault, FaultOrders, FaultyFiles, give_orders
from store.files import OsFiles

BASE = """\
group = "g1"
node_id = "n1"
data_directory = "data"
listen = "127.0.0.1:7001"

[peers]
n1 = "127.0.0.1:7001"
n2 = "127.0.0.1:7002"
"""


def written(folder: Path, sections: str = "") -> Path:
    file = folder / "node.toml"
    file.write_text(BASE + sections, encoding="utf-8")
    return file


def test_dial_table_names_other_addresses_and_survives_a_round_trip(tmp_path: Path) -> None:
    """What is read is written again, and nothing is written where nothing is said."""
    config = load_config(written(tmp_path, '[dial]\nn2 = "127.0.0.1:9002"\n'))
    assert config.dial == {"n2": "127.0.0.1:9002"}
    written_again = tmp_path / "again.toml"
    written_again.write_text(dump_toml(config, tmp_path), encoding="utf-8")
    assert load_config(written_again) == config
    assert "dial" not in dump_toml(load_config(written(tmp_path)), tmp_path)


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_only_other_peers_are_dialed(tmp_path: Path, name: str) -> None:
    """Neither this node nor a stranger has a place in the table."""
    with pytest.raises(ConfigError, match="one of the other peers: n2") as caught:
        load_config(written(tmp_path, f'[dial]\n{name} = "127.0.0.1:9002"\n'))
    assert (caught.value.key, caught.value.found) == ("dial", f'"{name}"')


def test_dialed_address_is_checked(tmp_path: Path) -> None:
    """As those of the peers are."""
    with pytest.raises(ConfigError, match="host:port"):
        load_config(written(tmp_path, '[dial]\nn2 = "nowhere"\n'))


def test_faults_are_refused_unless_the_environment_admits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was copied from a test doesn't make a real node lie about its disk."""
    monkeypatch.delenv(FAULT_INJECTION_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=FAULT_INJECTION_VARIABLE) as caught:
        load_config(written(tmp_path, '[faults]\ndirectory = "faults"\n'))
    assert caught.value.key == "faults.directory"


def test_unknown_key_of_faults_is_told_with_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optional section has keys of its own."""
    monkeypatch.setenv(FAULT_INJECTION_VARIABLE, "1")
    with pytest.raises(ConfigError, match=r"expected directory\?"):
        load_config(written(tmp_path, '[faults]\ndirectory = "faults"\ndirektory = "f"\n'))


def test_admitted_faults_reach_the_disk_and_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the section a node has the real ones."""
    monkeypatch.setenv(FAULT_INJECTION_VARIABLE, "1")
    real = machine_of(load_config(written(tmp_path)))
    assert isinstance(real.files, OsFiles)
    config = load_config(written(tmp_path, '[faults]\ndirectory = "faults"\n'))
    faulty = machine_of(config)
    assert isinstance(faulty.files, FaultyFiles)
    give_orders(tmp_path / "faults", FaultOrders(clock=(ClockFault(offset_ms=3_600_000),)))
    assert faulty.now_ms() - real.now_ms() > 3_500_000
