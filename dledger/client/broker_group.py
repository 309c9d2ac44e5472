"""The broker group behind the addresses: every node watched, the leader found, calls retried.

This owns one link per known address and the conclusions drawn from their views. Every call goes
to the leader. A call is repeated with jittered back-off until its total deadline is over, and
only as far as its `Effect` allows: what may have happened and must not happen twice is told to
the caller instead. Members are learnt from the views and added. An address that was good once
costs one idle watch and is kept, until `MAX_LINKS` are known: then one that nobody names any more
and nobody answers at makes room, or a client that outlives many members would hear of no new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from typing import Final

from grpc.aio import Channel
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
    wait_random,
    wait_random_exponential,
)

from dledger.client.arguments import seconds
from dledger.client.connection import Method, NodeLink, Request, Response, WhenDeposed
from dledger.client.errors import (
    BrokerGroupUnreachable,
    Busy,
    ClientClosed,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    NotOffered,
    NotReady,
    Unavailable,
    WrongBrokerGroup,
)
from dledger.client.faults import contained
from dledger.client.group_epoch import EpochName
from dledger.client.leader_view import LeaderBoard, Member, View
from dledger.client.options import CHANNEL_OPTIONS, ClientOptions
from dledger.client.patience import ALONE, HEARD, SERVED, Patience
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.tls import TlsSource, open_channel
from dledger.outcome import Outcome

MAX_LINKS: Final = 64  # far above any broker group's size; a bound on what views can make us dial
# Seconds. An election is over soon, so that the first attempts follow closely. Who is told that
# there is no room waits longer each time, and as long as chance says: those who were refused
# together must not come back together.
_BACKOFF = wait_exponential(multiplier=0.01, max=0.5) + wait_random(0, 0.01)
_BUSY_BACKOFF = wait_random_exponential(multiplier=0.02, max=1.0, min=0.005)


def _pass_over() -> None:
    """Nobody wants to know."""


class Effect(Enum):
    """What repeating a call that may have happened would do."""

    NONE = "none"  # a read
    IDEMPOTENT = "idempotent"  # the second time changes nothing
    ONCE = "once"  # the second time is another act, or an error that misleads


class BrokerGroup:
    """The connection to a broker group. Made and used inside one running event loop.

    Args:
        addresses: `host:port` of at least one member.
        name: the broker group's; None accepts any, as long as all nodes are of the same.
    """

    def __init__(self, addresses: Sequence[str], name: str | None, options: ClientOptions) -> None:
        self.options = options
        self._name = name or ""
        self._loop = asyncio.get_running_loop()
        self._board = LeaderBoard()
        self._links: dict[str, NodeLink] = {}
        self._given = frozenset(addresses)
        self._leaving: set[asyncio.Task[None]] = set()  # links on their way out
        self._failures: dict[str, ClientError] = {}  # why an address is not heard
        self._listeners: dict[Callable[[], None], None] = {}  # told in the order of coming
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._target: NodeLink | None = None
        self._presume_timer: asyncio.TimerHandle | None = None
        self._guess = ""  # the address that is tried without the node's own word
        self._guesses = 0
        self._closed = False
        self._tls = _tls_of(options)
        for address in addresses:
            self._link(address)
        with contained("looking for the leader"):  # the links are there, and have to be closed
            self._refresh()

    # --- who leads ----------------------------------------------------------------------------

    @property
    def target(self) -> NodeLink | None:
        """Where a request may be sent now: the leader that serves."""
        return self._target

    @property
    def addresses(self) -> dict[str, str]:
        """Node id of each known address; empty for a node that was never heard."""
        members = {member.address: member.node_id for member in self._board.members().values()}
        unheard = {address: self._board.node_id(address) for address in self._links}
        named = set(members.values())
        return members | {
            address: node_id
            for address, node_id in unheard.items()
            if address not in members and (not node_id or node_id not in named)
        }

    @property
    def epoch(self) -> EpochName:
        """The newest epoch of the group that a node told of."""
        return self._board.epoch

    def leader(self) -> tuple[Member, int] | None:
        """The leader and its term, as last heard."""
        return self._board.leader()

    def link(self, address: str) -> NodeLink:
        """The link to one address, known or new."""
        return self._links.get(address) or self._link(address)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever `target` has changed."""
        self._listeners[listener] = None

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stops calling `listener`."""
        self._listeners.pop(listener, None)

    def judge(self, link: NodeLink, error: ClientError) -> None:
        """The error says whether trying again may help: what a node that doesn't say that it leads
        hasn't got, as in an upgrade, who leads may have."""
        if isinstance(error, NotOffered) and self._board.serving_address() != link.address:
            error.retriable = True

    def on_refused(self, link: NodeLink, error: ClientError) -> None:
        """A call at `link` failed: judges the error, follows the hint in it, withdraws a
        presumption."""
        self.judge(link, error)
        if self._closed:
            return
        guessed = self._guess == link.address
        if guessed:
            self._guess = ""
        if error.leader is not None and error.leader[1] != link.address:
            leader = Member(*error.leader)
            self._board.on_hint(error.term, leader)
            self._learn(leader.address)
            if guessed and not self._board.node_id(leader.address):
                self._guess = leader.address
        self._refresh()

    async def serving_link(self, deadline: float) -> NodeLink:
        """The leader's link, once one serves.

        Args:
            deadline: of the loop's clock.

        Raises:
            BrokerGroupUnreachable, NotReady, WrongBrokerGroup, ClientClosed: nothing was sent.
        """
        while self._target is None:
            await self._news(deadline)
        return self._target

    async def serving_leader(self, deadline: float) -> tuple[Member, int]:
        """The leader and its term, once one serves and is known by name; see `serving_link`."""
        while self._target is None or (known := self._board.leader()) is None:
            await self._news(deadline)
        return known

    async def _news(self, deadline: float) -> None:
        """Returns when a node has been heard or lost since."""
        self._check_open()
        left = deadline - self._loop.time()
        if left <= 0 or self._is_of_another_group:
            raise self._no_leader()
        changed: asyncio.Future[None] = self._loop.create_future()
        self._waiters[changed] = None
        try:
            await asyncio.wait([changed], timeout=left)
        finally:
            self._waiters.pop(changed, None)

    # --- calls --------------------------------------------------------------------------------

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        effect: Effect,
        *,
        deadline_s: float | None = None,
        when_deposed: WhenDeposed | None = None,
        on_doubt: Callable[[], None] = _pass_over,
        on_sent: Callable[[], None] = _pass_over,
    ) -> Response:
        """The leader's answer, whoever that is by then.

        Args:
            deadline_s: total time; None: the client's default.
            when_deposed: None: what fits `effect`.
            on_doubt: called for each attempt that may have happened: what the answer says of what
                is refused, the errors within it, is of the last one alone.
            on_sent: called right before each attempt is sent.

        Raises:
            ClientError: a refusal that retrying can't change, or DeadlineExceeded with the last
                failure as its cause, or BrokerGroupUnreachable.
        """
        total = self.options.deadline_s
        if deadline_s is not None:
            total = seconds("deadline_s", deadline_s)
        deadline = self._loop.time() + total
        doubts: list[ClientError] = []
        answers: list[ClientError] = []  # the last one that says more than that there was none
        once = effect is Effect.ONCE
        patience = when_deposed or (WhenDeposed.GRACE if once else WhenDeposed.ABANDON)

        async def attempt() -> Response:
            link = await self.serving_link(deadline)
            left = max(deadline - self._loop.time(), 0.001)
            on_sent()
            try:
                return await link.call(method, request, left, patience)
            except ClientError as error:
                self.on_refused(link, error)
                if not isinstance(error, DeadlineExceeded):
                    answers[:] = [error]
                if error.outcome is Outcome.MAY_HAVE_HAPPENED:
                    doubts.append(error)
                    on_doubt()
                raise

        try:
            return await self._attempts(method.name, attempt, total, answers, once=once)
        except ClientError as error:
            happened = bool(doubts) and effect is not Effect.NONE
            error.outcome = Outcome.MAY_HAVE_HAPPENED if happened else Outcome.DID_NOT_HAPPEN
            raise

    async def _attempts(
        self,
        name: str,
        attempt: Callable[[], Awaitable[Response]],
        total: float,
        answers: Sequence[ClientError],
        *,
        once: bool,
    ) -> Response:
        """What the first attempt brings that does, within so many seconds. Most calls are over with
        the first one: only after it the repeating is set up, which would take as long as the rest
        of the client's part in a call. It is told of that attempt as of its own."""
        began = self._loop.time()
        first: list[ClientError] = []
        try:
            return await attempt()
        except ClientError as error:
            if not _is_repeatable(error, once=once):
                raise
            first.append(error)

        async def again() -> Response:
            if first:
                raise first.pop()
            return await attempt()

        def give_up(state: RetryCallState) -> Response:
            raise self._given_up(name, total, state, answers)

        retrying = AsyncRetrying(
            retry=retry_if_exception(partial(_is_repeatable, once=once)),
            wait=_backoff,
            stop=stop_before_delay(total - (self._loop.time() - began)),
            retry_error_callback=give_up,
        )
        answer: Response = await retrying(again)
        return answer

    def _given_up(
        self, name: str, total: float, state: RetryCallState, answers: Sequence[ClientError]
    ) -> ClientError:
        last = state.outcome.exception() if state.outcome is not None else None
        if isinstance(last, BrokerGroupUnreachable):
            return last
        text = last.message if isinstance(last, ClientError) else str(last)
        if isinstance(last, DeadlineExceeded) and answers:
            text += f"; before that: {answers[-1].message}"
        error = DeadlineExceeded(
            f"{name} was given {total:g} s, attempt {state.attempt_number} failed: {text}"
        )
        error.__cause__ = last
        return error

    async def close(self) -> None:
        """Ends every watch and call."""
        self._closed = True
        self._disarm_presumption()
        self._target = None
        self._wake_waiters()
        links, self._links = self._links, {}
        if self._leaving:
            await asyncio.wait(self._leaving)
        async with AsyncExitStack() as closing:  # each, even if another one fails
            for link in links.values():
                closing.push_async_callback(link.close)

    # --- what the links report ----------------------------------------------------------------

    def _on_view(self, address: str, view: View) -> None:
        if self._closed:
            return
        if self._name and view.broker_group != self._name:
            self._on_lost(
                address, WrongBrokerGroup(f"{address} is of broker group {view.broker_group!r}")
            )
            return
        self._name = view.broker_group  # the first node heard decides; the others must agree
        self._failures.pop(address, None)
        if self._guess == address:
            self._guess = ""
        known = self._board.epoch
        if not self._board.on_view(address, view):
            self._on_lost(address, _of_another_epoch(address, view, known))
            return
        if view.epoch != known:
            self._begin_epoch(address)
        for member in view.members:
            self._learn(member.address)
        if view.leader is not None and view.leader.address in self._links:
            self._links[view.leader.address].nudge()
        self._refresh()

    def _on_epoch(self, address: str, epoch: EpochName) -> None:
        """A node whose view was never heard, or of which that is old, answered in that epoch."""
        if self._board.on_epoch(epoch) and not self._closed:
            self._begin_epoch("")
            self._refresh()

    def _begin_epoch(self, told_by: str) -> None:
        """The group was recovered by force: whoever was asked before may have been given up. All
        nodes but the one that told of it are asked anew, and told by that."""
        for address, link in self._links.items():
            link.abandon_calls()
            if address != told_by:
                link.ask_again()

    def _on_lost(self, address: str, failure: ClientError) -> None:
        if self._closed:
            return
        self._failures[address] = failure
        self._board.on_lost(address)
        self._refresh()

    def _learn(self, address: str) -> None:
        if address in self._links or self._closed:
            return
        if len(self._links) >= MAX_LINKS:
            self._make_room()
        if len(self._links) < MAX_LINKS:
            self._link(address)

    def _make_room(self) -> None:
        """One address goes that the user didn't give, nobody names and nobody answers at."""
        named = {member.address for member in self._board.members().values()}
        for address, link in self._links.items():
            is_unused = link is not self._target and link.is_idle
            is_heard = bool(self._board.node_id(address))
            if is_unused and not is_heard and address not in named | self._given:
                del self._links[address]
                self._failures.pop(address, None)
                task = self._loop.create_task(link.close())
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
                return

    def _link(self, address: str) -> NodeLink:
        self._check_open()
        link = NodeLink(
            address,
            partial(self._dial, address),
            lambda: self._name,
            self._on_view,
            self._on_lost,
            lambda: self._board.epoch,
            self._on_epoch,
            self._patience,
        )
        self._links[address] = link
        return link

    def _dial(self, address: str) -> Channel:
        material = None if self._tls is None else self._tls.material()
        return open_channel(address, CHANNEL_OPTIONS, material)

    def _patience(self) -> Patience:
        """With a node that isn't heard now."""
        if self._target is not None:
            return SERVED
        return HEARD if self._board.is_anybody_heard else ALONE

    def _refresh(self) -> None:
        """Draws the conclusions: deposed nodes' calls end, `target` follows the board."""
        for address, link in self._links.items():
            if self._board.is_deposed(address):
                link.abandon_calls()
        serving = self._board.serving_address()
        if serving is not None:
            self._guess = ""
            self._aim(self._links[serving])
        else:
            self._aim(self._links.get(self._guess))
        if self._target is None:
            self._arm_presumption()
        self._wake_waiters()

    def _aim(self, target: NodeLink | None) -> None:
        if target is self._target:
            return
        self._target = target
        if target is not None:
            self._disarm_presumption()
        else:
            for link in self._links.values():
                link.nudge()  # it rests for as long as nobody is missed
        for listener in tuple(self._listeners):
            with contained("telling of another leader"):
                listener()

    def _arm_presumption(self) -> None:
        if self._presume_timer is None and not self._closed:
            after = self.options.presume_after_s
            self._presume_timer = self._loop.call_later(after, self._presume)

    def _disarm_presumption(self) -> None:
        if self._presume_timer is not None:
            self._presume_timer.cancel()
            self._presume_timer = None

    def _presume(self) -> None:
        """Nobody gave word for a while: tries the leader by hearsay, or any node. A wrong guess
        costs one refusal; without it, one whose watches are refused could not be used. A
        node that is heard will give word itself, and one that can't be reached is no use."""
        self._presume_timer = None
        before = self._guess
        with contained("presuming a leader"):
            self._guess_again()
        if self._guess != before:
            self._refresh()
        elif self._target is None:
            self._arm_presumption()

    def _guess_again(self) -> None:
        silent = [
            address
            for address in self._links
            if not self._board.node_id(address)
            and not isinstance(self._failures.get(address), Unavailable | WrongBrokerGroup)
        ]
        presumed = self._board.presumed()
        if presumed is not None and presumed.address in silent:
            self._guess = presumed.address
        elif presumed is None and silent:
            self._guess = silent[self._guesses % len(silent)]
            self._guesses += 1

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- errors -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client was closed")

    @property
    def _is_of_another_group(self) -> bool:
        """Whether nobody is heard, and somebody is of another broker group: waiting is no use."""
        failures = self._failures.values()
        return len(self._failures) >= len(self._links) and any(
            isinstance(error, WrongBrokerGroup) for error in failures
        )

    def _no_leader(self) -> ClientError:
        reasons = "; ".join(f"{error.message}" for error in self._failures.values())
        if len(self._failures) < len(self._links):
            return NotReady("no leader serves" + (f"; not reached: {reasons}" if reasons else ""))
        if self._is_of_another_group:
            return WrongBrokerGroup(
                f"no member of broker group {self._name!r} was found: {reasons}"
            )
        return BrokerGroupUnreachable(f"no member of the broker group can be reached: {reasons}")


def _of_another_epoch(address: str, view: View, known: EpochName) -> Unavailable:
    """Why what a node says of itself doesn't count."""
    if view.epoch.number == known.number:
        text = "the group was recovered by force from two survivors, and they are two groups now"
    else:
        text = "the group was recovered by force without it"
    return Unavailable(
        f"{address} is of epoch {view.epoch.number} of the group, and epoch {known.number} is "
        f"known: {text}"
    )


def _is_repeatable(error: BaseException, *, once: bool) -> bool:
    return (
        isinstance(error, ClientError)
        and error.retriable
        and (not once or error.outcome is Outcome.DID_NOT_HAPPEN)
    )


def _backoff(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    return _BUSY_BACKOFF(state) if isinstance(error, Busy) else _BACKOFF(state)


def _tls_of(options: ClientOptions) -> TlsSource | None:
    """Files that can no longer be used leave what was read before in force: the nodes say what
    they don't believe any more."""
    if options.tls is None:
        return None
    try:
        return TlsSource(options.tls, lambda _: None)
    except CredentialUnusable as error:
        raise InvalidArgument(f"tls: {error}") from error
