"""Leases and progress once more, from the log alone, by rules of its own: the simplest that there
are. Used at a run's end, beside a state machine that applies the log again an entry at a time.

    a queue's lease changes     by a grant that names the epoch it has, by its holder's release or
                                end, by a move of its group, with its topic, with its group
    its progress grows          by its epoch's commits and what it sends back, and by nobody
                                else's, and never shrinks but by a commit without a lease, in a
                                group without sessions; it is complete when the queue goes
    its start                   is there before its first lease, and never changes
    failures are counted        one by one, of the message at the frontier: by its epoch, and when
                                its holder is over without a goodbye, which from care on had to
                                have said that it is begun; and go with the frontier

What the machine says after each entry must be that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from broker.state.compound import Judged
from broker.state.leases import Place
from broker.state.machine import StateMachine
from broker.state.topics import TopicState
from chaos.sim.defect import Defect
from dledger.codec import decode_configuration
from dledger.core.types import EntryKind
from dledger.level import DELIVERY_LEVEL, TOPIC_RULES_LEVEL
from dledger.reading.entry import HEADER_SIZE, EntryHeader
from dledger.records.reserved import CAREFUL_AFTER, CAREFUL_IN_ORDER
from dledger.wire import commands_pb2 as pb
from dledger.wire.raft_pb2 import Configuration

Seat = tuple[str, int, int]  # group, incarnation, queue id


@dataclass(slots=True)
class Due:
    """What a group was to work on: from `begin` on, by leases granted after entry `since`."""

    begin: int
    since: int = 0


@dataclass(slots=True)
class _Seat:
    session: int
    epoch: int
    due: Due
    finished: set[int] = field(default_factory=set)
    failed: tuple[int, int] = (0, 0)  # the message at that offset, so often
    begun: int = -1  # the offset that its holder last said it has begun

    @property
    def frontier(self) -> int:
        return next(at for at in count() if at not in self.finished)

    @property
    def failures(self) -> int:
        """Of the message at the frontier."""
        return self.failed[1] if self.failed[0] == self.frontier else 0

    def fail(self) -> None:
        self.failed = self.frontier, self.failures + 1
        self.begun = -1


class Copied(NamedTuple):
    """A message that was sent back: how often it had failed by then, as the log has counted."""

    failures: int
    is_orderly: bool


class LeaseModel:
    """All queues that were ever leased, as of the last entry."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._seats: dict[Seat, _Seat] = {}
        self._read_queues: dict[int, int] = {}  # of each topic, as of the last look
        self.copied: dict[tuple[Seat, int], Copied] = {}
        self.counted = self.vanished = self.spared = 0
        self.commits = self.refused = self.grants = self.taken = self.moves = 0

    def due(self, group: str) -> dict[tuple[int, int], Due]:
        """What the group was to work on, by (incarnation, queue id)."""
        return {
            (incarnation, queue_id): seat.due
            for (name, incarnation, queue_id), seat in self._seats.items()
            if name == group
        }

    def applied(self, header: EntryHeader, frame: bytes, units: Sequence[Judged]) -> None:
        """The machine has applied that entry; of one of units, what became of them.

        Raises:
            Defect: it isn't as it should be.
        """
        commands = [command for unit in units for command in unit.commands]
        if header.kind == EntryKind.COMMAND:
            commands.append(pb.Command.FromString(frame[HEADER_SIZE:]))
        elif header.kind == EntryKind.CONFIGURATION and self._is_forced(header, frame):
            for seat in self._seats.values():
                seat.session = seat.epoch = 0
            self._compare(header.index)
        # All that an entry does is there before any of it can be looked at.
        changed = [self._follow(command, header.index) for command in commands]
        if any(changed):
            self._compare(header.index)

    def _is_forced(self, header: EntryHeader, frame: bytes) -> bool:
        """Whether a recovery by force has ended all sessions."""
        configuration = Configuration.FromString(frame[HEADER_SIZE:])
        recovery = decode_configuration(configuration).epoch.last
        is_forced = recovery is not None and recovery.index == header.index
        return is_forced and self._machine.level.current >= DELIVERY_LEVEL

    def _follow(self, command: pb.Command, index: int) -> bool:
        """Whether the command may have changed anything of leases."""
        match command.WhichOneof("body"):
            case "grant_leases":
                self._grant(command.grant_leases, index)
            case "commit_leases":
                self._commit(command.commit_leases, index)
            case "send_back":
                self._send_back(command.send_back)
            case "fail_message":
                self._fail(command.fail_message)
            case "commit_offsets":
                self._commit_simply(command.commit_offsets)
            case "move_group":
                self._move(command.move_group, index)
            case "update_topic":
                self._let_go(command.update_topic)
            case "delete_topic" | "forget_groups":
                self._drop_what_is_gone()
            case "join_group":
                self._drop_sessions(None)
            case "end_sessions":
                self._drop_sessions(set(command.end_sessions.vanished))
            case _:
                return False
        return True

    def _drop_sessions(self, vanished: set[int] | None) -> None:
        """Those that are over hold nothing; who said no goodbye (None: nobody did) may have been
        killed by what was in front."""
        is_counted = self._machine.level.current >= TOPIC_RULES_LEVEL
        ends = {topic.incarnation: topic.next_offsets for topic in self._machine.topics.values()}
        for (group, incarnation, queue_id), seat in self._seats.items():
            if not seat.session or self._machine.groups.session(seat.session) is not None:
                continue
            is_blamed = vanished is None or seat.session in vanished
            is_sure = seat.begun == seat.frontier or seat.failures < self._careful_from(group)
            self.spared += is_blamed and is_counted and not is_sure
            is_blamed = is_blamed and is_sure
            if is_counted and is_blamed and seat.frontier < ends[incarnation][queue_id]:
                seat.fail()
                self.vanished += 1
            seat.session = seat.epoch = 0

    def _careful_from(self, group: str) -> int:
        return CAREFUL_IN_ORDER if self._is_orderly(group) else CAREFUL_AFTER

    def _is_orderly(self, group: str) -> bool:
        found = self._machine.groups.joined(group)
        return found is not None and found.settings.is_orderly

    def _grant(self, command: pb.GrantLeasesCommand, index: int) -> None:
        for topic in command.topics:
            state = self._topic(topic.topic, topic.incarnation)
            if state is None:
                continue
            committed = self._machine.offsets.of(command.group, topic.topic)
            for grant in topic.grants:
                key = (command.group, topic.incarnation, grant.queue_id)
                seat = self._seats.get(key)
                if seat is None:
                    lease = self._lease(key)
                    if not lease[1]:
                        continue
                    if grant.queue_id not in committed:
                        raise Defect("lease", f"{key} was granted by entry {index} without a start")
                    start = committed[grant.queue_id]
                    seat = self._seats[key] = _Seat(0, 0, Due(start), set(range(start)))
                if grant.former_epoch == seat.epoch and self._may_hold(
                    command.group, grant.session
                ):
                    self.grants += 1
                    self.taken += seat.epoch > 0
                    seat.session, seat.epoch = grant.session, index if grant.session else 0
                    seat.begun = -1

    def _may_hold(self, group: str, session: int) -> bool:
        found = self._machine.groups.session(session)
        return not session or (found is not None and found.group == group)

    def _commit(self, command: pb.CommitLeasesCommand, index: int) -> None:
        for topic in command.topics:
            for queue in topic.queues:
                seat = self._seats.get((command.group, topic.incarnation, queue.queue_id))
                self.commits += 1
                if seat is None or (seat.session, seat.epoch) != (command.session, queue.epoch):
                    self.refused += 1
                    continue
                told = set(range(queue.frontier))
                at = queue.frontier
                for left, done in zip(queue.finished[::2], queue.finished[1::2], strict=True):
                    told.update(range(at + left, at + left + done))
                    at += left + done
                state = self._topic(topic.topic, topic.incarnation)
                if state is None or at > state.next_offsets[queue.queue_id]:
                    raise Defect("lease", f"entry {index} finishes what isn't there")
                seat.finished |= told
                seat.begun = seat.frontier if queue.begun else -1
                if queue.release:
                    seat.session = seat.epoch = 0

    def _send_back(self, command: pb.SendBackCommand) -> None:
        """Of a unit that took effect: by the holder's epoch, of what wasn't finished."""
        seat = self._held(command)
        key = command.group, command.incarnation, command.queue_id
        is_front = command.offset == seat.frontier
        failures = seat.failures if is_front else 0
        self.copied[key, command.offset] = Copied(failures, self._is_orderly(command.group))
        seat.finished.add(command.offset)

    def _fail(self, command: pb.FailMessageCommand) -> None:
        """The same; what is before it is finished, and it has failed once more."""
        seat = self._held(command)
        seat.finished |= set(range(command.offset))
        seat.fail()
        self.counted += 1
        if seat.failed != (command.offset, command.failures):
            raise Defect("lease", f"{command} took effect, and {seat.failed} is so")
        group = self._machine.groups.joined(command.group)
        if group is None or 0 < group.settings.max_attempts <= command.failures:
            raise Defect("lease", f"{command} took effect, and its attempts were over")

    def _held(self, command: pb.SendBackCommand | pb.FailMessageCommand) -> _Seat:
        seat = self._seats.get((command.group, command.incarnation, command.queue_id))
        held_by = None if seat is None else (seat.session, seat.epoch)
        if seat is None or held_by != (command.session, command.epoch):
            raise Defect("lease", f"{command} took effect, and the queue is held by {held_by}")
        if command.offset in seat.finished:
            raise Defect("lease", f"{command} took effect, and was finished before")
        return seat

    def _commit_simply(self, command: pb.CommitOffsetsCommand) -> None:
        topic = self._machine.topics.get(command.topic)
        if topic is None or command.topic_incarnation not in (0, topic.incarnation):
            return
        if self._machine.groups.members(command.group):
            return
        committed = self._machine.offsets.of(command.group, command.topic)
        for each in command.offsets:
            seat = self._seats.get((command.group, topic.incarnation, each.queue_id))
            if seat is not None:
                seat.finished = set(range(committed[each.queue_id]))

    def _move(self, command: pb.MoveGroupCommand, index: int) -> None:
        """All of its queues, or none if one of them doesn't reach so far."""
        state = self._topic(command.topic, command.incarnation)
        if state is None:
            return
        ends = state.next_offsets
        if any(
            each.queue_id >= len(ends) or each.offset > ends[each.queue_id]
            for each in command.queues
        ):
            return
        for each in command.queues:
            seat = self._seats.get((command.group, command.incarnation, each.queue_id))
            if seat is None:
                continue  # it will begin where it is then
            self.moves += 1
            seat.session = seat.epoch = 0
            if command.forward:
                seat.finished |= set(range(each.offset))
                seat.due.begin = max(seat.due.begin, each.offset)
            else:
                seat.finished = set(range(each.offset))
                seat.due = Due(each.offset, index)

    def _let_go(self, command: pb.UpdateTopicCommand) -> None:
        """Nobody holds the queues that it takes away, and their ends are where groups go on. One
        that was granted while they went is given back by whoever has it, when it is asked."""
        topic = self._machine.topics.get(command.name)
        if topic is None:
            return
        count = len(topic.next_offsets)
        numbers = self._machine.queue_numbers.of(topic.incarnation, count)
        going = range(numbers.read_queues, self._read_queues.get(topic.incarnation, count))
        for (_, incarnation, queue_id), seat in self._seats.items():
            if incarnation == topic.incarnation and queue_id in going:
                seat.session = seat.epoch = 0
                seat.finished |= set(range(topic.next_offsets[queue_id]))

    def _drop_what_is_gone(self) -> None:
        there = {topic.incarnation for topic in self._machine.topics.values()}
        for key in [
            each
            for each in self._seats
            if each[1] not in there or self._machine.groups.joined(each[0]) is None
        ]:
            del self._seats[key]

    def _topic(self, name: str, incarnation: int) -> TopicState | None:
        topic = self._machine.topics.get(name)
        return topic if topic is not None and topic.incarnation == incarnation else None

    def _lease(self, key: Seat) -> tuple[int, int]:
        group, incarnation, queue_id = key
        lease = self._machine.leases.in_topic(group, incarnation).get(queue_id)
        return (0, 0) if lease is None else (lease.session, lease.epoch)

    def _compare(self, index: int) -> None:
        names = dict[int, str]()
        for topic in self._machine.topics.values():
            names[topic.incarnation] = topic.name
            numbers = self._machine.queue_numbers.of(topic.incarnation, len(topic.next_offsets))
            self._read_queues[topic.incarnation] = numbers.read_queues
        for key, seat in self._seats.items():
            group, incarnation, queue_id = key
            if self._lease(key) != (seat.session, seat.epoch):
                raise Defect(
                    "lease",
                    f"after entry {index} {key} is held by {self._lease(key)}, and should be by "
                    f"{(seat.session, seat.epoch)}",
                )
            frontier = self._machine.offsets.of(group, names[incarnation]).get(queue_id, -1)
            lease = self._machine.leases.in_topic(group, incarnation).get(queue_id)
            finished = {*range(frontier)}
            for each in () if lease is None else lease.finished:
                finished.update(range(*each))
            if seat.failed[0] != seat.frontier:
                seat.failed = (0, 0)  # forgotten, though the group be moved back there
            known = self._machine.attempts.of(Place(*key), frontier)
            if known != seat.failures:
                raise Defect(
                    "lease",
                    f"after entry {index} {key} has failed {known} times at {frontier}, and should "
                    f"have {seat.failures}",
                )
            if finished != seat.finished:
                wrong = sorted(finished ^ seat.finished)[:5]
                raise Defect("lease", f"after entry {index} {key} is finished otherwise: {wrong}")
