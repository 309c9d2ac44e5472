"""What a command of per-message delivery does to several owners: deliveries, offsets and groups.

`planned` says what would become of each queue, and changes nothing; `Delivering.deliver` does it.
The leader asks `planned` too, of what it is about to propose (`broker.leader.deliveries`): there is
one set of rules. A command takes effect whole or not at all, first what is settled, then what is
given. The machine gives this the commands of ADR 57; other styles of the same group are refused
here and there, by name, until the group is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from broker.state.deliveries import NO_LOAD, Deliveries, Load
from broker.state.groups import MAX_GROUP_BYTES, Groups
from broker.state.handouts import (
    ATTEMPT_ID_SIZE,
    MAX_ATTEMPT,
    NO_ATTEMPT,
    Draft,
    Handout,
    Record,
)
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.refusals import (
    GroupDiffers,
    GroupStyled,
    HandoutSuperseded,
    Malformed,
    OffsetOutOfRange,
    QueueNotFound,
    Refusal,
    StartMissing,
    StillHidden,
    TooManyHandedOut,
)
from broker.state.topics import TopicState
from dledger.core.errors import InvariantViolation
from dledger.level import TOPIC_RULES_LEVEL
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    SETTLING_RETURNED,
    BuryCommand,
    DeliverCommand,
    GivenMessages,
    SettledMessages,
)

MAX_HIDDEN_MS: Final = 12 * 3_600_000
KINDS: Final = (SETTLING_FINISHED, SETTLING_RETURNED, SETTLING_EXTENDED)
_MAX_OFFSET: Final = (1 << 63) - 1


class Moment(NamedTuple):
    """The entry that is applied, its append time, and as of it the lived time and the level in
    use."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a moment for
    append_time_ms: int
    lived_ms: int
    level: int

    def draft(self, record: Record) -> Draft:
        """The record, to be changed as all members do it that know the level."""
        return Draft(record, loses_rows=self.level < TOPIC_RULES_LEVEL)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command makes of the queues that it changes, all those that start included."""

    records: Mapping[int, Record]
    is_fifo: bool


class Owners(Protocol):
    """Whom a command of deliveries is about; read only."""

    @property
    def offsets(self) -> Offsets: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def deliveries(self) -> Deliveries: ...


def planned(
    owners: Owners,
    topic: TopicState,
    command: DeliverCommand,
    at: Moment,
    new: int = 0,
    load: Load = NO_LOAD,
) -> Plan | Refusal:
    """What the command does; or why it does nothing. `new` pairs of group and topic come first,
    and what is bounded over all groups has grown by `load`: by units before it in its entry."""
    group = command.group
    if not 0 < len(group.encode()) <= MAX_GROUP_BYTES:
        return Malformed(f"a group's name has 1 to {MAX_GROUP_BYTES} bytes")
    if owners.groups.joined(group) is not None:
        return GroupStyled(group, is_delivered=False)
    is_fifo = owners.deliveries.is_fifo(group, topic.incarnation)
    if is_fifo not in (None, command.fifo):
        return GroupDiffers(group, ("is_fifo",), 0)
    records = dict(owners.deliveries.in_topic(group, topic.incarnation))
    started = begun(owners, topic, command, len(records))
    if not isinstance(started, dict):
        return started
    commit = OffsetCommit(group, topic.name, tuple(_starts(started)), is_reset=False)
    refusal: Refusal | None = owners.offsets.refusal_of(commit, topic.next_offsets, new)
    if refusal is not None:
        return refusal
    records.update(started)
    planning = Planning(
        *(owners.deliveries, topic, command.fifo, at, records),
        added=max(0, load.unfinished),  # room that units before it make is the next entry's
        rows=max(0, load.rows),
    )
    for settled in command.settled:
        refusal = refusal or planning.settle(settled)
    for given in command.given:
        refusal = refusal or planning.give(given)
    refusal = refusal or planning.check_order()
    if refusal is not None:
        return refusal
    changed = {queue_id: draft.done() for queue_id, draft in planning.drafts.items()}
    return Plan({**started, **changed}, command.fifo)


def begun(
    owners: Owners, topic: TopicState, command: DeliverCommand, known: int
) -> dict[int, Record] | Refusal:
    """The queues that get a start: where the group had committed before, it goes on there."""
    starts, ends = command.starts, topic.next_offsets
    if not starts or command.first_start != known:
        # Another command has said so before; a group that is nowhere yet is made by its starts.
        return {} if known else StartMissing(0)
    if known + len(starts) > len(ends):
        return QueueNotFound(topic.name, known + len(starts) - 1, len(ends))
    committed = owners.offsets.of(command.group, topic.name)
    found: dict[int, Record] = {}
    for queue_id, offset in enumerate(starts, known):
        start = committed.get(queue_id, offset)
        if start > ends[queue_id]:
            return OffsetOutOfRange(topic.name, queue_id, start)
        found[queue_id] = Record(start)
    return found


def _starts(started: Mapping[int, Record]) -> Sequence[tuple[int, int]]:
    return [(queue_id, record.next) for queue_id, record in started.items()]


def buried(
    owners: Owners, topic: TopicState, command: BuryCommand, copies: int, at: Moment
) -> Plan | Refusal:
    """What a queue is once these messages of it are dead letters, of which so many copies go with
    the command; or why they aren't."""
    record = owners.deliveries.in_topic(command.group, topic.incarnation).get(command.queue_id)
    if record is None:
        return StartMissing(command.queue_id)
    why = _malformed(command.base, command.mask, 0)
    if why or not command.attempts or command.mask.bit_count() != copies or not copies:
        return Malformed(why or "each message is finished with one copy, after its attempts")
    draft = at.draft(record)
    taken = draft.take(command.handout, command.base, command.mask)
    if taken is None:
        return HandoutSuperseded(command.queue_id, command.base)
    for each in taken:
        if each.hidden_until_ms > at.append_time_ms:
            return StillHidden(command.queue_id, each.base)
        if each.attempt < command.attempts:
            return Malformed(f"{each.attempt} attempts were made, not {command.attempts}")
    is_fifo = bool(owners.deliveries.is_fifo(command.group, topic.incarnation))
    return Plan({command.queue_id: draft.done()}, is_fifo)


@dataclass(slots=True)
class Planning:
    """The queues of one topic, as far as the command has gone."""

    deliveries: Deliveries
    topic: TopicState
    is_fifo: bool
    at: Moment
    records: Mapping[int, Record]
    drafts: dict[int, Draft] = field(default_factory=dict)
    given: dict[int, list[Handout]] = field(default_factory=dict)
    added: int = 0  # unfinished messages in all, by units before this one, too
    rows: int = 0  # handouts that were given, likewise

    def draft(self, queue_id: int) -> Draft | QueueNotFound | StartMissing:
        """The queue, as far as the command has gone; or why there is none."""
        draft = self.drafts.get(queue_id)
        if draft is None:
            count = len(self.topic.next_offsets)
            if queue_id >= count:
                return QueueNotFound(self.topic.name, queue_id, count)
            if queue_id not in self.records:
                return StartMissing(queue_id)
            draft = self.drafts[queue_id] = self.at.draft(self.records[queue_id])
        return draft

    # --- settling -----------------------------------------------------------------------------

    def settle(self, wish: SettledMessages) -> Refusal | None:
        """The messages are settled, or why they aren't."""
        draft = self.draft(wish.queue_id)
        if not isinstance(draft, Draft):
            return draft
        why = _malformed(wish.base, wish.mask, wish.hidden_ms)
        if why or not wish.mask or wish.what not in KINDS:
            return Malformed(why or "what is settled names no messages, or nothing to do")
        taken = draft.take(wish.handout, wish.base, wish.mask)
        if taken is None:
            return HandoutSuperseded(wish.queue_id, wish.base)
        self.added -= wish.mask.bit_count()
        if wish.what == SETTLING_FINISHED:
            return None
        until_ms = self.at.append_time_ms + wish.hidden_ms
        for each in taken:
            left = each._replace(hidden_until_ms=until_ms)
            if wish.what == SETTLING_RETURNED:
                left = left._replace(index=self.at.index, attempt_id=NO_ATTEMPT)
            draft.put(left)
        self.added += wish.mask.bit_count()
        return None

    # --- giving -------------------------------------------------------------------------------

    def give(self, wish: GivenMessages) -> Refusal | None:
        """The messages are handed out, or why they aren't."""
        draft = self.draft(wish.queue_id)
        if not isinstance(draft, Draft):
            return draft
        why = _malformed(wish.base, wish.mask, wish.hidden_ms)
        if why or len(wish.attempt_id) != ATTEMPT_ID_SIZE or wish.attempt_id == NO_ATTEMPT:
            return Malformed(why or f"an attempt id has {ATTEMPT_ID_SIZE} bytes, not all zeros")
        if wish.former:
            return self._give_again(draft, wish)
        return self._give_new(draft, wish)

    def _give_new(self, draft: Draft, wish: GivenMessages) -> Refusal | None:
        end = wish.base + wish.mask.bit_length()
        if wish.base < draft.next:
            return HandoutSuperseded(wish.queue_id, wish.base)
        if end > self.topic.next_offsets[wish.queue_id]:
            return OffsetOutOfRange(self.topic.name, wish.queue_id, end)
        draft.next = end
        if not wish.mask:
            return None
        count = wish.mask.bit_count()
        if count > self.deliveries.room(draft.unfinished, self.added, self.rows):
            return TooManyHandedOut(wish.queue_id)
        self.added += count
        self.rows += 1
        self._put(draft, wish, wish.mask, wish.base, 1)
        return None

    def _give_again(self, draft: Draft, wish: GivenMessages) -> Refusal | None:
        """What is due is given whatever the bounds say: it would never come again."""
        if not wish.mask or wish.former >= self.at.index:
            return Malformed("what is given again was given before, by an entry before this one")
        taken = draft.take(wish.former, wish.base, wish.mask)
        if taken is None:
            return HandoutSuperseded(wish.queue_id, wish.base)
        for each in taken:
            if each.hidden_until_ms > self.at.append_time_ms:
                return StillHidden(wish.queue_id, each.base)
            self._put(draft, wish, each.mask, each.base, min(each.attempt + 1, MAX_ATTEMPT))
        return None

    def _put(self, draft: Draft, wish: GivenMessages, mask: int, base: int, attempt: int) -> None:
        until_ms = self.at.append_time_ms + wish.hidden_ms
        by = (mask & -mask).bit_length() - 1
        handout = Handout(self.at.index, base + by, mask >> by, until_ms, wish.attempt_id, attempt)
        draft.put(handout)
        self.given.setdefault(wish.queue_id, []).append(handout)

    def room(self, queue_id: int) -> int:
        """How many messages that never were may be given in the queue; one handout more at least
        must have room."""
        draft = self.draft(queue_id)
        if not isinstance(draft, Draft):
            return 0
        return self.deliveries.room(draft.unfinished, self.added, self.rows)

    def check_order(self) -> StillHidden | None:
        """FIFO: of each queue one attempt has something, and that is the lowest there is."""
        if not self.is_fifo:
            return None
        for queue_id, given in self.given.items():
            mine = set(given)
            others = [each for each in self.drafts[queue_id] if each not in mine]
            last = max(each.end for each in given)
            hidden = (each for each in others if each.hidden_until_ms > self.at.append_time_ms)
            before = (each for each in others if each.base < last)
            first = next(hidden, None) or next(before, None)
            if first is not None:
                return StillHidden(queue_id, first.base)
            if len({each.attempt_id for each in given}) > 1:
                return StillHidden(queue_id, given[0].base)
        return None


def _malformed(base: int, mask: int, hidden_ms: int) -> str:
    """Why no queue has such messages; empty if one may."""
    if base + mask.bit_length() > _MAX_OFFSET:
        return f"no queue has an offset {base}"
    if hidden_ms > MAX_HIDDEN_MS:
        return f"messages are hidden for {MAX_HIDDEN_MS} ms at most"
    return ""


class Delivering:
    """The three owners, changed together."""

    def __init__(self, deliveries: Deliveries, offsets: Offsets, groups: Groups) -> None:
        self._deliveries = deliveries
        self._offsets = offsets
        self._groups = groups

    def deliver(self, plan: Plan, topic: TopicState, group: str, at: Moment) -> None:
        """The plan, made of the state as it is, has become so."""
        self._deliveries.put(group, topic.incarnation, plan.records, is_fifo=plan.is_fifo)
        frontiers = tuple((queue_id, each.frontier) for queue_id, each in plan.records.items())
        commit = OffsetCommit(group, topic.name, frontiers, is_reset=False)
        refusal = self._offsets.commit(commit, topic.next_offsets)
        if refusal is not None:
            raise InvariantViolation(f"frontiers of {group} were planned, and are {refusal}")
        self._groups.use(group, at.lived_ms)

    def refusal_of_style(self, group: str) -> GroupStyled | None:
        """Why nobody may join the group, nor commit for it; None if they may."""
        return GroupStyled(group, is_delivered=True) if self._deliveries.has(group) else None

    def forgettable(self, groups: Sequence[str], now_ms: int) -> list[str]:
        """Those for which nobody can be at work."""
        return [each for each in groups if not self._deliveries.is_hiding(each, now_ms)]

    def on_forgotten(self, groups: Sequence[str]) -> None:
        """Those of them that are gone leave nothing behind."""
        for name in groups:
            if self._groups.get(name) is None:
                self._deliveries.on_group_forgotten(name)

    def check_invariants(self, topics: Mapping[int, TopicState]) -> None:
        """What holds between the owners.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        for incarnation in self._deliveries.incarnations():
            topic = topics.get(incarnation)
            if topic is None:
                raise InvariantViolation(f"deliveries are in topic {incarnation}, which is gone")
            for group in self._deliveries.groups(incarnation):
                if self._groups.joined(group) is not None or self._groups.get(group) is None:
                    raise InvariantViolation(
                        f"group {group} has deliveries, and isn't of that style"
                    )
                records = self._deliveries.in_topic(group, incarnation)
                offsets, ends = self._offsets.of(group, topic.name), topic.next_offsets
                for queue_id, record in records.items():
                    if queue_id >= len(ends) or record.next > ends[queue_id]:
                        raise InvariantViolation(f"{group} has had more of {topic.name} than is")
                    if offsets.get(queue_id) != record.frontier:
                        at = f"{group} in {topic.name}/{queue_id}"
                        raise InvariantViolation(f"{at}: frontier {record.frontier}, {offsets}")
