"""Whether what a leader lets go is as old as the rules ask for, and topics wish.

What has gone can't be got back, so retention may keep too much, and never too little. A leader
reckons an entry's age from what it still holds; here every entry of the history is known, and with
it how long the group had lived at each. The log's front is looked at only in groups where it goes
by its age alone (`Plan.goes_by_age_alone`): whoever proposes a start there has no other reason. And
too much is kept only for a while: what is old has gone when a group has come to rest, however far
the log's time stepped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from broker.state.listening import QueueKey
from broker.state.lived_time import LivedTime
from broker.state.machine import StateMachine
from chaos.sim.defect import Defect
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind
from dledger.wire.commands_pb2 import Command


class Ages:
    """Of the entries of one run, from the first on."""

    def __init__(self, age_ms: int) -> None:
        self.moves = 0  # of the log's start, so far
        self._age_ms = age_ms
        self._clock = LivedTime()
        self._at_ms = 0
        self._lived: list[int] = []  # when each entry was appended

    def note(self, header: EntryHeader, frame: bytes) -> None:
        """The next entry of the history.

        Raises:
            Defect: it lets go what isn't old enough.
        """
        # Of a kind that the release of another level knows there is none that moves the start.
        if header.kind == EntryKind.COMMAND and header.is_known:
            command = Command.FromString(frame[HEADER_SIZE:])
            if command.HasField("move_log_start"):
                self._check(header.index, command.move_log_start.first_index)
        self._clock.advance(self._at_ms, header.append_time_ms)
        self._at_ms = header.append_time_ms
        self._lived.append(self._clock.lived_ms)

    def is_older(self, index: int, applied_index: int) -> bool:
        """Whether that entry is old enough to go, as of another one."""
        return self._lived[applied_index - 1] - self._lived[index - 1] > self._age_ms

    def _check(self, index: int, first_kept: int) -> None:
        """Who proposes has applied no more than what is before the proposal."""
        self.moves += 1
        age_ms = self._lived[-1] - self._lived[first_kept - 2]
        if age_ms <= self._age_ms:
            raise Defect(
                "retired too early",
                f"entry {index} lets entry {first_kept - 1} go after {age_ms} ms",
            )


class Wishes:
    """What topics wish for their messages, beside where leaders have their queues begin."""

    def __init__(self) -> None:
        self.moves = 0  # of queues' starts, so far
        self._least: dict[int, int] = {}  # of all that each topic ever wished, by incarnation
        # Of each queue: the first offset of each of its batches, and when that was appended.
        self._arrived: dict[QueueKey, list[tuple[int, int]]] = defaultdict(list)

    def on_arrival(self, queue: QueueKey, offset: int, lived_ms: int) -> None:
        """A batch is stored from there on."""
        self._arrived[queue].append((offset, lived_ms))

    def note(self, header: EntryHeader, frame: bytes, before: StateMachine) -> None:
        """The next entry of the history.

        Args:
            before: has applied everything up to it.

        Raises:
            Defect: it lets go what its topic wishes to keep.
        """
        if header.kind != EntryKind.COMMAND or not header.is_known:
            return
        command = Command.FromString(frame[HEADER_SIZE:])
        retain, move = command.retain_topic, command.move_queue_starts
        if command.HasField("retain_topic") and retain.retention_ms:
            topic = before.topics.get(retain.name)
            incarnation = retain.incarnation or (topic.incarnation if topic is not None else 0)
            least_ms = self._least.get(incarnation, retain.retention_ms)
            self._least[incarnation] = min(least_ms, retain.retention_ms)
        for start in move.starts if command.HasField("move_queue_starts") else ():
            queue = move.incarnation, start.queue_id
            self._check(header.index, queue, start.offset, before.lived_time.lived_ms)

    def _check(self, index: int, queue: QueueKey, start: int, lived_ms: int) -> None:
        arrived = self._arrived[queue]
        at = bisect_left(arrived, (start, 0)) - 1
        if at < 0:
            return
        self.moves += 1
        age_ms, least_ms = lived_ms - arrived[at][1], self._least.get(queue[0])
        if least_ms is None or age_ms <= least_ms:
            raise Defect(
                "let go too early",
                f"entry {index} lets what is before {start} of {queue} go after {age_ms} ms, "
                f"wished for {least_ms} ms",
            )
