"""The replicated state: every owner of it, and what is true of all of them together.

This is what a snapshot holds, in which order, and what holds between any two entries. Who changes
it is `broker.state.machine`; whoever reads may. A new owner of state is one line where they are
made, one in the list of sections, one in `snapshot` and one in `_restore_section`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from broker.state import (
    attempts,
    deliveries,
    groups,
    leases,
    level,
    lived_time,
    log_start,
    offsets,
    outcomes,
    producers,
    queue_numbers,
    retries,
    topic_permissions,
    topic_retention,
    topics,
)
from broker.state.attempts import Attempts
from broker.state.deliveries import Deliveries
from broker.state.errors import SnapshotAppliedOtherwise, SnapshotDamaged, SnapshotUnknown
from broker.state.groups import Groups
from broker.state.layout import APPLYING, MACHINE_SECTION
from broker.state.leases import Leases
from broker.state.level import Level
from broker.state.lived_time import LivedTime
from broker.state.log_start import RetiredThrough
from broker.state.offsets import Offsets
from broker.state.outcomes import Outcomes
from broker.state.producers import Producers
from broker.state.queue_numbers import QueueNumbers
from broker.state.registration import EPOCH_SIZE, ProducerBounds
from broker.state.retries import Retries
from broker.state.sequences import batches_of
from broker.state.snapshot import Chunk, PayloadReader, Section, pack, seal, unseal
from broker.state.topic_permissions import TopicPermissions
from broker.state.topic_retention import TopicRetentions
from broker.state.topics import Topics
from dledger.core.errors import InvariantViolation

SECTION: Final = "machine"
_OWN: Final = MACHINE_SECTION.struct()
SECTIONS: Final = (
    SECTION,
    level.SECTION,
    lived_time.SECTION,
    topics.SECTION,
    offsets.SECTION,
    producers.SECTION,
)
# Behind them, in this order, if there is anything to say.
OPTIONAL_SECTIONS: Final = (
    log_start.SECTION,
    topic_retention.SECTION,
    outcomes.SECTION,
    *groups.OWN_SECTIONS,
    *leases.OWN_SECTIONS,
    *deliveries.OWN_SECTIONS,
    *retries.OWN_SECTIONS,
    *attempts.OWN_SECTIONS,
    *queue_numbers.OWN_SECTIONS,
    topic_permissions.SECTION,
)


class ReplicatedState:
    """All owners of state, as of the last applied entry.

    Args:
        max_queues: over all topics.
        max_progress: group-topic pairs with committed offsets.
        bounds: of producers.
    """

    def __init__(self, max_queues: int, max_progress: int, bounds: ProducerBounds) -> None:
        self.applied_index = 0
        self.append_time_ms = 0
        self.messages_applied = 0
        self.level = Level()
        self.lived_time = LivedTime()
        self.topics = Topics(max_queues=max_queues)
        self.offsets = Offsets(max_progress=max_progress)
        self.producers = Producers(bounds)
        self.log_start = RetiredThrough()
        self.topic_retention = TopicRetentions()
        self.topic_permissions = TopicPermissions()
        self.outcomes = Outcomes()
        self.groups = Groups()
        self.leases = Leases()
        self.deliveries = Deliveries()
        self.retries = Retries()
        self.attempts = Attempts()
        self.queue_numbers = QueueNumbers()

    def snapshot(self) -> Iterator[bytes]:
        """The state as it is now, in chunks (`broker.state.snapshot`). Each is made when it is
        taken; entries that are applied meanwhile don't show."""
        own = _OWN.pack(self.append_time_ms, self.messages_applied)
        sections = (
            Section(SECTION, APPLYING, pack((own,))),
            self.level.snapshot(),
            self.lived_time.snapshot(),
            self.topics.snapshot(),
            self.offsets.snapshot(),
            self.producers.snapshot(),
            *self.log_start.snapshot(),
            *self.topic_retention.snapshot(),
            *self.outcomes.snapshot(),
            *self.groups.snapshot(),
            *self.leases.snapshot(),
            *self.deliveries.snapshot(),
            *self.retries.snapshot(),
            *self.attempts.snapshot(),
            *self.queue_numbers.snapshot(),
            *self.topic_permissions.snapshot(),
        )
        return seal(self.applied_index, sections)

    def restore(self, chunks: Iterable[bytes], earliest_rules: int | None = None) -> None:
        """It is as `snapshot` gave it; it was empty before.

        Args:
            earliest_rules: the first version of applying by which it may have been made; this
                program's only, if there is none.

        Raises:
            SnapshotRefused: the chunks are no such state; one of its kinds says why.
        """
        expected, optional = iter(SECTIONS), iter(OPTIONAL_SECTIONS)
        for name, section in groupby(unseal(chunks), key=lambda chunk: chunk.section):
            if name in SECTIONS and name != next(expected, None):
                raise SnapshotDamaged(f"section {name}", f"the order {SECTIONS}", "another")
            if name in OPTIONAL_SECTIONS:
                if (left := next(expected, None)) is not None:
                    raise SnapshotDamaged(f"section {name}", f"{left} before", "not there")
                if name not in optional:  # those that it passes over may be there no more
                    raise SnapshotDamaged(f"section {name}", OPTIONAL_SECTIONS, "another order")
            self._restore_section(name, section, earliest_rules or APPLYING)
        missing = next(expected, None)
        if missing is not None:
            raise SnapshotDamaged("sections", f"{missing} too", "none")

    def _restore_section(self, name: str, chunks: Iterator[Chunk], earliest_rules: int) -> None:
        first = next(chunks)
        payloads = _payloads(first, chunks)
        match name:
            case level.SECTION:
                self.level.restore(first.version, payloads)
            case lived_time.SECTION:
                self.lived_time.restore(first.version, payloads)
            case topics.SECTION:
                self.topics.restore(first.version, payloads)
            case offsets.SECTION:
                self.offsets.restore(first.version, payloads)
            case log_start.SECTION:
                self.log_start.restore(first.version, payloads)
            case topic_retention.SECTION:
                self.topic_retention.restore(first.version, payloads)
            case topic_permissions.SECTION:
                self.topic_permissions.restore(first.version, payloads)
            case outcomes.SECTION:
                self.outcomes.restore(first.version, payloads)
            case producers.SECTION:
                self.producers.restore(first.version, payloads)
            case _ if name in groups.OWN_SECTIONS:
                self.groups.restore(name, first.version, payloads)
            case _ if name in leases.OWN_SECTIONS:
                self.leases.restore(name, first.version, payloads)
            case _ if name in deliveries.OWN_SECTIONS:
                self.deliveries.restore(name, first.version, payloads)
            case _ if name in retries.OWN_SECTIONS:
                self.retries.restore(name, first.version, payloads)
            case _ if name in attempts.OWN_SECTIONS:
                self.attempts.restore(name, first.version, payloads)
            case _ if name in queue_numbers.OWN_SECTIONS:
                self.queue_numbers.restore(name, first.version, payloads)
            case _ if name == SECTION:
                if not earliest_rules <= first.version <= APPLYING:
                    raise SnapshotAppliedOtherwise(name, first.version, APPLYING)
                self.applied_index = first.applied_index
                own = PayloadReader(SECTION, b"".join(payloads))
                self.append_time_ms, self.messages_applied = own.take(_OWN)
            case _:
                raise SnapshotUnknown(name, first.version)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """What holds between any two entries, within each owner and between those that no command
        changes together.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        self.level.check_invariants()
        self.log_start.check_invariants(self.applied_index)
        self.outcomes.check_invariants(self.applied_index)
        self.lived_time.check_invariants(self.append_time_ms)
        self.topics.check_invariants()
        if any(topic.incarnation > self.applied_index for topic in self.topics.values()):
            raise InvariantViolation("a topic was created by an entry that isn't applied")
        held = sum(sum(topic.next_offsets) for topic in self.topics.values())
        if held > self.messages_applied:
            raise InvariantViolation(
                f"queues hold {held} messages, {self.messages_applied} were applied"
            )
        ends = {topic.incarnation: topic.next_offsets for topic in self.topics.values()}
        self.topic_retention.check_invariants(ends)
        self.queue_numbers.check_invariants(ends, self.applied_index)
        self.topic_permissions.check_invariants(set(ends))
        self.offsets.check_invariants()
        self.producers.check_invariants()
        for name in self.offsets.topics():
            for group, committed in self.offsets.groups(name).items():
                for queue_id, offset in committed.items():
                    self._check_within(f"an offset of {group}", name, queue_id, offset)
        self._check_producers()
        self._check_retries()
        self.groups.check_invariants(self.applied_index, self.lived_time.lived_ms)
        self.leases.check_invariants(self.applied_index)
        self.deliveries.check_invariants(self.applied_index)
        self.attempts.check_invariants(self.applied_index)

    def _check_retries(self) -> None:
        """What has moved on, and what was sent again, is in topics that are there."""
        self.retries.check_invariants()
        names = {topic.incarnation: topic.name for topic in self.topics.values()}
        for queue, end in self.retries.places().items():
            name = names.get(queue.incarnation, "")
            self._check_within("a retry", name, queue.queue_id, end)

    def _check_producers(self) -> None:
        """Whatever they stored is in a topic that is there, and before now."""
        names = {topic.incarnation: topic.name for topic in self.topics.values()}
        for producer in self.producers:
            who = producer.producer_id.hex()
            epoch = int.from_bytes(producer.producer_id[:EPOCH_SIZE], "big")
            if epoch > self.applied_index or producer.used_ms > self.lived_time.lived_ms:
                raise InvariantViolation(f"{who} was registered or used after the last entry")
            for (incarnation, queue_id), recent in producer.queues.items():
                if incarnation not in names:
                    raise InvariantViolation(f"{who} stored in topic {incarnation}, which is gone")
                newest = batches_of(recent)[-1]
                end = newest.base_queue_offset + newest.record_count
                self._check_within(f"a batch of {who}", names[incarnation], queue_id, end)
                if newest.store_time_ms > self.append_time_ms:
                    raise InvariantViolation(f"{who} stored a batch after the last entry")

    def _check_within(self, what: str, name: str, queue_id: int, end: int) -> None:
        """The queue exists and reaches `end`."""
        topic = self.topics.get(name)
        if topic is None or queue_id >= len(topic.next_offsets):
            raise InvariantViolation(f"{what} is in {name}/{queue_id}, which doesn't exist")
        if end > topic.next_offsets[queue_id]:
            raise InvariantViolation(
                f"{what} is at {end} of {name}/{queue_id}, which ends at "
                f"{topic.next_offsets[queue_id]}"
            )


def _payloads(first: Chunk, others: Iterator[Chunk]) -> Iterator[bytes]:
    """The payloads of one section, all of one version."""
    yield first.payload
    for chunk in others:
        if chunk.version != first.version:
            raise SnapshotDamaged(
                f"section {first.section}", f"version {first.version}", chunk.version
            )
        yield chunk.payload
