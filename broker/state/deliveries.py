"""Deliveries: what groups that are handed single messages have in hand, by queue (ADR 57).

This owns a record for each (group, topic incarnation, queue): *next*, from which on nothing was
ever handed out, and the *handouts* before it (`broker.state.handouts`). What lies before next and
is in no handout is finished. What a command does, and whether it may, is `broker.state.delivering`;
the frontier it commits as the group's offset, so that everybody sees one number.

    an offset       on                                        becomes
    not given       given by entry n                          in handout n, hidden, attempt 1
    not given       passed over: void, or gone                finished
    in handout m    finished by m, however late               finished
    in handout m    returned by m, hidden for d               in handout n, due at n's time + d
    in handout m    extended by m, for d                      in handout m, due at n's time + d
    in handout m    given by n, due by n's time               in handout n, attempt + 1
    in handout m    given by n, still hidden                  unchanged    (refused: StillHidden)
    in handout m    settled by another                        unchanged    (refused: Superseded)
    any             topic deleted, group forgotten            nothing is known

FIFO: a queue's messages are given to one attempt at a time, the lowest unfinished ones, and new
ones only when none is left. Bounds: `MAX_…`; they hold back what was never given, and never what is
due. A state without deliveries has no section in its snapshots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.handouts import PAGE_ROWS, ROW, Handout, Page, Record, counted, with_page
from broker.state.layout import DELIVERIES_SECTION, HANDOUTS_SECTION
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation

SECTION: Final = "deliveries"
HANDOUTS: Final = "handouts"
OWN_SECTIONS: Final = (SECTION, HANDOUTS)
VERSION: Final = 1
MAX_UNFINISHED: Final = 20_000  # of one queue of a group, beyond which nothing new is given
MAX_ALL_UNFINISHED: Final = 1_000_000
MAX_HANDOUTS: Final = 500_000
_HEAD: Final = DELIVERIES_SECTION.run("incarnation", "style", "queue_id", "next")
_PAGE: Final = HANDOUTS_SECTION.run("incarnation", "queue_id", "count")


@dataclass(slots=True)
class TopicDeliveries:
    """A group's in one topic; read only for all but `Deliveries`. A record for each queue in which
    the group has a start, from the first on."""

    is_fifo: bool
    queues: dict[int, Record] = field(default_factory=dict)
    snapshots: int = field(default=0, compare=False)  # taken before this object was made


class Load(NamedTuple):
    """Of what is bounded over all groups: unfinished messages, and the handouts that have them."""

    unfinished: int
    rows: int


NO_LOAD: Final = Load(0, 0)
NO_QUEUES: Final[Mapping[int, Record]] = MappingProxyType({})


@dataclass(slots=True)
class Deliveries:
    """As of the last applied entry. Every field that is compared is replicated state or its bound.
    What changes after a snapshot was taken is copied first (`_own`)."""

    max_unfinished: int = MAX_UNFINISHED
    max_all_unfinished: int = MAX_ALL_UNFINISHED
    max_handouts: int = MAX_HANDOUTS
    _topics: dict[int, dict[str, TopicDeliveries]] = field(default_factory=dict, init=False)
    _groups: dict[str, int] = field(default_factory=dict, init=False)  # in how many topics
    # In how many of them in order; derived.
    _in_order: Counter[str] = field(default_factory=Counter, init=False, compare=False)
    _unfinished: int = field(default=0, init=False)
    _handouts: int = field(default=0, init=False)
    _snapshots: int = field(default=0, init=False, compare=False)  # taken so far

    # --- reading ------------------------------------------------------------------------------

    def has(self, group: str) -> bool:
        """Whether the group is handed single messages, anywhere."""
        return group in self._groups

    def is_fifo_anywhere(self, group: str) -> bool:
        """Whether it gets those of some topic in order."""
        return group in self._in_order

    def is_fifo(self, group: str, incarnation: int) -> bool | None:
        """Whether it gets those of that topic in order; None: it gets none."""
        topic = self._topics.get(incarnation, {}).get(group)
        return None if topic is None else topic.is_fifo

    def in_topic(self, group: str, incarnation: int) -> Mapping[int, Record]:
        """By queue, from 0 on without gaps: those in which the group has a start."""
        topic = self._topics.get(incarnation, {}).get(group)
        return NO_QUEUES if topic is None else MappingProxyType(topic.queues)

    def groups(self, incarnation: int) -> list[str]:
        """Those that are handed messages of the topic."""
        return list(self._topics.get(incarnation, {}))

    def incarnations(self) -> list[int]:
        """Of the topics of which any group is handed messages."""
        return list(self._topics)

    def is_hiding(self, group: str, now_ms: int) -> bool:
        """Whether somebody may be at work for the group: a handout of it isn't due yet."""
        return any(
            each.hidden_until_ms > now_ms
            for groups in self._topics.values()
            if group in groups
            for record in groups[group].queues.values()
            for each in record
        )

    @property
    def unfinished(self) -> int:
        """Messages in handouts."""
        return self._unfinished

    @property
    def handout_count(self) -> int:
        """Handouts of all groups."""
        return self._handouts

    def room(self, unfinished: int, more: int, rows: int) -> int:
        """How many messages that never were may be given in a queue, by one handout.

        Args:
            unfinished: of the queue, as far as the command has changed it.
            more: unfinished messages that the command has added in all so far.
            rows: handouts that it has.
        """
        if self._handouts + rows >= self.max_handouts:
            return 0
        left = self.max_all_unfinished - self._unfinished - more
        return max(0, min(self.max_unfinished - unfinished, left))

    def load_of(self, incarnation: int) -> Load:
        """What is in hand of the topic."""
        groups = self._topics.get(incarnation, {}).values()
        records = [record for group in groups for record in group.queues.values()]
        return Load(
            sum(each.unfinished for each in records), sum(each.handouts for each in records)
        )

    def growth(self, group: str, incarnation: int, records: Mapping[int, Record]) -> Load:
        """By what all handouts and their messages become more if these become the records of those
        queues; below 0 where they become fewer."""
        before = self.in_topic(group, incarnation)
        known = [before[queue_id] for queue_id in records if queue_id in before]
        return Load(
            sum(each.unfinished for each in records.values())
            - sum(each.unfinished for each in known),
            sum(each.handouts for each in records.values()) - sum(each.handouts for each in known),
        )

    # --- transitions --------------------------------------------------------------------------

    def put(
        self, group: str, incarnation: int, records: Mapping[int, Record], *, is_fifo: bool
    ) -> None:
        """These are the records of those queues; `broker.state.delivering` made them."""
        groups = self._topics.setdefault(incarnation, {})
        if group not in groups:
            groups[group] = TopicDeliveries(is_fifo, {}, self._snapshots)
            self._groups[group] = self._groups.get(group, 0) + 1
            if is_fifo:
                self._in_order[group] += 1
        queues = self._own(group, incarnation).queues
        for queue_id, record in records.items():
            self._count(queues.get(queue_id), -1)
            self._count(record, 1)
            queues[queue_id] = record

    def _count(self, record: Record | None, by: int) -> None:
        if record is not None:
            self._unfinished += by * record.unfinished
            self._handouts += by * record.handouts

    def _own(self, group: str, incarnation: int) -> TopicDeliveries:
        """The group's in that topic, to be changed: what a snapshot shows stays there as it is."""
        topic = self._topics[incarnation][group]
        if topic.snapshots != self._snapshots:
            topic = TopicDeliveries(topic.is_fifo, topic.queues.copy(), self._snapshots)
            self._topics[incarnation][group] = topic
        return topic

    def recount(self) -> None:
        """What is unfinished is what the handouts have, as after a snapshot. Below level 9 rows
        could be lost and still be counted, by those who had applied it and hadn't restored it
        since: all members are alike from the entry on that raises the level."""
        for incarnation, groups in list(self._topics.items()):
            for group, topic in list(groups.items()):
                records = {queue_id: counted(record) for queue_id, record in topic.queues.items()}
                wrong = {at: each for at, each in records.items() if each is not topic.queues[at]}
                if wrong:
                    self.put(group, incarnation, wrong, is_fifo=topic.is_fifo)

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of the topic."""
        for group in self.groups(incarnation):
            self._drop(group, incarnation)

    def on_group_forgotten(self, group: str) -> None:
        """Nothing is known of the group."""
        for incarnation in [each for each, groups in self._topics.items() if group in groups]:
            self._drop(group, incarnation)

    def _drop(self, group: str, incarnation: int) -> None:
        gone = self._topics[incarnation].pop(group)
        for record in gone.queues.values():
            self._count(record, -1)
        if gone.is_fifo:
            self._in_order[group] -= 1
            if not self._in_order[group]:
                del self._in_order[group]
        if not self._topics[incarnation]:
            del self._topics[incarnation]
        self._groups[group] -= 1
        if not self._groups[group]:
            del self._groups[group]

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The deliveries as they are now, whatever is applied while the payloads are taken."""
        view = [(incarnation, tuple(each.items())) for incarnation, each in self._topics.items()]
        if not view:
            return ()
        self._snapshots += 1
        found = [Section(SECTION, VERSION, pack(_heads(view)))]
        if self._handouts:
            found.append(Section(HANDOUTS, VERSION, pack(_pages(view))))
        return tuple(found)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """One of `OWN_SECTIONS`, in their order, becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                group = reader.take_text()
                if section == SECTION:
                    self._restore_head(group, reader)
                else:
                    self._restore_page(group, reader)

    def _restore_head(self, group: str, reader: PayloadReader) -> None:
        incarnation, style, queue_id, next_offset = reader.take(_HEAD)
        known = self.in_topic(group, incarnation)
        is_other = bool(known) and self.is_fifo(group, incarnation) != bool(style)
        if style > 1 or is_other or queue_id != len(known):
            raise SnapshotDamaged(SECTION, "each queue once, in order", (group, queue_id, style))
        records = {queue_id: Record(next_offset)}
        self.put(group, incarnation, records, is_fifo=bool(style))

    def _restore_page(self, group: str, reader: PayloadReader) -> None:
        incarnation, queue_id, count = reader.take(_PAGE)
        record = self.in_topic(group, incarnation).get(queue_id)
        if record is None or not 0 < count <= PAGE_ROWS:
            raise SnapshotDamaged(HANDOUTS, "handouts of a queue that is there", (group, queue_id))
        rows = reader.take_bytes(ROW.size * count)
        page = Page.of([Handout._make(each) for each in ROW.iter_unpack(rows)])
        grown = with_page(record, page)
        self._topics[incarnation][group].queues[queue_id] = grown
        self._unfinished += grown.unfinished - record.unfinished
        self._handouts += count

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, applied_index: int) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        groups: dict[str, int] = {}
        in_order: Counter[str] = Counter()
        unfinished = handouts = 0
        for incarnation, topics in self._topics.items():
            for group, topic in topics.items():
                groups[group] = groups.get(group, 0) + 1
                if topic.is_fifo:
                    in_order[group] += 1
                if sorted(topic.queues) != list(range(len(topic.queues))) or not topic.queues:
                    raise InvariantViolation(f"{group} has queues {sorted(topic.queues)}")
                for queue_id, record in topic.queues.items():
                    unfinished += record.unfinished
                    handouts += record.handouts
                    why = _impossible(record, applied_index)
                    if why:
                        where = f"{group} in {incarnation}/{queue_id}"
                        raise InvariantViolation(f"{where}: {why}")
        if groups != self._groups or not all(self._topics.values()):
            raise InvariantViolation(f"groups {groups}, counted {self._groups}")
        if in_order != self._in_order:
            raise InvariantViolation(f"in order {in_order}, counted {self._in_order}")
        if (unfinished, handouts) != (self._unfinished, self._handouts):
            raise InvariantViolation(f"{unfinished} in {handouts} handouts, counted otherwise")


def _impossible(record: Record, applied_index: int) -> str:
    """Why no queue can be so; empty if one can."""
    seen: set[int] = set()
    indexes = [each.index for each in record]
    if indexes != sorted(indexes):
        return "handouts out of order"
    for page in record.pages:
        if not 0 < len(page) <= PAGE_ROWS or page != Page.of(list(page)):
            return f"a page of {len(page)} handouts that isn't what it says"
    for each in record:
        offsets = set(each.offsets())
        if not each.mask & 1 or not 0 < each.index <= applied_index or not each.attempt:
            return f"{each}"
        if offsets & seen or each.end > record.next:
            return f"{each} has what another one has, or what was never given"
        seen |= offsets
    return "" if len(seen) == record.unfinished else f"{len(seen)} unfinished, counted otherwise"


View = Sequence[tuple[int, tuple[tuple[str, TopicDeliveries], ...]]]  # by incarnation


def _heads(view: View) -> Iterator[bytes]:
    for incarnation, groups in sorted(view, key=_incarnation):
        for group, topic in groups:
            text = pack_text(group)
            for queue_id, record in sorted(topic.queues.items()):
                yield text + _HEAD.pack(incarnation, topic.is_fifo, queue_id, record.next)


def _pages(view: View) -> Iterator[bytes]:
    for incarnation, groups in sorted(view, key=_incarnation):
        for group, topic in groups:
            text = pack_text(group)
            for queue_id, record in sorted(topic.queues.items()):
                for page in record.pages:
                    yield text + _PAGE.pack(incarnation, queue_id, len(page)) + page.rows


def _incarnation(part: tuple[int, object]) -> int:
    return part[0]
