"""What a node under test is configured with: other addresses to dial, faults below it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config import ConfigError, dump_toml, load_config
from broker.node import this_machine
from chaos.faults import (
    FAULT_INJECTION_VARIABLE,
    ClockFault,
    FaultOrders,
    FaultyFiles,
    give_orders,
)
from chaos.node import machine_under_test
from store.files import OsFiles

BASE = """\
broker_group = "g1"
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


def started(folder: Path, *, variable: str | None) -> subprocess.CompletedProcess[str]:
    """`python -m chaos.node` with a configuration that can't be read."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DLEDGER")}
    if variable is not None:
        environment[FAULT_INJECTION_VARIABLE] = variable
    command = [sys.executable, "-P", "-m", "chaos.node"]
    return subprocess.run(
        [*command, "--config", str(folder / "none.toml"), "--faults", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("variable", [None, "0", "true"])
def test_faults_are_refused_unless_the_environment_admits_them(
    tmp_path: Path, variable: str | None
) -> None:
    """Whoever starts this entry by mistake gets no node that lies about its disk."""
    refused = started(tmp_path, variable=variable)
    assert refused.returncode == 2
    assert FAULT_INJECTION_VARIABLE in refused.stderr


def test_admitted_entry_reads_its_configuration(tmp_path: Path) -> None:
    """With the variable it goes on to what any node does first."""
    admitted = started(tmp_path, variable="1")
    assert admitted.returncode == 2
    assert "none.toml" in admitted.stderr


def test_configuration_knows_no_faults(tmp_path: Path) -> None:
    """The product's file can't ask for them, whatever the environment says."""
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(written(tmp_path, '[faults]\ndirectory = "faults"\n'))


def test_orders_reach_the_disk_and_the_clock_of_a_machine_under_test(tmp_path: Path) -> None:
    """The product's own has the real ones."""
    real, faulty = this_machine(), machine_under_test(tmp_path / "faults")
    assert isinstance(real.files, OsFiles)
    assert isinstance(faulty.files, FaultyFiles)
    give_orders(tmp_path / "faults", FaultOrders(clock=(ClockFault(offset_ms=3_600_000),)))
    assert faulty.now_ms() - real.now_ms() > 3_500_000
