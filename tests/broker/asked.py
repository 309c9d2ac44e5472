"""A group whose leader can be asked everything: the product's services, without a door.

What is asked runs in the process of one of the members (`tests.node.world`), with all the time that
it takes; nobody waits for the clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from broker.errors import NodeAddress
from broker.services.services import Services
from broker.state.machine import StateMachine
from broker.state.registration import Registration
from dledger.core.types import NodeId
from dledger.ports import Turns
from tests.broker.leader import PRODUCER, TOKEN, batch
from tests.node.machine import HOST
from tests.node.world import Kind, World, WorldNode

T = TypeVar("T")
N1 = NodeAddress("n1", f"127.0.0.1:{HOST[1]}")  # who leads


class EndlessCall:
    """A call whose client is slow to read; `end` is when it has read."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback()


class Asked:
    """A group led by n1, in which one producer is registered.

    Args:
        count: members.
        folder: on the real disk, where who is asked for files finds them.
        turns: how long work shares the event loop.
    """

    def __init__(
        self, count: int = 1, *, folder: Path | None = None, turns: Turns | None = None
    ) -> None:
        self.world = World(count, kind=Kind(folder=folder, turns=turns))
        self.leader = self.world.lead(NodeId(N1.node_id))
        registration = self.services.producers.register(Registration(TOKEN))
        assert self.ask(registration).producer_id == PRODUCER

    @property
    def services(self) -> Services:
        """The leader's."""
        return self.leader.replica.services

    @property
    def machine(self) -> StateMachine:
        return self.leader.replica.machine

    def ask(self, question: Coroutine[Any, Any, T], node: WorldNode | None = None) -> T:
        """The answer, of the leader's process or another's."""
        return self.world.run(node or self.leader, question)

    def filled(self) -> Asked:
        """With topic t of two queues and three messages in t/0."""
        self.ask(self.services.topics.create("t", 2, if_not_exists=False))
        self.ask(self.services.sends.send(PRODUCER, [batch(0, b"a", b"b", b"c")]))
        return self


def play(asked: Asked, scenario: Callable[[], Awaitable[None]]) -> None:
    """The leader's process runs `scenario`."""

    async def whole() -> None:
        await scenario()

    asked.ask(whole())
