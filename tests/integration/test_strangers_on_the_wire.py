"""Who is let in: certificates, the group's secret, addresses of their own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest

from broker.config import NodeConfig
from broker.node import entrances
from broker.standby import Standby
from dledger.client import Client, ClientError, ClientOptions, InvalidArgument, TlsFiles
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import open_channel, read_material
from dledger.peer_security import PeerSecurity
from dledger.proof import Dialer, Parties
from dledger.wire.raft_pb2 import PeerMessage
from store.files import OsFiles
from tests.certificates import Authority, certs
from tests.integration.group import Group, free_ports, make_configs
from tests.integration.strangers import (
    N1,
    N2,
    changed,
    code_of,
    hello_of,
    peer_call,
    running,
    said_to,
    talk,
    with_tls,
)
from tests.integration.test_refilling import metrics_at


def test_group_under_tls_serves_clients_that_believe_its_authority(tmp_path: Path) -> None:
    """Mutual TLS among all, at one address: a client shows a certificate of its own."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        configs = with_tls(make_configs(tmp_path), authority, client_certificates="required")
        async with running(configs):
            assert await talk(configs, authority.client()) == 10
            for stranger in (
                None,
                TlsFiles(authority.ca),
                Authority(tmp_path / "other").client(),
            ):
                with pytest.raises(ClientError):
                    await talk(configs, stranger, deadline_s=1.0)

    asyncio.run(run())


def test_clients_show_nothing_where_peers_have_an_address_of_their_own(tmp_path: Path) -> None:
    """A peer shows its certificate at `peer_listen`; at `listen` there are no peer streams."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        plain = make_configs(tmp_path)
        at = {c.node_id: f"127.0.0.1:{port}" for c, port in zip(plain, free_ports(3), strict=True)}
        configs = [
            changed(
                config,
                tls=authority.node(config.node_id),
                peer_listen=at[config.node_id],
                dial={name: each for name, each in at.items() if name != config.node_id},
            )
            for config in plain
        ]
        async with running(configs):
            assert await talk(configs, TlsFiles(authority.ca)) == 10
            material = read_material(authority.client())
            channel = open_channel(configs[0].listen, (), material)
            assert "Method not found" in await said_to(configs[0], hello_of("n2"), channel=channel)
            channel = open_channel(at["n1"], (), material)
            said = await said_to(configs[0], hello_of("n2"), channel=channel)
            assert "certificate is for client@client.dledger, not for n2.g1.dledger" in said

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["without TLS", "without the secret", "not yet valid"])
def test_nodes_that_do_not_trust_alike_are_not_connected(tmp_path: Path, kind: str) -> None:
    """In neither direction: nobody falls back to what the other side would take."""

    async def run() -> None:
        first, second, _ = make_configs(tmp_path)
        if kind == "without the secret":
            certs("secret", str(tmp_path / "secret"))
            first = changed(first, secret_file=str(tmp_path / "secret"))
        else:
            authority = Authority(tmp_path / "certs")
            (first,) = with_tls([first], authority, client_certificates="required")
            if kind == "not yet valid":
                tls = {**authority.odd_node("n2", days=(1, 9)), "client_certificates": "required"}
                second = changed(second, tls=tls)
        group = Group([first, second])
        await group.start()
        try:
            for _ in range(15):
                await asyncio.sleep(0.1)
                links = [node.transport.links() for node in group.nodes.values()]
                assert not any(link.connected for each in links for link in each.values())
        finally:
            await group.close()

    asyncio.run(run())


def test_node_that_stands_by_offers_what_each_address_is_for(tmp_path: Path) -> None:
    """A wrong address is noticed before there is a group."""

    async def run() -> None:
        (plain,) = make_configs(tmp_path, 1)
        peers, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
        config = changed(plain, peer_listen=peers, admin_listen=admin)
        standby = Standby(config, OsFiles(), lambda: entrances(config, None))
        waiting = asyncio.create_task(standby.until_member())
        try:
            offered: dict[str, set[str]] = {}
            for address in (config.listen, peers, admin):
                offered[address] = set()
                for path in ("Broker/Send", "Cluster/GetStatus", "Formation/Describe"):
                    code = await code_of(address, path)
                    while code is grpc.StatusCode.UNAVAILABLE and path != "Broker/Send":
                        await asyncio.sleep(0.05)
                        code = await code_of(address, path)
                    if code is not grpc.StatusCode.UNIMPLEMENTED:
                        offered[address].add(path)
            assert offered == {
                config.listen: {"Broker/Send", "Cluster/GetStatus"},
                peers: set(),
                admin: {"Cluster/GetStatus", "Formation/Describe"},
            }
        finally:
            standby.ask_to_stop()
            await waiting

    asyncio.run(run())


def test_node_that_stands_by_says_so_in_its_metrics(tmp_path: Path) -> None:
    """Whoever watches sees a node that waits, and none that can't be reached; the address is free
    for the member that it becomes."""

    async def run() -> None:
        (plain,) = make_configs(tmp_path, 1)
        (port,) = free_ports(1)
        config = changed(plain, metrics_listen=f"127.0.0.1:{port}")
        for _ in range(2):
            standby = Standby(config, OsFiles(), lambda: entrances(config, None))
            waiting = asyncio.create_task(standby.until_member())
            try:
                while (code := await code_of(config.listen, "Cluster/GetStatus")) is (
                    grpc.StatusCode.UNAVAILABLE
                ):
                    assert not waiting.done(), code
                    await asyncio.sleep(0.05)
                told = await asyncio.to_thread(metrics_at, str(config.metrics_listen))
                labels = f'{{broker_group="{config.broker_group}",node="{config.node_id}"}}'
                assert f"dledger_standing_by{labels} 1.0" in told
            finally:
                standby.ask_to_stop()
                assert not await waiting

    asyncio.run(run())


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    certs("secret", str(file))
    return file


def test_group_with_a_secret_works_and_turns_strangers_away(
    tmp_path: Path, secret_file: Path
) -> None:
    """A stranger with the right names, another secret, a recorded proof, or a mirror."""

    async def run() -> None:
        configs = make_configs(tmp_path, secret_file=str(secret_file))
        async with running(configs):
            assert await talk(configs, None) == 10
            asks = "asks for the group's secret (secret_file)"
            assert asks in await said_to(configs[0], hello_of("n2"))
            other = GroupSecret.create(tmp_path / "other")
            parties = Parties("g1", N2, N1)
            with pytest.raises(Exception, match="holds another secret"):
                await proved(configs[0], other, parties)
            overheard = await proved(configs[0], GroupSecret.load(secret_file), parties)
            assert "another secret" in await said_to(configs[0], *overheard[:2])
            mirror = [overheard[0], overheard[2]]  # the challenge of another stream, sent back
            assert "another secret" in await said_to(configs[0], *mirror)

    asyncio.run(run())


async def proved(config: NodeConfig, secret: GroupSecret, parties: Parties) -> list[PeerMessage]:
    """Everything said on a stream whose proof succeeds: opening, closing, challenge."""
    said: list[PeerMessage] = []
    async with grpc.aio.insecure_channel(config.listen) as channel:
        call = peer_call(channel)
        proof = Dialer(secret, parties)
        said.append(proof.opening())
        await call.write(said[0])
        challenge = await call.read()
        said += [proof.closing(challenge), challenge]
        await call.write(said[1])
        await call.write(hello_of(parties.dialer))
        assert (await call.read()).HasField("hello")
        call.cancel()
    return said


def test_who_proved_to_be_one_node_says_hello_as_no_other(
    tmp_path: Path, secret_file: Path
) -> None:
    """The names of the proof bind the Hello."""

    async def run() -> None:
        configs = make_configs(tmp_path, secret_file=str(secret_file))
        group = Group(configs[:1])
        await group.start()
        try:
            secret = GroupSecret.load(secret_file)
            async with grpc.aio.insecure_channel(configs[0].listen) as channel:
                call = peer_call(channel)
                security = PeerSecurity(secret)
                await security.prove(Parties("g1", N2, N1), call.read, call.write)
                await call.write(hello_of("n3"))
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.read()
                assert "proved to hold the secret, and says Hello as" in await call.details()
        finally:
            await group.close()

    asyncio.run(run())


def test_administration_at_an_address_of_its_own(tmp_path: Path) -> None:
    """The raw log and who leads aren't to be had where clients come in."""

    async def run() -> None:
        (plain,) = make_configs(tmp_path, 1)
        admin = f"127.0.0.1:{free_ports(1)[0]}"
        config = changed(plain, admin_listen=admin)
        async with running([config]):
            for path in ("Audit/SurveyLog", "Cluster/TransferLeadership"):
                assert await code_of(config.listen, path) is grpc.StatusCode.UNIMPLEMENTED
                assert await code_of(admin, path) is not grpc.StatusCode.UNIMPLEMENTED
            assert await code_of(admin, "Broker/Send") is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(run())


def test_client_is_told_which_file_is_wrong(tmp_path: Path) -> None:
    """Before anything is dialed."""

    async def run() -> None:
        options = ClientOptions(tls=TlsFiles(tmp_path / "nowhere.pem"))
        with pytest.raises(InvalidArgument, match=r"nowhere\.pem: No such file"):
            async with Client.connect("127.0.0.1:1", options=options):
                pass

    asyncio.run(run())
