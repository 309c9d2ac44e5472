"""A node's configuration: what is read, and how every kind of mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.config import (
    ConfigError,
    LogConfig,
    NodeConfig,
    RaftConfig,
    StoreConfig,
    dump_toml,
    load_config,
)
from broker.raft_options import raft_options
from broker.standby import what_to_do
from dledger.addresses import is_loopback, split_address
from dledger.core.raft import check_options

BASE = """\
broker_group = "g1"
node_id = "n1"
data_directory = "data"
listen = "127.0.0.1:7001"
"""
PEERS = """
[peers]
n1 = "127.0.0.1:7001"
n2 = "127.0.0.1:7002"
n3 = "127.0.0.1:7003"
"""
TLS = """
[tls]
ca = "ca.pem"
certificate = "n1.pem"
key = "n1.key"
"""
NODE_SECTIONS = (
    "broker_group, node_id, data_directory, listen, metrics_listen, peers, dial, raft, store"
)


def written(folder: Path, text: str) -> Path:
    file = folder / "node.toml"
    file.write_text(text, encoding="utf-8")
    return file


def mistake_in(folder: Path, text: str) -> ConfigError:
    file = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.file == file
    assert str(file) in str(caught.value)
    return caught.value


def test_smallest_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    """What is left out is as the operations page says."""
    config = load_config(written(tmp_path, BASE + PEERS))
    assert (config.broker_group, config.node_id, config.listen) == ("g1", "n1", "127.0.0.1:7001")
    assert config.raft.election_timeout_ms == (150, 300)
    assert config.raft.heartbeat_ms == 50
    assert config.store.segment_size_bytes == 1 << 30
    assert config.store.flush == "sync"
    assert config.broker.long_poll_default_ms == 15_000
    assert config.metrics_listen is None
    assert config.log == LogConfig()


def test_relative_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    """Where the program is started from decides nothing."""
    text = BASE.replace('"data"', '"../n1/data"') + PEERS + '[log]\nfile = "node.log"\n'
    config = load_config(written(tmp_path, text))
    assert config.data_directory == tmp_path.parent / "n1" / "data"
    assert config.log.file == tmp_path / "node.log"


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    """`dump_toml` and `load_config` are each other's inverse."""
    config = NodeConfig(
        broker_group="g",
        node_id="b",
        data_directory=tmp_path / 'a "quoted" \U0001f600 folder' / "data",
        listen="host.example:7002",
        insecure=True,
        secret_file=tmp_path / "secret",
        metrics_listen="127.0.0.1:8001",
        peers={"a": "127.0.0.1:7001", "b": "host.example:7002"},
        raft=RaftConfig(election_timeout_ms=(1000, 2000), heartbeat_ms=100),
        store=StoreConfig(segment_size_bytes=64 << 20, flush="async", write_buffer_bytes=4096),
        log=LogConfig(level="debug", file=tmp_path / "elsewhere.log"),
    )
    assert load_config(written(tmp_path, dump_toml(config, tmp_path))) == config


@pytest.mark.parametrize(
    "name",
    ['"quoted"', "back\\slash", "tab\tand\nline", "\x7f", "\x01", "\U0001f600", "[peers]", "#"],
)
def test_any_folder_name_can_be_written(tmp_path: Path, name: str) -> None:
    """What TOML would take for its own, and what it wants escaped."""
    config = load_config(written(tmp_path, BASE + PEERS))
    odd = config.model_copy(update={"data_directory": tmp_path / name / "data"})
    assert load_config(written(tmp_path, dump_toml(odd, tmp_path))) == odd


def test_a_folder_with_its_configuration_can_be_moved(tmp_path: Path) -> None:
    """Paths within the folder are written relative to it."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    config = load_config(written(before, BASE + PEERS))
    written(before, dump_toml(config, before))
    before.rename(after)
    assert load_config(after / "node.toml").data_directory == after / "data"


@pytest.mark.parametrize(
    ("text", "key", "found", "expected"),
    [
        (BASE, "peers", "nothing", "this key"),
        ("broker_group = 5\n" + BASE.partition("\n")[2] + PEERS, "broker_group", "5", "a string"),
        (BASE.replace("broker_group", "group") + PEERS, "group", '"g1"', "broker_group, as this"),
        (BASE.replace("g1", "g 1") + PEERS, "broker_group", '"g 1"', "a name of 1 to 64"),
        (BASE.replace('"n1"', '"n9"') + PEERS, "node_id", '"n9"', "one of peers: n1, n2, n3"),
        (BASE.replace("7001", "7009") + PEERS, "listen", ":7009", "peers.n1"),
        (BASE.replace(":7001", ":0") + PEERS, "listen", '"127.0.0.1:0"', "port of 1 to 65535"),
        (BASE.replace("127.0.0.1:7001", "[::1]:7001") + PEERS, "listen", "::1", "IPv4 address"),
        (BASE + 'lissten = "a"\n' + PEERS, "lissten", "an unknown key", "listen?"),
        (
            BASE + "zzz = 1\n" + PEERS,
            "zzz",
            "an unknown key",
            "one of broker_group, node_id, data_directory, listen",
        ),
        (BASE + 'metrics_listen = "127.0.0.1:7001"\n' + PEERS, "metrics_listen", "7001", "other"),
        (BASE + "store = 5\n" + PEERS, "store", "5", "a table"),
        (BASE + "[peers]\n", "peers", "{}", "1 to 15 members"),
        (BASE + PEERS + '"n 4" = "127.0.0.1:7004"', "peers.n 4", '"n 4"', "a name of 1 to 64"),
        (BASE + PEERS + 'n4 = "127.0.0.1:7001"', "peers", "127.0.0.1:7001", "different address"),
        (BASE + PEERS + 'n4 = "127.0.0.1:99999"', "peers.n4", "99999", "port of 1 to 65535"),
        (BASE + PEERS + "[log]\nfile = 5", "log.file", "5", "a path as a string"),
        (BASE + PEERS + '[log]\nlevel = "loud"', "log.level", '"loud"', "'debug', 'info'"),
        (BASE + "insecure = true\n" + PEERS + TLS, "insecure", "true", "false beside [tls]"),
        (BASE + PEERS + TLS, "tls.client_certificates", "none", "or a peer_listen, or a secret"),
        (BASE + 'peer_listen = "10.0.0.1:1"\n' + PEERS, "peer_listen", "10.0.0.1:1", "loopback"),
        (BASE + 'admin_listen = "0.0.0.0:1"\n' + PEERS, "admin_listen", "0.0.0.0:1", "insecure"),
        (
            BASE.replace("127.0.0.1", "n1.example")
            + PEERS.replace("127.0.0.1:7001", "n1.example:7001"),
            "listen",
            "n1.example",
            "[tls], or insecure = true",
        ),
        (BASE + 'peer_listen = "127.0.0.1:7001"\n' + PEERS, "peer_listen", "7001", "than listen"),
        ("[[[", "", "line 1", "TOML"),
    ],
)
def test_mistake_names_key_found_and_expected(
    tmp_path: Path, text: str, key: str, found: str, expected: str
) -> None:
    """Each mistake names the place, what stands there and what may stand there."""
    mistake = mistake_in(tmp_path, text)
    assert mistake.key == key
    assert found in mistake.found
    assert expected in mistake.expected


@pytest.mark.parametrize(
    "path", ["", ".", "./", "..", "/", "data/..", "a\\u0000b", "\\u0000"], ids=repr
)
def test_data_directory_has_to_be_a_folder_of_its_own(tmp_path: Path, path: str) -> None:
    """Else the node's files would lie beside, or around, its configuration."""
    text = BASE.replace('"data"', f'"{path}"') + PEERS
    assert mistake_in(tmp_path, text).key == "data_directory"


@pytest.mark.parametrize("path", ["", ".", "..", "node.toml", "x/../node.toml", "a\\u0000b"])
def test_log_file_has_to_be_another_file(tmp_path: Path, path: str) -> None:
    """Neither a folder nor the configuration itself, into which it would write."""
    mistake = mistake_in(tmp_path, f'{BASE}{PEERS}[log]\nfile = "{path}"\n')
    assert mistake.key == "log.file"


NO_ADDRESSES = [
    *("http://127.0.0.1:7001", "http://n1", "a..b:1", "999.1.1.1:7001", "1.2.3:7001", "-a:1"),
    *("", ":7001", "n1", "n1:", "n1:0", "n1:07001", "n1:65536", "n 1:1", "n1:1\\u0000"),
]


@pytest.mark.parametrize("address", NO_ADDRESSES)
@pytest.mark.parametrize("key", ["listen", "metrics_listen", "peers.n2", "dial.n2"])
def test_address_that_is_none_is_refused_by_key(tmp_path: Path, key: str, address: str) -> None:
    """Wherever an address stands, and not at the first dial."""
    written_as = f'"{address}"'
    text = {
        "listen": BASE.replace('"127.0.0.1:7001"', written_as) + PEERS,
        "metrics_listen": f"{BASE}metrics_listen = {written_as}\n{PEERS}",
        "peers.n2": BASE + PEERS.replace('"127.0.0.1:7002"', written_as),
        "dial.n2": f"{BASE}{PEERS}[dial]\nn2 = {written_as}\n",
    }[key]
    mistake = mistake_in(tmp_path, text)
    assert mistake.key == key
    assert "host:port" in mistake.expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broker_group = " + "[" * 5000, "too deep"),
        ("broker_group = " + "[" * 5000 + "]" * 5000, "too deep"),
        ("broker_group = " + "{a=" * 5000, "too deep"),
        ("broker_group" + ".a" * 5000 + " = 1", "too deep"),
        ("raft.tick_ms = " + "9" * 5000, "digits"),
        ("raft.tick_ms = " + "9" * 4000, "9..."),
        ('broker_group = "' + "a" * 100_000 + '"', "a..."),
        ("broker_group = 1979-05-27T00:32:00+99:99", "line 1"),
        ('"g\\nroup" = 1', "an unknown key"),
        ('"g\\u001b[2J" = 1', "an unknown key"),
        ("#" * (1 << 20) + "#", "more"),
        ("a = 1\rb = 2", "line 1"),
    ],
    ids=lambda given: given[:24],
)
def test_hostile_text_is_told_in_one_short_line(tmp_path: Path, text: str, found: str) -> None:
    """Neither a traceback nor a screenful, and nothing that moves the cursor."""
    rest = BASE.replace('broker_group = "g1"', "") if text.startswith("broker_group") else BASE
    mistake = mistake_in(tmp_path, f"{text}\n{rest}{PEERS}")
    assert found in mistake.found
    assert len(str(mistake)) < 1000
    assert str(mistake).isprintable()


def test_device_without_an_end_is_no_configuration() -> None:
    """It isn't read until memory is full."""
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        load_config(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("section", "line", "found", "expected"),
    [
        ("raft", "tick_ms = true", "true", "a whole number"),
        ("raft", "tick_ms = 0", "0", "at least 1"),
        ("raft", "pre_vote = false", "an unknown key", "tick_ms, election_timeout_ms"),
        ("raft", "election_timeout_ms = [300, 150]", "[300, 150]", "first < second"),
        ("raft", "election_timeout_ms = [150]", "[150]", "a list of two whole numbers"),
        ("raft", "election_timeout_ms = [1, 2, 3]", "[1, 2, 3]", "a list of two whole numbers"),
        ("raft", "election_timeout_ms = 150", "150", "a list of two whole numbers"),
        ("raft", "election_timeout_ms = [155, 300]", "[155, 300]", "raft.tick_ms = 10"),
        ("raft", "heartbeat_ms = 80", "80", "half of the shortest election timeout (150)"),
        ("raft", 'max_append_bytes = "1MiB"', '"1MiB"', "a whole number"),
        ("store", "segment_size_bytes = 4194304", "4194304", "max_message_bytes + 1 MiB"),
        ("store", "segment_size_bytes = 67108865", "67108865", "a multiple of 4096"),
        ("store", "segment_size_bytes = 4294967296", "4294967296", "at most 2147483648"),
        ("store", "write_buffer_bytes = 4096", "4096", 'store.flush = "async"'),
        ("store", f"reserve_bytes = {1 << 64}", str(1 << 64), f"at most {1 << 62}"),
        ("retention", f"bytes = {1 << 64}", str(1 << 64), f"at most {1 << 62}"),
        ("store", 'flush = "never"', '"never"', "'sync' or 'async'"),
        ("store", "mlock = 1", "1", "true or false"),
        ("broker", "max_message_bytes = 8388608", "8388608", "at most 4194304"),
        ("broker", "long_poll_default_ms = 30000", "30000", "broker.long_poll_max_ms = 20000"),
    ],
)
def test_mistake_in_a_section_names_its_key(
    tmp_path: Path, section: str, line: str, found: str, expected: str
) -> None:
    """Inside a section the key is told with the section's name."""
    mistake = mistake_in(tmp_path, f"{BASE}{PEERS}\n[{section}]\n{line}\n")
    assert mistake.key == f"{section}.{line.partition(' ')[0]}"
    assert found in mistake.found
    assert expected in mistake.expected


def test_write_buffer_is_admitted_with_async_flush(tmp_path: Path) -> None:
    """TransientStorePool's part is an option of the weaker mode only."""
    store = '[store]\nflush = "async"\nwrite_buffer_bytes = 1048576\n'
    config = load_config(written(tmp_path, BASE + PEERS + store))
    assert config.store.write_buffer_bytes == 1 << 20


@pytest.mark.parametrize("members", [1, 2, 3, 4, 15])
def test_odd_and_even_groups_are_accepted(tmp_path: Path, members: int) -> None:
    """An even group tolerates no more than the odd one below it, but works."""
    peers = "".join(f'n{i} = "127.0.0.1:{7000 + i}"\n' for i in range(1, members + 1))
    config = load_config(written(tmp_path, f"{BASE}[peers]\n{peers}"))
    assert len(config.peers) == members


def test_group_of_sixteen_is_refused(tmp_path: Path) -> None:
    """The number of members has a bound, like everything."""
    peers = "".join(f'n{i} = "127.0.0.1:{7000 + i}"\n' for i in range(1, 17))
    assert mistake_in(tmp_path, f"{BASE}[peers]\n{peers}").expected == "1 to 15 members"


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    """The first is told in full, the others are announced."""
    mistake = mistake_in(tmp_path, BASE + PEERS + "[raft]\ntick_ms = 0\nheartbeat_ms = 0\n")
    assert mistake.key == "raft.tick_ms"
    assert mistake.expected == "at least 1 (and 1 more mistake)"


def test_missing_file_is_told_with_the_systems_reason(tmp_path: Path) -> None:
    """No key, but the file and why it can't be read."""
    with pytest.raises(ConfigError, match="No such file") as caught:
        load_config(tmp_path / "absent.toml")
    assert caught.value.key == ""


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The byte and its position are told."""
    file = tmp_path / "node.toml"
    file.write_bytes(b'broker_group = "\xff"')
    with pytest.raises(ConfigError, match="byte 0xff at 16"):
        load_config(file)


def test_configuration_is_frozen(tmp_path: Path) -> None:
    """What was checked can't be changed afterwards."""
    config = load_config(written(tmp_path, BASE + PEERS))
    with pytest.raises(ValueError, match="frozen"):
        config.raft.tick_ms = 20


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    """An accepted address splits into a host and a port that make it up again."""
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert 1 <= port <= 65535
    assert host
    assert text.startswith(f"{host}:")


def test_certificates_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    """And written relative to it, so that the folder can be moved as a whole."""
    text = BASE + 'secret_file = "secret"\n' + PEERS + TLS
    config = load_config(written(tmp_path, text))
    assert config.secret_file == tmp_path / "secret"
    assert config.tls is not None
    assert (config.tls.ca, config.tls.key) == (tmp_path / "ca.pem", tmp_path / "n1.key")
    again = load_config(written(tmp_path, dump_toml(config, tmp_path)))
    assert again == config
    assert str(tmp_path) not in dump_toml(config, tmp_path)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1"])
def test_loopback_needs_no_tls(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.1:1", "localhost.example:1", "n1:1"])
def test_everything_else_does(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("known_as", "admin", "told"),
    [
        ("10.0.0.1:7001", "10.1.0.1:7101", "10.1.0.1:7101"),
        ("10.0.0.1:7001", "0.0.0.0:7101", "10.0.0.1:7101"),
        ("10.0.0.1:7001", "127.0.0.1:7101", None),
        ("127.0.0.1:7001", "127.0.0.1:7101", "127.0.0.1:7101"),
    ],
)
def test_administration_is_told_where_others_reach_it(
    known_as: str, admin: str, told: str | None
) -> None:
    """On another machine this one's loopback is another node's: nobody is sent there."""
    config = NodeConfig.model_validate(
        {
            "broker_group": "g1",
            "node_id": "n1",
            "data_directory": "data",
            "listen": known_as,
            "admin_listen": admin,
            "peers": {"n1": known_as},
            "insecure": True,
        }
    )
    assert config.admin_address == told
    assert ("other machines don't reach" in what_to_do(config, "unformed")) is (told is None)


@given(
    tick=st.integers(1, 100),
    shortest=st.integers(1, 1_000),
    more=st.integers(1, 5_000),
    heartbeat=st.integers(1, 1_000),
)
@example(tick=10, shortest=150, more=150, heartbeat=30)
def test_times_that_are_taken_are_times_that_a_node_starts_with(
    tick: int, shortest: int, more: int, heartbeat: int
) -> None:
    """Whatever a configuration may say, the core begins with; in ticks."""
    try:
        raft = RaftConfig(
            tick_ms=tick,
            election_timeout_ms=(shortest * tick, (shortest + more) * tick),
            heartbeat_ms=heartbeat * tick,
            suspicion_delay_ms=(tick, 2 * tick),
            transfer_timeout_ms=tick,
        )
    except ValueError:
        return  # told by name
    config = NodeConfig(
        broker_group="g",
        node_id="n1",
        data_directory=Path("data"),
        listen="127.0.0.1:7001",
        peers={"n1": "127.0.0.1:7001"},
        raft=raft,
    )
    check_options(raft_options(config))
