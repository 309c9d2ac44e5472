"""A group in network namespaces, whose kernel drops packets: nothing is reset, nobody is told.

The nodes are processes, each in a namespace of its own, with a router between them that stops
forwarding. That is the real thing of what the proxies of test_links.py imitate. Needs root and
iproute2; skipped without.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from broker.config import NodeConfig, dump_toml
from chaos.forming import form_disks
from store.files import OsFiles

NODES = (1, 2, 3)
PORT, METRICS_PORT = 7000, 9000
SEGMENT_BYTES = 8 << 20
WITHIN_S = 30.0
LOOK_EVERY_S = 0.02
LEADER_LOST_S = 2.0  # by then nobody who is alone serves
PREFIX = f"dl{os.getpid() % 100_000}"
ROUTER = f"{PREFIX}r"


def ip(*arguments: str) -> None:
    """`ip`, from iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


def inside(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def namespace_of(number: int) -> str:
    return f"{PREFIX}n{number}"


def namespaces_can_be_made() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    with contextlib.suppress(subprocess.SubprocessError):
        ip("netns", "add", ROUTER)
        ip("netns", "del", ROUTER)
        return True
    return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not namespaces_can_be_made(), reason="needs root and iproute2"),
]


@functools.cache
def first_network() -> int:
    """The third octet behind which three are nobody's here.

    What a killed run left must not take this one's packets.
    """
    told = subprocess.run(
        ["ip", "-json", "-4", "address"], check=True, capture_output=True, timeout=10
    ).stdout
    taken = {
        tuple(each["local"].split(".")[:3])
        for link in json.loads(told)
        for each in link.get("addr_info", ())
        if each
    }
    for first in range(0, 250, len(NODES)):
        if taken.isdisjoint(("198", "18", str(first + number)) for number in NODES):
            return first
    raise AssertionError(f"198.18.0.0/16 is full: {sorted(taken)}")


def peers_net(number: int) -> str:
    """The network between a node and the router, without the last octet."""
    return f"198.19.{first_network() + number}"


def own_net(number: int) -> str:
    """The network between a node and this test, without the last octet."""
    return f"198.18.{first_network() + number}"


def connect(number: int) -> None:
    """A node's namespace with two links: to the router, and to this test, which no fault cuts."""
    name = namespace_of(number)
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")
    ends = {
        "peers": (f"{peers_net(number)}.2/24", ROUTER, f"{peers_net(number)}.1/24"),
        "test": (f"{own_net(number)}.2/24", "", f"{own_net(number)}.1/24"),
    }
    for link, (address, there, far_address) in ends.items():
        far = f"{PREFIX}{link[0]}{number}"
        ip("link", "add", far, "type", "veth", "peer", "name", link, "netns", name)
        if there:
            ip("link", "set", far, "netns", there)
        outside = ("-n", there) if there else ()
        ip(*outside, "address", "add", far_address, "dev", far)
        ip(*outside, "link", "set", far, "up")
        ip("-n", name, "address", "add", address, "dev", link)
        ip("-n", name, "link", "set", link, "up")
    ip("-n", name, "route", "add", "default", "via", f"{peers_net(number)}.1")


def forward(*, packets: bool) -> None:
    """The router forwards, or drops without a word."""
    switch = inside(ROUTER, "sysctl", "-qw", f"net.ipv4.ip_forward={int(packets)}")
    subprocess.run(switch, check=True, capture_output=True, timeout=10)


def configuration(number: int, folder: Path) -> NodeConfig:
    """The node's, whose addresses are in its namespace."""
    return NodeConfig.model_validate(
        {
            "broker_group": "g1",
            "node_id": f"n{number}",
            "data_directory": str(folder / f"n{number}"),
            "listen": f"{peers_net(number)}.2:{PORT}",
            "metrics_listen": f"{own_net(number)}.2:{METRICS_PORT}",
            "insecure": True,  # nobody else is in these namespaces
            "peers": {f"n{each}": f"{peers_net(each)}.2:{PORT}" for each in NODES},
            "store": {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": 0},
        }
    )


def start(number: int, folder: Path) -> subprocess.Popen[bytes]:
    """The node's process, in its namespace."""
    config = configuration(number, folder)
    file = folder / f"n{number}.toml"
    file.write_text(dump_toml(config, folder), encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    program = [sys.executable, "-c", "import sys, dledger_cli; sys.exit(dledger_cli.main())"]
    with (folder / f"n{number}.log").open("wb") as output:
        return subprocess.Popen(
            inside(namespace_of(number), *program, "node", "--config", str(file)),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Three nodes that run and have a leader; nothing is left of them at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        ip("netns", "add", ROUTER)
        for number in NODES:
            connect(number)
        forward(packets=True)
        configs = [configuration(number, tmp_path) for number in NODES]
        form_disks(configs, lambda _: OsFiles())
        processes += [start(number, tmp_path) for number in NODES]
        seconds_until_served()
        yield
    finally:
        for process in processes:
            process.kill()  # `ip netns exec` has become the node
            process.wait(WITHIN_S)
        # A namespace lives on for as long as the kernel has a socket of it to close; the link to
        # here, and its address, shall not.
        for number in NODES:
            with contextlib.suppress(subprocess.SubprocessError):
                ip("link", "del", f"{PREFIX}t{number}")
        for name in (*map(namespace_of, NODES), ROUTER):
            with contextlib.suppress(subprocess.SubprocessError):
                ip("netns", "del", name)


def serves(number: int) -> bool:
    """Whether the node says so in its metrics."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError):
        page = opener.open(f"http://{own_net(number)}.2:{METRICS_PORT}/metrics", timeout=1).read()
        return any(
            line.startswith(b"dledger_serving") and line.endswith(b" 1.0")
            for line in page.splitlines()
        )
    return False


def seconds_until_served() -> float:
    """How long it takes from now until a node serves."""
    begin = time.monotonic()
    while not any(map(serves, NODES)):
        if time.monotonic() - begin > WITHIN_S:
            raise AssertionError(f"nobody serves after {WITHIN_S} s")
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - begin


@pytest.mark.parametrize(
    "silences_s",
    [(3.0, 7.0, 12.0), pytest.param((3.0, 7.0, 12.0, 9.0, 20.0), marks=pytest.mark.long)],
    ids=len,
)
@pytest.mark.long
def test_service_is_back_soon_after_a_silent_network(
    group: None, silences_s: tuple[float, ...]
) -> None:
    """However long it was silent: within a second at the median, two at most."""
    took: list[float] = []
    for silence_s in silences_s:
        forward(packets=False)
        time.sleep(LEADER_LOST_S)
        assert not any(map(serves, NODES)), "a leader that reaches nobody serves"
        time.sleep(silence_s - LEADER_LOST_S)
        forward(packets=True)
        took.append(seconds_until_served())
        time.sleep(1.0)
    print("seconds until service:", [round(each, 2) for each in took])
    assert median(took) <= 1.0, took
    assert max(took) <= 2.0, took
