"""Pulls that found nothing, waiting for what is not there yet.

A pull is held without a thread: a future each, woken when messages of its queue are applied,
re-checked now and then, bounded in number. This knows nothing of messages: whoever is woken looks
again. One message may wake all of them, and so may a second that was everybody's last: few are
woken in one turn of the event loop, the others in turns to come, in the order in which they came
(ADR 27). Whatever changes in between, each of them looks again when it is its turn.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from broker.errors import BrokerError, ErrorCode
from broker.state.listening import QueueKey

QUEUES_EACH = 16  # that as many pulls as may be held wait for at once; about 460 bytes each
WOKEN_AT_ONCE = 256  # each looks again and is answered, in some twenty microseconds
REMEMBERED = 1_024  # wakes, for those who were still looking when they came
Woken = list[QueueKey]
RECHECK_S = 5.0  # a held pull looks again this often, should a wake-up ever be missed


@dataclass(frozen=True, slots=True)
class HoldStatistics:
    held: int
    woken: int
    refused: int


class HeldPulls:
    """Pulls that wait for messages; bounded."""

    def __init__(
        self, limit: int, later: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        """Args:
        limit: pulls held at once, and `QUEUES_EACH` times as many queues that they wait for; past
            the one a pull is refused as BUSY, past the other one of more queues than that.
        later: runs a call in a later turn (`dledger.ports.Turns`); None: the running loop's next.
        """
        self._limit = limit
        self._later = later or _in_next_turn
        self._due: deque[asyncio.Future[None]] = deque()  # to be woken; no more than are held
        self._left = WOKEN_AT_ONCE  # that this turn may wake yet; all of them: none was woken in it
        # Dictionaries in the place of sets: pulls are woken in the order in which they came.
        # By each of them: where it is told which of its queues woke it.
        self._waiting: defaultdict[QueueKey, dict[asyncio.Future[None], Woken]] = defaultdict(dict)
        # By pulls that wait for something else, too: whether it has come.
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._held = self._queues = self._woken = self._refused = 0
        self._wakes = 0
        self._recent: deque[QueueKey] = deque(maxlen=REMEMBERED)  # the last of them

    @property
    def moment(self) -> int:
        """Now, for `wait`: asked before a look that shares the event loop."""
        return self._wakes

    def wake(self, key: QueueKey) -> None:
        """Messages arrived in a queue."""
        self._wakes += 1
        self._recent.append(key)
        waiting = self._waiting.pop(key, None)
        if waiting:
            for woken in waiting.values():
                woken.append(key)
            self._woken += len(waiting)
            self._wake_in_turns(waiting)

    def wake_topic(self, incarnation: int) -> None:
        """The topic is gone: whoever waits for one of its queues looks again."""
        for key in [key for key in self._waiting if key[0] == incarnation]:
            self.wake(key)

    def wake_all(self) -> None:
        """Everybody looks again: leadership changed, or the node stops."""
        for key in list(self._waiting):
            self.wake(key)

    def look(self) -> None:
        """An entry was applied: what some wait for besides messages may have come."""
        if self._conditions:
            met = [future for future, is_met in self._conditions.items() if is_met()]
            for future in met:
                del self._conditions[future]
            self._woken += len(met)
            self._wake_in_turns(met)

    async def wait(
        self,
        keys: Sequence[QueueKey],
        timeout_s: float,
        looked: int,
        is_met: Callable[[], bool] | None = None,
    ) -> Woken:
        """Returns when messages arrived in any of the queues: in which; or when `is_met`, after
        `timeout_s` or the re-check interval: none.

        Args:
            looked: the moment as of which the caller found nothing. What arrived since, while he
                looked at other queues, doesn't have to be waited for.
            is_met: asked after each entry; it stays so.

        Raises:
            BrokerError: BUSY when too many pulls are held, or what they wait for is too much.
        """
        if missed := self._arrived(keys, looked):
            return missed
        if self._held >= self._limit:
            self._refused += 1
            raise BrokerError(ErrorCode.BUSY, f"{self._held} pulls are held, the limit")
        if len(keys) > QUEUES_EACH and self._queues >= QUEUES_EACH * self._limit:
            self._refused += 1
            text = f"the pulls that are held wait for {self._queues} queues, the limit"
            raise BrokerError(ErrorCode.BUSY, text)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        woken: Woken = []
        for key in keys:
            self._waiting[key][future] = woken
        if is_met is not None:
            self._conditions[future] = is_met
        self._held += 1
        self._queues += len(keys)
        timer = loop.call_later(min(timeout_s, RECHECK_S), self._wake_in_turns, (future,))
        try:
            await future
        finally:
            timer.cancel()
            self._held -= 1
            self._queues -= len(keys)
            self._conditions.pop(future, None)
            for key in keys:
                self._leave(key, future)
        return woken

    def _arrived(self, keys: Sequence[QueueKey], since: int) -> Woken:
        """Those in which messages arrived since that moment; all, where that isn't remembered."""
        count = self._wakes - since
        if not count:
            return []
        if count > len(self._recent):
            return list(keys)
        return list(set(keys).intersection(islice(reversed(self._recent), count)))

    def _leave(self, key: QueueKey, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._waiting[key]

    def _wake_in_turns(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """They are woken behind those that are due already, as many as this turn may wake yet."""
        self._due.extend(futures)
        if self._left == WOKEN_AT_ONCE:
            self._later(self._begin_turn)
        self._wake_some()

    def _begin_turn(self) -> None:
        self._left = WOKEN_AT_ONCE
        if self._due:
            self._later(self._begin_turn)
            self._wake_some()

    def _wake_some(self) -> None:
        while self._due and self._left:
            self._left -= 1
            future = self._due.popleft()
            if not future.done():
                future.set_result(None)

    def statistics(self) -> HoldStatistics:
        """A frozen picture, as of now."""
        return HoldStatistics(self._held, self._woken, self._refused)


def _in_next_turn(call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_soon(call)
