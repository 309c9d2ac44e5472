"""What a call must pass before it is answered, and how a leader makes sure that it still leads.

Every service is given one `Gate`. A node that was deposed without knowing it may lack what others
acknowledged since: whoever claims that something is so *now*, or denies that something exists,
has leadership confirmed first (ReadIndex). Source: Ongaro's dissertation, section 6.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from broker.errors import TRAITS, BrokerError, ErrorCode
from dledger.core.errors import ReadRefused

T = TypeVar("T")

# What anybody may say: it is about the request alone, about this node, or is never untrue again.
_SAYABLE: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_CORRUPT,
        ErrorCode.WRONG_BROKER_GROUP,
        ErrorCode.STRATEGY_UNKNOWN,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INTERNAL,
    }
)
# What only a confirmed leader may say, since a later one may know more: whatever else is for good,
# and what a producer gives up for that expects to be the next in line.
ABSENCES: Final = frozenset(
    {code for code, traits in TRAITS.items() if not traits.is_retriable} - _SAYABLE
    | {ErrorCode.OUT_OF_SEQUENCE}
)


class ServingState(Protocol):
    """`broker.leader.leadership.Leadership`, as far as calls ask it."""

    times_served: int  # this time included: leaderships since this node was started

    def check_serving(self) -> None: ...
    def check_writable(self) -> None: ...
    def not_leader(self, reason: str) -> BrokerError: ...


class ReadIndex(Protocol):
    """The driver, as far as linearizable reads go: `done` is told whether they may be answered."""

    def read_index(self, done: Callable[[bool], None]) -> None: ...


class Gate:
    """Whether this node may answer."""

    def __init__(self, leadership: ServingState, reads: ReadIndex) -> None:
        self._leadership = leadership
        self._reads = reads

    def check_serving(self) -> None:
        """Returns when this node serves.

        Raises:
            BrokerError: NOT_LEADER with whom to ask, NOT_READY.
        """
        self._leadership.check_serving()

    def check_writable(self) -> None:
        """Returns when this node serves and takes what has to be committed.

        Raises:
            BrokerError: what `check_serving` raises; SHUTTING_DOWN.
        """
        self._leadership.check_serving()
        self._leadership.check_writable()

    @property
    def leadership(self) -> int:
        """Which of its leaderships this node serves in; an absence is to be confirmed in the one in
        which it was found."""
        return self._leadership.times_served

    def serves(self) -> int:
        """The same, of a node that serves.

        Raises:
            BrokerError: as `check_serving`.
        """
        self.check_serving()
        return self.leadership

    async def confirm(self) -> None:
        """Returns once this node has been the leader since the call began (ReadIndex).

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        self._leadership.check_serving()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(served: bool) -> None:  # noqa: FBT001  the driver's callback has one argument
            if not confirmed.done():
                confirmed.set_result(served)

        try:
            self._reads.read_index(done)
        except ReadRefused as error:
            raise self._leadership.not_leader(str(error)) from error
        if not await confirmed:
            raise self._leadership.not_leader("leadership was lost before the read was confirmed")

    async def surely(self, check: Callable[[], T]) -> T:
        """What `check` gives; an absence that it finds is looked at again by a confirmed leader.

        Raises:
            BrokerError: what `check` raises, NOT_LEADER, NOT_READY.
        """
        try:
            return check()
        except BrokerError as error:
            if error.code not in ABSENCES:
                raise
        await self.confirm()
        return check()

    async def denying_surely(self, work: Awaitable[T], since: int | None = None) -> T:
        """What `work` gives. An absence that it finds, on whatever way, is told once it is sure
        that this node has led all the while.

        Args:
            since: the leadership in which it began, if that was before.

        Raises:
            BrokerError: what `work` raises, NOT_LEADER, NOT_READY.
        """
        leadership = self.leadership if since is None else since
        try:
            return await work
        except BrokerError as error:
            if error.code not in ABSENCES:
                raise
            await self.confirm_since(leadership)
            raise

    async def confirm_since(self, leadership: int) -> None:
        """Returns once this node has led ever since it was in that leadership: what it found in it
        was so.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        await self.confirm()
        if self.leadership != leadership:  # it was found by what was known then
            raise self._leadership.not_leader("leadership was lost meanwhile")
