"""Knocking at a port: only a plain refusal says that nobody is there."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dledger.client.knocking import is_refused
from tests.client.loops import async_test


@async_test
async def test_a_closed_port_refuses() -> None:
    """Bound, so that nobody else comes to listen there."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert await is_refused(f"127.0.0.1:{nobody.getsockname()[1]}")


@async_test
async def test_whoever_listens_is_there_however_little_he_says() -> None:
    """A node that stands still, too: its kernel takes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not await is_refused(f"127.0.0.1:{silent.getsockname()[1]}")


@async_test
async def test_one_of_ipv6_is_knocked_at() -> None:
    """In brackets, as addresses have it."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        assert not await is_refused(f"[::1]:{listening.getsockname()[1]}")
        port = listening.getsockname()[1]
    with socket.socket(socket.AF_INET6) as nobody:
        nobody.bind(("::1", port))
        assert await is_refused(f"[::1]:{port}")


@async_test
async def test_a_name_that_leads_nowhere_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's resolver may know more, and says what is wrong."""

    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not await is_refused("nobody.invalid:7001")


@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_through_a_proxy_nothing_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may reach who can't be reached from here."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def asked() -> bool:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            return await is_refused(f"127.0.0.1:{nobody.getsockname()[1]}")

    assert not asyncio.run(asked())


@async_test
async def test_who_does_not_answer_is_left_to_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets may be dropped: the knock must not be what the watch waits for."""
    monkeypatch.setattr("dledger.client.knocking.KNOCK_S", 0.01)

    async def never(*_arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(type(asyncio.get_running_loop()), "create_connection", never)
    assert not await is_refused("127.0.0.1:1")
