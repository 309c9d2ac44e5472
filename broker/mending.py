"""Mends ConsumeQueues that were found wrong: derives them again from the log, beside everything.

A second state machine replays the log from its first entry (from its base, ADR 43), a slice at a
time and a pause as long as the slice between any two. What it dispatches to a queue under repair is
compared with the file and overwritten; everything else it does is thrown away. So a queue is mended
by the code that derived it: void batches, deletions, topics made anew need no rule here. New
messages go to the queue meanwhile as ever; the repair is over when it has come to what was applied
when it began.

It must never touch a queue that nobody suspects, nor write what isn't committed, nor hold the event
loop for longer than a slice. A full disk makes it wait, and so does rot in the log until that is
repaired (ADR 39); where it can't be, the replica ends. While it waits for space the log's front may
go, which gives some: then it begins again.

    found wrong ─▶ waiting ─▶ files laid out ─▶ slices of the log
                      ▲                              │    │ a full disk: later, from the same place
                      └── found wrong meanwhile ─────┘    └─▶ what was applied at its beginning
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from broker.state.machine import StateMachine
from broker.state.queue_files import QueueFiles
from broker.state.replay import FolderKey, WrongQueue
from broker.state.topics import TopicState
from dledger.errors import ApplyPaused
from dledger.ports import never_enough
from dledger.resting import rest_after
from store.errors import CorruptionFound, OutOfRange, StorageFull
from store.starting.errors import BaseMissing

SLICE_BYTES: Final = 256 << 10
SHORTEST_PAUSE_S: Final = 0.001
RETRY_S: Final = 1.0  # from finding no space to trying again

log = structlog.get_logger(__name__)


class MendedQueues(Protocol):
    """The ConsumeQueues, as far as mending goes."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def lay_out(self, topic: str, queue_id: int) -> None: ...
    def mend(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> int: ...


class MendingLog(Protocol):
    """The log, as far as queues are derived from it."""

    def read(self, first: int, last: int) -> bytes: ...
    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int: ...


@dataclass(frozen=True, slots=True)
class MendStatistics:
    """Queues: under repair or waiting for it, found wrong so far. Units: overwritten so far."""

    queues_wrong: int
    queues_found: int
    units_mended: int


def _is_lasting(error: BaseException) -> bool:
    """Where nobody repairs the log."""
    return False


class Mender:
    """Repairs one set of queues at a time, from `start` to `stop`; what is found wrong meanwhile
    is the next set.

    Args:
        machine: the replica's, which says what is applied and which topics there are.
        queues, log: the replica's; everything happens on the thread that owns them.
        failed: is told of an error that ends the repairs for good.
        is_mended: whether rot in the log is being repaired itself: then this waits.
        begin: the machine as of the entry before the log's first; an empty one.
        share: begins a piece of work; see `dledger.ports.Turns`.
    """

    def __init__(
        self,
        machine: StateMachine,
        queues: MendedQueues,
        source: MendingLog,
        failed: Callable[[BaseException], None],
        is_mended: Callable[[BaseException], bool] = _is_lasting,
        begin: Callable[[QueueFiles], Awaitable[StateMachine]] | None = None,
        share: Callable[[], Callable[[], bool]] = lambda: never_enough,
    ) -> None:
        self._share = share
        self._begin_with = begin or self._empty
        self._machine = machine
        self._is_mended = is_mended
        self._queues = queues
        self._log = source
        self._failed = failed
        self._waiting: dict[FolderKey, TopicState] = {}
        self._repaired: dict[FolderKey, TopicState] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_started = False
        self._found = self._mended = 0
        self.waits_for_space = False  # and goes on only once there is some

    @property
    def is_at_work(self) -> bool:
        """Whether a queue is known to be wrong: nothing new may be noted as derived then."""
        return bool(self._waiting or self._repaired)

    def suspect(self, topic: TopicState, queue_id: int) -> None:
        """The queue is wrong somewhere; it will be mended. Told again while it is, nothing new
        happens: whoever reads it sees for himself what is right already."""
        key = (topic.folder, queue_id)
        if key in self._waiting or key in self._repaired:
            return
        self._found += 1
        self._waiting[key] = topic
        log.error("consume_queue_wrong", topic=topic.name, queue_id=queue_id)
        self._begin()

    def suspect_all(self, wrong: Iterable[WrongQueue]) -> None:
        """What a start has found."""
        for each in wrong:
            self.suspect(each.topic, each.queue_id)

    def start(self) -> None:
        """Repairs begin."""
        self._is_started = True
        self._begin()

    async def stop(self) -> None:
        """No repair goes on; what isn't mended is found again by the next start."""
        self._is_started = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)  # not what cancels this

    def statistics(self) -> MendStatistics:
        """A frozen picture, as of now."""
        wrong = len(self._waiting) + len(self._repaired)
        return MendStatistics(wrong, self._found, self._mended)

    def _begin(self) -> None:
        if self._is_started and self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="mending")

    async def _work(self) -> None:
        try:
            while self._waiting:
                self._repaired, self._waiting = self._waiting, {}
                try:
                    await self._repair()
                except OutOfRange:  # the log's front has gone meanwhile
                    self.waits_for_space = False
                    self._waiting = {**self._repaired, **self._waiting}
                self._repaired = {}
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._failed(error)

    async def _repair(self) -> None:
        """The queues in `_repaired` are what the log says, up to what is applied by then."""
        for key in self._repaired:
            while not self._laid_out(key):  # noqa: ASYNC110  it works, and may find no space
                await asyncio.sleep(RETRY_S)
        # What is applied from here on is dispatched to files that are there: the end stands still.
        through, before = self._machine.applied_index, self._mended
        machine = await self._beginning()
        while machine.applied_index < through:  # noqa: ASYNC110  it works, a slice at a time
            await asyncio.sleep(self._do_slice(machine, through))
        for key, topic in self._repaired.items():
            log.warning(
                "consume_queue_mended",
                topic=topic.name,
                queue_id=key[1],
                units=self._mended - before,
                through_index=machine.applied_index,
            )

    async def _beginning(self) -> StateMachine:
        """The state that the log begins with; as soon as a peer has given it, if it has rotted."""
        while True:
            try:
                return await self._begin_with(_Derived(self._overwrite))
            except BaseMissing as error:
                log.warning("mending_paused", reason=str(error))
            await asyncio.sleep(RETRY_S)

    async def _empty(self, queues: QueueFiles) -> StateMachine:
        known_level = self._machine.statistics().known_level
        return StateMachine(queues, options=self._machine.options, known_level=known_level)

    def _laid_out(self, key: FolderKey) -> bool:
        """Whether the queue's files are there, or the queue isn't any more."""
        if self._is_there(key):
            try:
                self._queues.lay_out(*key)
            except StorageFull as error:
                self._pause_for_space(error)
                return False
        self.waits_for_space = False
        return True

    def _pause_for_space(self, error: BaseException) -> None:
        """Told once, however often it is tried again."""
        if not self.waits_for_space:
            self.waits_for_space = True
            log.warning("mending_paused", reason=str(error))

    def _do_slice(self, machine: StateMachine, through: int) -> float:
        """The next entries are through, as many as are a share of a turn: an entry of few bytes may
        be much work; how many seconds to pause."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = machine.applied_index + 1
        try:
            last = self._log.last_that_fits(first, through, SLICE_BYTES)
            machine.apply(self._log.read(first, last), self._share())
        except CorruptionFound as error:
            if not self._is_mended(error):
                raise
            return RETRY_S
        except ApplyPaused as error:
            self._pause_for_space(error)
            return RETRY_S
        self.waits_for_space = False
        return max(SHORTEST_PAUSE_S, rest_after(loop.time() - began))

    def _overwrite(self, key: FolderKey, base: int, units: bytes) -> None:
        """An entry is derived: its units are in the file, if its queue is under repair."""
        if key in self._repaired and self._is_there(key):
            self._mended += self._queues.mend(*key, base, units)

    def _is_there(self, key: FolderKey) -> bool:
        """Whether the queue is still of the topic that was suspected, and holds anything."""
        suspected = self._repaired[key]
        topic = self._machine.topics.get(suspected.name)
        is_same = topic is not None and topic.incarnation == suspected.incarnation
        return is_same and self._queues.max_offset(*key) > 0


class _Derived:
    """`QueueFiles` of the machine that derives again."""

    def __init__(self, overwrite: Callable[[FolderKey, int, bytes], None]) -> None:
        self._overwrite = overwrite

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        self._overwrite((topic, queue_id), base_queue_offset, units)

    def delete_topic(self, topic: str) -> None:
        """It was deleted long ago."""
