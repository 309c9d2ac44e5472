"""Nodes that don't have what they are asked for: older programs, and addresses for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from dledger.client import Client, ClientError, ClientOptions, NotOffered
from dledger.client.connection import NodeLink
from dledger.outcome import Outcome
from dledger.testing.fake_nodes import SERVICES, FakeGroup, FakeNode
from tests.client.loops import async_test
from tests.client.members.test_attendance import Listener, attendance_of, joined
from tests.client.members.test_push import PUSH, QUICK, running, until

LATER = ("Consumers", "Deliveries", "Groups")


def lacks_later_services(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, lacking: Sequence[str] = LATER
) -> None:
    """From its next start on its program, or that address of it, has no consumer groups, say."""
    real = node._handler

    def handler(service: str) -> grpc.GenericRpcHandler[Any, Any]:
        if service not in lacking:
            return real(service)
        none: grpc.GenericRpcHandler[Any, Any] = grpc.method_handlers_generic_handler(
            f"dledger.v1.{service}", {}
        )
        return none

    monkeypatch.setattr(node, "_handler", handler)


def beside_an_older_node(monkeypatch: pytest.MonkeyPatch, *lacking: str) -> FakeGroup:
    """Two nodes that refuse watches, with topic t; the second leads, the first lacks services:
    those, or all that came later."""
    group = FakeGroup(2)
    group.refuse_watches = True
    group.model.create("t", 1)
    lacks_later_services(group.nodes[0], monkeypatch, *([lacking] if lacking else []))
    group.leader = group.nodes[1]
    return group


def guess_first(group: FakeGroup, client: Client) -> None:
    """The client takes the first node for the leader."""
    client._broker_group._guess = group.nodes[0].address
    client._broker_group._refresh()


@async_test
async def test_members_outlive_a_guessed_node_without_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody said that it leads: it costs a refusal, and the next guess is the leader."""
    group = beside_an_older_node(monkeypatch)
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        guess_first(group, client)
        listener = Listener("g", "a")
        slot = attendance_of(client).attend(listener)
        await until(lambda: bool(listener.session or listener.ended))
        assert not listener.ended
        await attendance_of(client).forget(slot)


@async_test
async def test_calls_go_on_from_a_guessed_node_without_their_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To whoever has it; a receive hands out there what it would have here."""
    group = beside_an_older_node(monkeypatch)
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        guess_first(group, client)
        await client.consumer_groups.list()
        guess_first(group, client)
        async with client.simple_consumer("t", "g") as consumer:
            assert await consumer.receive(wait_s=0) == []


@async_test
async def test_messages_go_on_from_a_guessed_node_that_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an address for others, say: they are stored where they can be."""
    group = beside_an_older_node(monkeypatch, "Broker")
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        heard = client._broker_group
        async with client.producer() as producer:
            await producer.send("t", b"registers")
            told: list[ClientError] = []
            real = heard.on_refused

            def on_refused(link: NodeLink, error: ClientError) -> None:
                told.append(error)
                real(link, error)

            monkeypatch.setattr(heard, "on_refused", on_refused)
            heard._guess = group.nodes[0].address
            heard._refresh()
            assert (await producer.send("t", b"x")).queue_offset == 1
            assert isinstance(told[0], NotOffered)


@async_test
async def test_joined_members_outlive_a_leader_of_an_older_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in an upgrade in which leadership goes back and forth."""
    group = FakeGroup(2)
    group.model.create("t", 1)
    lacks_later_services(group.nodes[1], monkeypatch)
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        listener, heard = Listener("g", "a"), client._broker_group
        slot = attendance_of(client).attend(listener)
        await until(joined(listener))
        before = len(listener.joins)
        refused: list[ClientError] = []
        real = heard.on_refused

        def on_refused(link: NodeLink, error: ClientError) -> None:
            refused.append(error)
            real(link, error)

        monkeypatch.setattr(heard, "on_refused", on_refused)
        group.elect(group.nodes[1])
        await until(lambda: any(isinstance(error, NotOffered) for error in refused))
        group.elect(group.nodes[0])
        await until(lambda: len(listener.joins) > before or bool(listener.ended))
        assert not listener.ended
        await attendance_of(client).forget(slot)


@async_test
async def test_a_leader_without_groups_is_told_to_who_never_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says itself that it leads: waiting for another program is no use."""
    group = FakeGroup(1)
    group.model.create("t", 1)
    lacks_later_services(group.nodes[0], monkeypatch)
    options = ClientOptions(presume_after_s=10.0)
    async with group, Client.connect(group.bootstrap, options=options) as client:
        listener = Listener("g", "a")
        attendance_of(client).attend(listener)
        await until(lambda: bool(listener.ended))
        assert isinstance(listener.ended[0], NotOffered)
        with pytest.raises(NotOffered) as told:
            await client.consumer_groups.list()
        assert told.value.outcome is Outcome.DID_NOT_HAPPEN


@async_test
async def test_lone_address_that_is_for_others_is_tried_on_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/consumers.md says: `run` doesn't end, and the log says why nothing comes."""
    group = FakeGroup(1)
    lacks_later_services(group.nodes[0], monkeypatch, tuple(SERVICES))
    async with group, Client.connect(group.bootstrap, options=QUICK) as client:
        service = client.push_consumer("g", PUSH)
        service.on("t")(print)
        async with running(service) as run:
            await until(lambda: caplog.text.count("not attending") > 1)
            assert not run.done()
        assert group.bootstrap in caplog.text
