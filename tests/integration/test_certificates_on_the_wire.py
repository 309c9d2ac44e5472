"""Whose certificate is believed, by which side, and for how long."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.certificate_proof import Question
from dledger.client import ClientError, TlsFiles
from dledger.credentials.tls import TlsSource, open_channel, read_material
from dledger.proof import Parties
from tests.certificates import Authority, certs
from tests.integration.group import Group, free_ports, make_configs
from tests.integration.strangers import (
    N1,
    N2,
    becomes,
    changed,
    hello_of,
    read,
    running,
    said_to,
    talk,
    with_tls,
)


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


def test_streams_of_a_client_that_is_revoked_later_end(tmp_path: Path) -> None:
    """A member that goes on to be heard keeps its queues, and is given nothing of them."""

    async def run() -> None:
        authority = Authority(tmp_path / "certs")
        revoked = tmp_path / "revoked"
        revoked.write_text("")
        (plain,) = make_configs(tmp_path, 1)
        keys = {"client_certificates": "required", "revoked": str(revoked)}
        (config,) = with_tls([plain], authority, **keys)
        mine, others = authority.client(), authority.client("other")
        async with running([config]):
            assert await talk([config], mine) == 10
            opened: Any = open_channel(config.listen, (), read_material(mine))
            kept: Any = open_channel(config.listen, (), read_material(others))
            attend = opened.stream_stream("/dledger.v1.Groups/Attend")()
            watches = [
                channel.unary_stream("/dledger.v1.Cluster/WatchLeader")(b"")
                for channel in (opened, kept)
            ]
            for each in watches:
                assert await each.read()
            revoked.write_text(certs("fingerprint", str(mine.certificate)))
            for call in (attend, watches[0]):
                async with asyncio.timeout(30):
                    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert not watches[1].done()
            await opened.close()
            await kept.close()

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
