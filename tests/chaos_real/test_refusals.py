"""Refusals in histories: told where none of the operation's attempts may have happened.

A creation that is sent again, as its first attempt wasn't answered, may be told that the topic
exists which it has made itself.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest

from chaos.checkers.history import Create, Delete, History, Operation
from chaos.errors import CallFailed
from chaos.real.scenario import Load
from chaos.real.workload import Clock, Workload
from chaos.sim import clients as sim
from dledger.client import Client, ClientError, TopicExists, TopicNotFound
from dledger.history import Outcome
from dledger.wire import errors_pb2 as epb


class Refusing:
    """A client library, and a simulated group, that refuse whatever is asked with `error`."""

    members = ("n1",)
    now_us = 7

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def create_topic(self, *_: object, **__: object) -> None:
        raise self.error

    async def delete_topic(self, *_: object, **__: object) -> None:
        raise self.error

    async def call(self, *_: object) -> None:
        raise self.error


def by_the_library(error: ClientError) -> list[Operation]:
    """What is written down of a creation and a deletion."""
    history = History()
    client = cast(Client, cast(Any, Refusing(error)))
    workload = Workload(client, Load(), history, Clock(), seed=1)

    async def run() -> None:
        await workload._ask(workload._begin("k", Create("t", 1)), workload._create("t"))
        await workload._ask(workload._begin("k", Delete("t")), workload._delete("t"))

    asyncio.run(run())
    return history.operations


@pytest.mark.parametrize("kind", [TopicExists, TopicNotFound])
def test_library_refusal_is_told_unless_an_attempt_may_have_happened(
    kind: type[ClientError],
) -> None:
    """The library knows which of its attempts may have happened, and says so."""
    error = kind("said the leader")
    told = [(each.outcome, each.refusal) for each in by_the_library(error)]
    assert told == [(Outcome.FAIL, kind.code)] * 2
    told = [(each.outcome, each.refusal) for each in by_the_library(error.in_doubt())]
    assert told == [(Outcome.UNKNOWN, "")] * 2


def by_a_simulated_client(failure: CallFailed) -> Operation:
    shared = sim.Shared(cast(sim.Group, Refusing(failure)), History())
    client = sim.Administrator("a", shared, Random(1), 1.0)
    return asyncio.run(client.create("t", 1))


def test_simulated_refusal_is_told_unless_it_may_have_happened() -> None:
    """A simulated client's operation is one attempt; nobody answers one that was never heard."""
    error = epb.Error(code=epb.TOPIC_EXISTS)
    cases = (
        (CallFailed(error, may_have_happened=False), (Outcome.FAIL, "TOPIC_EXISTS")),
        (CallFailed(error, may_have_happened=True), (Outcome.UNKNOWN, "")),
        (CallFailed(None, may_have_happened=False), (Outcome.FAIL, "")),
        (CallFailed(None, may_have_happened=True), (Outcome.UNKNOWN, "")),
    )
    for failure, wanted in cases:
        told = by_a_simulated_client(failure)
        assert (told.outcome, told.refusal) == wanted
