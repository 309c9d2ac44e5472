"""`dledger certs` signs nobody a name that is another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.certs import app
from tests.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certs") / "certs")


@pytest.mark.parametrize(
    ("node", "group", "host"),
    [
        ("*", "g1", "10.0.0.1"),
        ("n1.g1.dledger", "x", "10.0.0.1"),
        ("n1", "*", "10.0.0.1"),
        ("", "g1", "10.0.0.1"),
        ("n1", "g1", "n2.g1.dledger"),
        ("n1", "g1", "N2.G1.DLEDGER"),
        ("n1", "g1", "dledger"),
        ("n1", "g1", "*.g1.dledger"),
        ("n1", "g1", "*"),
        ("n1", "g1", "bücher.example"),
        ("n1", "g1", ""),
        ("n1", "g1", "1.2.3"),
    ],
)
def test_node_is_signed_its_own_name_alone(
    authority: Authority, node: str, group: str, host: str
) -> None:
    """A pattern, or another node's name as a host, would answer in the place of others."""
    words = ["node", str(authority.folder), node, "--broker-group", group, "--host", host]
    before = set(authority.folder.iterdir())
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert set(authority.folder.iterdir()) == before


@pytest.mark.parametrize("name", ["", "*", "ü", "a/b", "..", "ca"])
def test_client_has_a_plain_name(authority: Authority, name: str) -> None:
    """Nothing is written beside the folder, nor over the authority."""
    before = {path: path.read_bytes() for path in authority.folder.iterdir()}
    result = CliRunner().invoke(app, ["client", str(authority.folder), name])
    assert result.exit_code == 2, result.output
    assert {path: path.read_bytes() for path in authority.folder.iterdir()} == before


def test_hosts_are_names_and_addresses(tmp_path: Path) -> None:
    """As many as clients dial."""
    authority = Authority(tmp_path / "certs")
    hosts = ["n1.example", "localhost", "10.0.0.1", "::1"]
    words = ["node", str(authority.folder), "n1", "--broker-group", "g1"]
    result = CliRunner().invoke(app, [*words, *(f"--host={host}" for host in hosts)])
    assert result.exit_code == 0, result.output
