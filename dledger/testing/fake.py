"""Fake nodes for tests without an event loop: `FakeGroup` on a thread of its own.

As far away as another process: a client reaches it through its port alone. It owns the thread and
the orders that a test gives; what the nodes answer is `dledger.testing.fake_nodes`'s.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from dledger.testing.errors import GroupFailed
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb

Answer = TypeVar("Answer")
LAST_CALLS_S: Final = 1.0
PATIENCE_S: Final = 30.0  # for anything that the fake is asked


class BlockingFakeGroup:
    """Fake nodes at real ports; a context manager. The first node leads."""

    def __init__(self, nodes: int = 1) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="dledger-fake", daemon=True
        )
        self._thread.start()
        self._topics = 0
        self._group = self._run(self._open(nodes))

    @property
    def addresses(self) -> str:
        """What a client connects to."""
        return self._group.bootstrap

    def topic(self, queues: int = 1) -> str:
        """The name of a new topic."""
        self._topics += 1
        name = f"topic-{self._topics}"
        self._act(lambda: self._group.model.create(name, queues))
        return name

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """What is stored in a queue, in order."""
        found: list[bytes] = []
        self._act(lambda: found.extend(self._group.model.bodies(topic, queue_id)))
        return found

    def calls(self, method: str) -> int:
        """How often `method` (`Send`, `Pull`, ...) was called so far, at any node."""
        return sum(node.calls[method] for node in self._group.nodes)

    def refuse(self, code: str, method: str = "Send", times: int = 1) -> None:
        """The next calls of `method` are refused with an error: `NOT_LEADER`, `BUSY`, ..."""
        error = wire_error(epb.Error(code=code).code, f"refused by the test: {code}")
        self._act(lambda: self._group.before.append(_refusing(method, error, times)))

    def lose_answer(self, method: str = "Send", times: int = 1) -> None:
        """The next calls of `method` take effect, and their answers are lost."""
        lost = wire_error(epb.LEADERSHIP_LOST, "the answer was lost by the test")
        self._act(lambda: self._group.after.append(_refusing(method, lost, times)))

    def committed(self, consumer_group: str, topic: str) -> int:
        """How many messages the members of a group have finished and committed, over all queues."""
        found: list[int] = []
        queues = range(len(self._group.model.topics[topic]))
        self._act(
            lambda: found.extend(
                finished.frontier + finished.count_above
                for finished in (
                    self._group.members.finished(consumer_group, topic, queue) for queue in queues
                )
            )
        )
        return sum(found)

    def retry_after(self, seconds: float) -> None:
        """Messages that fail from now on come again after so long, whatever their attempt."""

        def act() -> None:
            self._group.retries.delay_s = seconds

        self._act(act)

    def end_sessions(self, consumer_group: str) -> None:
        """The sessions of all members end, as if nothing had been heard of them for too long."""
        self._act(lambda: self._group.members.end_sessions(consumer_group))

    def revoke(self, consumer_group: str, topic: str, queue_id: int = 0) -> None:
        """Who holds the queue is asked for it, as for another member; nobody has it then until
        `give_back`."""
        self._act(lambda: self._group.members.ask_for(consumer_group, topic, queue_id))

    def take_away(self, consumer_group: str, topic: str, queue_id: int = 0) -> None:
        """As `revoke`, without asking: its holder's commits are refused from now on."""
        self._act(lambda: self._group.members.take_away(consumer_group, topic, queue_id))

    def give_back(self, consumer_group: str) -> None:
        """The group's members may have all queues again."""
        self._act(lambda: self._group.members.give_back(consumer_group))

    def kill(self, number: int = 0) -> None:
        """A node's port closes and its connections break; the next living one leads."""
        self._check_open()
        self._run(self._kill(self._group.nodes[number]))

    def pause(self, number: int = 0) -> None:
        """A node stays connected and answers nothing, as after SIGSTOP."""
        self._act(self._group.nodes[number].running.clear)

    def resume(self, number: int = 0) -> None:
        """A paused node goes on."""
        self._act(self._group.nodes[number].running.set)

    def close(self) -> None:
        """Ends the nodes and the thread."""
        if not self._thread.is_alive():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- on the loop's thread -----------------------------------------------------------------

    async def _open(self, nodes: int) -> FakeGroup:
        return await FakeGroup(nodes).__aenter__()

    async def _end(self) -> None:
        """Calls that are cut off end some turns of the loop later; the loop doesn't end before."""
        await self._group.__aexit__()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=LAST_CALLS_S)

    async def _kill(self, node: FakeNode) -> None:
        await node.kill()
        living = [other for other in self._group.nodes if other.is_listening]
        self._group.elect(living[0] if living else None)

    def _check_open(self) -> None:
        if self._loop.is_closed():
            raise GroupFailed("the group is closed")

    def _act(self, act: Callable[[], object]) -> None:
        self._check_open()

        async def acting() -> None:
            act()

        self._run(acting())

    def _run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(PATIENCE_S)
        except BaseException:
            with suppress(RuntimeError):
                future.cancel()
            raise


def _refusing(
    wanted: str, error: epb.Error, times: int
) -> Callable[[str, FakeNode, Any], Coroutine[Any, Any, None]]:
    left = times

    async def refuse(method: str, node: FakeNode, request: Any) -> None:
        nonlocal left
        if method == wanted and left:
            left -= 1
            raise Refusal(error)

    return refuse
