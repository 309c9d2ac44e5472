"""The log file and who rotates it; and an address that is another one than where a node listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import ConfigError, load_config
from broker.logging import LogFile

CONFIG = """\
broker_group = "g1"
node_id = "n1"
data_directory = "data"
listen = "0.0.0.0:7001"
insecure = true
{advertise}
[peers]
n1 = "10.0.0.1:7001"
"""


def test_log_file_is_opened_anew_after_a_rotation(tmp_path: Path) -> None:
    """Lines written before are in the old file, later ones in the new one."""
    path = tmp_path / "node.log"
    log = LogFile(path)
    log.write("before\n")
    path.rename(tmp_path / "node.log.1")
    log.write("renamed\n")
    log.reopen()
    log.write("after\n")
    log.close()
    assert (tmp_path / "node.log.1").read_text() == "before\nrenamed\n"
    assert path.read_text() == "after\n"


def test_log_file_that_cannot_be_opened_stays_the_old_one(tmp_path: Path) -> None:
    """A rotation that went wrong must not end the node, nor its log."""
    (tmp_path / "logs").mkdir()
    log = LogFile(tmp_path / "logs" / "node.log")
    (tmp_path / "logs").rename(tmp_path / "old")
    log.reopen()
    log.write("still here\n")
    log.close()
    assert "still here\n" in (tmp_path / "old" / "node.log").read_text()


def test_node_listens_elsewhere_than_it_is_known(tmp_path: Path) -> None:
    """A container's 0.0.0.0; what is advertised must be the entry in `peers`."""
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.format(advertise='advertise = "10.0.0.1:7001"'))
    config = load_config(path)
    assert (config.listen, config.peers["n1"]) == ("0.0.0.0:7001", "10.0.0.1:7001")
    for wrong, key in (("", "listen"), ('advertise = "10.0.0.9:7001"', "advertise")):
        path.write_text(CONFIG.format(advertise=wrong))
        with pytest.raises(ConfigError, match=f"{key}.*peers.n1"):
            load_config(path)
