"""Who is let in: certificates, the group's secret, addresses of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.config import NodeConfig
from dledger.certificate_proof import Question
from dledger.client import Client, ClientError, ClientOptions, InvalidArgument, TlsFiles
from dledger.core.types import Index, NodeId, Term
from dledger.credentials.secret import GroupSecret
from dledger.credentials.tls import TlsSource, open_channel, read_material
from dledger.greeting import Identity
from dledger.peer_security import PeerSecurity
from dledger.promises import Start
from dledger.proof import Dialer, Parties
from dledger.transport import METHOD
from dledger.wire.raft_pb2 import PeerMessage
from tests.certificates import Authority, certs
from tests.integration.group import SEGMENT_BYTES, Group, disk_of, free_ports, make_configs

N1, N2 = NodeId("n1"), NodeId("n2")

# A start that knows whatever the disk may have promised.
LATER = Start(99, term=Term(1 << 40), last_index=Index(1 << 40))


def with_tls(configs: list[NodeConfig], authority: Authority, **keys: object) -> list[NodeConfig]:
    """The same nodes with certificates; `keys` go into `[tls]`."""
    return [changed(config, tls={**authority.node(config.node_id), **keys}) for config in configs]


def changed(config: NodeConfig, **keys: object) -> NodeConfig:
    document = config.model_dump(exclude_none=True)
    return NodeConfig.model_validate({**document, **keys})


@contextlib.asynccontextmanager
async def running(configs: list[NodeConfig]) -> AsyncIterator[Group]:
    group = Group(configs)
    try:
        await group.start()
        await group.leader()
        yield group
    finally:
        await group.close()


async def talk(configs: list[NodeConfig], tls: TlsFiles | None, deadline_s: float = 10.0) -> int:
    """Creates a topic, sends and reads ten messages; how many came back."""
    addresses = [config.listen for config in configs]
    options = ClientOptions(deadline_s=deadline_s, tls=tls)
    async with Client.connect(addresses, options=options) as client:
        await client.create_topic("t", queues=1)
        async with client.producer() as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
        return len((await client.pull("t", 0, 0)).messages)


async def said_to(config: NodeConfig, *messages: PeerMessage, channel: Any = None) -> str:
    """Why a stream that says these things to a node is ended."""
    channel = channel or grpc.aio.insecure_channel(config.listen)
    async with channel:
        call = peer_call(channel)
        try:
            for message in messages:
                await call.write(message)
            while True:
                if await asyncio.wait_for(call.read(), 20) is grpc.aio.EOF:  # type: ignore[attr-defined]
                    break
        except grpc.aio.AioRpcError:
            pass
        return str(await call.details())


def peer_call(channel: Any) -> Any:
    """A stream between peers; the stubs want arguments that have defaults."""
    method = channel.stream_stream(
        METHOD,
        request_serializer=PeerMessage.SerializeToString,
        response_deserializer=PeerMessage.FromString,
    )
    return method()


def hello_of(name: str, to: str = "n1") -> PeerMessage:
    speaker = Identity("g1", NodeId(name), SEGMENT_BYTES, disk_of(name), LATER)
    return speaker.hello(NodeId(to))


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


@pytest.mark.parametrize("kind", ["of another node", "of another group", "revoked", "none"])
def test_certificate_opens_streams_for_its_node_alone(tmp_path: Path, kind: str) -> None:
    """Each node is who its certificate says, and nobody else."""

    (first, *_), authority = make_configs(tmp_path), Authority(tmp_path / "certs")
    revoked = tmp_path / "revoked"
    revoked.write_text("# nobody yet\n")
    first = with_tls([first], authority, client_certificates="required", revoked=revoked)[0]
    match kind:
        case "of another node":
            files, expected = authority.node("n3"), "not for n2.g1.dledger"
        case "of another group":
            files, expected = authority.node("n2", "g2"), "not for n2.g1.dledger"
        case "revoked":
            files, expected = authority.node("n2"), "certificate is revoked"
            revoked.write_text(certs("fingerprint", files["certificate"]))
        case _:
            files, expected = {"ca": str(authority.ca)}, "handshake"

    async def attack() -> None:
        group = Group([first])
        await group.start()
        try:
            given = TlsFiles(**{key: Path(path) for key, path in files.items()})
            channel = open_channel(first.listen, (), read_material(given))
            said = await said_to(first, hello_of("n2"), channel=channel)
            if expected == "handshake":
                assert "n2" not in said
            else:
                assert expected in said
        finally:
            await group.close()

    asyncio.run(attack())


def test_expired_certificate_is_believed_by_nobody(tmp_path: Path) -> None:
    """Neither as a caller nor as a server."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        first, second, _ = make_configs(tmp_path)
        good = with_tls([first], authority, client_certificates="required")[0]
        tls = {**authority.expired_node("n2"), "client_certificates": "required"}
        bad = changed(second, tls=tls)
        group = Group([good, bad])
        await group.start()
        try:
            files = TlsFiles(authority.ca, Path(tls["certificate"]), Path(tls["key"]))
            material = read_material(files)
            await said_to(first, hello_of("n2"), channel=open_channel(first.listen, (), material))
            await asyncio.sleep(1.0)
            links = [node.transport.links() for node in group.nodes.values()]
            assert not any(link.connected for each in links for link in each.values())
        finally:
            await group.close()

    asyncio.run(run())


def test_certificates_are_exchanged_while_the_group_works(tmp_path: Path) -> None:
    """New files take effect without a restart; a pair that doesn't fit changes nothing."""

    async def run() -> None:
        old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
        configs = with_tls(make_configs(tmp_path), old, client_certificates="required")
        for config in configs:
            new.node(config.node_id)
        mine = {name: each.client(name) for name, each in (("was", old), ("will-be", new))}
        async with running(configs) as group:
            assert await talk(configs, mine["was"]) == 10
            (old.folder / "n1.key").write_text("rubbish")
            assert len((await read(configs, mine["was"])).messages) == 10
            both = old.ca.read_bytes() + new.ca.read_bytes()
            old.ca.write_bytes(both)
            new.ca.write_bytes(both)
            for config in configs:
                for end in ("pem", "key"):
                    name = f"{config.node_id}.{end}"
                    os.replace(new.folder / name, old.folder / name)
            assert len((await read(configs, mine["will-be"])).messages) == 10
            leader = await group.leader()
            follower = next(name for name in group.nodes if name != leader.config.node_id)
            await group.stop(follower)
            await group.start(follower)
            await group.applied_everywhere()

    asyncio.run(run())


async def read(configs: list[NodeConfig], tls: TlsFiles) -> Any:
    options = ClientOptions(tls=tls)
    async with Client.connect([c.listen for c in configs], options=options) as client:
        return await client.pull("t", 0, 0)


def test_stream_of_a_certificate_that_is_revoked_later_ends(tmp_path: Path) -> None:
    """Revoking needs no restart, and does not wait for the next dial."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        revoked = tmp_path / "revoked"
        revoked.write_text("")
        keys = {"client_certificates": "required", "revoked": str(revoked)}
        configs = with_tls(make_configs(tmp_path), authority, **keys)
        async with running(configs) as group:
            await asyncio.sleep(0.5)
            before = group.nodes["n3"].transport.links()
            assert all(link.connected for link in before.values())
            revoked.write_text(certs("fingerprint", str(authority.folder / "n3.pem")))
            for _ in range(400):
                after = group.nodes["n3"].transport.links()
                if not any(link.connected for link in after.values()):
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("n3 is still connected")

    asyncio.run(run())


def test_client_whose_certificate_is_revoked_is_served_no_more(tmp_path: Path) -> None:
    """On the connections that it has, too, and at the administration's address."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        revoked = tmp_path / "revoked"
        revoked.write_text("")
        (plain,) = make_configs(tmp_path, 1)
        admin = f"127.0.0.1:{free_ports(1)[0]}"
        keys = {"client_certificates": "required", "revoked": str(revoked)}
        (config,) = with_tls([changed(plain, admin_listen=admin)], authority, **keys)
        mine, others = authority.client(), authority.client("other")
        async with running([config]):
            assert await talk([config], mine) == 10
            opened: Any = open_channel(config.listen, (), read_material(mine))
            status = opened.unary_unary("/dledger.v1.Cluster/GetStatus")
            assert await status(b"", timeout=5)
            revoked.write_text(certs("fingerprint", str(mine.certificate)))
            for _ in range(100):
                if await status(b"", timeout=5).code() is grpc.StatusCode.UNAUTHENTICATED:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("it is served still")
            await opened.close()
            opened = open_channel(admin, (), read_material(mine))
            survey = opened.unary_unary("/dledger.v1.Audit/SurveyLog")
            assert await survey(b"", timeout=5).code() is grpc.StatusCode.UNAUTHENTICATED
            await opened.close()
            with pytest.raises(ClientError, match="revoked"):
                await read([config], mine)
            assert len((await read([config], others)).messages) == 10

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["revoked", "for all nodes"])
def test_who_is_dialed_is_looked_up_as_well(tmp_path: Path, kind: str) -> None:
    """A stolen key that answers in a node's place: TLS believes it, the dialer doesn't."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        revoked = tmp_path / "revoked"
        revoked.write_text("")
        first, second, _ = make_configs(tmp_path)
        good = with_tls([first], authority, client_certificates="required", revoked=revoked)[0]
        if kind == "revoked":
            files = authority.node("n2")
            revoked.write_text(certs("fingerprint", files["certificate"]))
        else:
            files = authority.odd_node("n2", names=["*.g1.dledger"])
        thief = changed(second, tls={**files, "client_certificates": "required"})
        group = Group([good, thief])
        await group.start()
        try:
            await asyncio.sleep(1.0)
            assert not group.nodes["n1"].transport.links()[N2].connected
        finally:
            await group.close()

    asyncio.run(run())


def test_stream_to_who_is_revoked_later_ends(tmp_path: Path) -> None:
    """On the node that dialed; the other side knows of no list."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        revoked = tmp_path / "revoked"
        revoked.write_text("")
        first, second, _ = make_configs(tmp_path)
        (knowing,) = with_tls([first], authority, client_certificates="required", revoked=revoked)
        (other,) = with_tls([second], authority, client_certificates="required")
        async with running([knowing, other]) as group:
            link = group.nodes["n1"].transport.links
            assert await becomes(lambda: link()[N2].connected, wanted=True)
            revoked.write_text(certs("fingerprint", str(authority.folder / "n2.pem")))
            assert await becomes(lambda: link()[N2].connected, wanted=False)

    asyncio.run(run())


async def becomes(state: Callable[[], bool], *, wanted: bool) -> bool:
    for _ in range(400):
        if state() is wanted:
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", ["client", "n3"])
def test_certificate_is_shown_to_the_dialer_alone(tmp_path: Path, kind: str) -> None:
    """Else who sits between, with a stolen key, could pass a node's question on to the node."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        configs = with_tls(make_configs(tmp_path, 1), authority, client_certificates="required")
        group = Group(configs)
        await group.start()
        try:
            authority.node("n2")
            stranger = authority.client() if kind == "client" else None
            if stranger is None:
                files = authority.node("n3")
                stranger = TlsFiles(**{key: Path(path) for key, path in files.items()})
            of_n2 = read_material(
                TlsFiles(**{key: Path(path) for key, path in authority.files("n2").items()})
            )
            opening = Question(of_n2, Parties("g1", N2, N1)).opening()
            channel = open_channel(configs[0].listen, (), read_material(stranger))
            said = await said_to(configs[0], opening, channel=channel)
            assert "not for n2.g1.dledger" in said
        finally:
            await group.close()

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


async def code_of(address: str, path: str) -> grpc.StatusCode:
    opened: Any = grpc.aio.insecure_channel(address)
    async with opened as channel:
        call = channel.unary_unary(f"/dledger.v1.{path}")(b"", timeout=5)
        code: grpc.StatusCode = await call.code()
        return code


def test_client_is_told_which_file_is_wrong(tmp_path: Path) -> None:
    """Before anything is dialed."""

    async def run() -> None:
        options = ClientOptions(tls=TlsFiles(tmp_path / "nowhere.pem"))
        with pytest.raises(InvalidArgument, match=r"nowhere\.pem: No such file"):
            async with Client.connect("127.0.0.1:1", options=options):
                pass

    asyncio.run(run())


def test_source_keeps_what_it_had_while_files_are_wrong(tmp_path: Path) -> None:
    """And takes the new ones when they are right."""
    authority = Authority(tmp_path / "certs")
    files = authority.client()
    told: list[Exception] = []
    source = TlsSource(files, told.append)
    before = source.material()
    assert files.key is not None
    good = files.key.read_bytes()
    files.key.write_bytes(b"rubbish")
    assert source.material() is before
    assert [str(files.key) in str(error) for error in told] == [True]
    files.key.write_bytes(good + b"\n")
    assert source.material() is not before
