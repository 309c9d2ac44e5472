"""The bytes of a snapshot: its chunks, and the records that each owner of state writes.

As `dledger.records.layout` describes the files: one table for each, from which whoever packs or
reads derives its structs, shown in `docs/formats.md` and compared with it by a test. A section's
records are in its payloads back to back, each whole in one chunk. A topic, or a pair of group and
topic, of more than 1,024 queues takes several records. What audits read, too, of the state that a
log begins with is in `dledger.records.state_layout`.
"""

from __future__ import annotations

from typing import Final

from dledger.records.layout import Field, Layout
from dledger.records.state_layout import (
    LEVEL_SECTION,
    SNAPSHOT_CHUNK,
    SNAPSHOT_END,
    TOPIC_QUEUE,
    TOPICS_SECTION,
)

# Which state a log gives: raised whenever applying any entry means something else than it did, as
# the section's version. A state that was made otherwise isn't restored, and the log is applied.
# Where a log begins later, the state that it begins with is all there is: that is taken from
# EARLIEST_BASE on, as what has changed since goes by the level in use.
APPLYING: Final = 1
EARLIEST_BASE: Final = 1

MACHINE_SECTION: Final = Layout(
    "Section machine",
    16,
    (
        Field(0, "q", "append_time_ms", "append time of the last entry, ms"),
        Field(8, "Q", "messages_applied", "messages applied"),
    ),
)

LOG_START_SECTION: Final = Layout(
    "Section log-start",
    8,
    (Field(0, "Q", "first_index", "index of the first entry that is kept; no section: 1"),),
)

TOPIC_RETENTION_SECTION: Final = Layout(
    "Section topic-retention",
    28,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic; ascending"),
        Field(8, "Q", "retention_ms", "how long its messages are wanted, ms; 0: the group's"),
        Field(16, "I", "queue_count", "queues of the topic; 0: none begins later"),
        Field(20, "I", "first_queue", "the first queue in this record"),
        Field(24, "I", "count", "count c of queues in this record, at most 1,024"),
        Field(28, "", "starts", "starts of queues", length="8c"),
    ),
)

QUEUE_START: Final = Layout(
    "Start of a queue", 8, (Field(0, "Q", "offset", "the first offset that may be read"),)
)

QUEUE_NUMBERS_SECTION: Final = Layout(
    "Section queue-numbers",
    16,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic; ascending"),
        Field(8, "I", "read_queues", "queues that consumers are told of"),
        Field(12, "I", "write_queues", "queues that take messages, at most as many"),
    ),
)

QUEUE_CHANGES_SECTION: Final = Layout(
    "Section queue-changes",
    28,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic; ascending"),
        Field(8, "Q", "index", "index of the entry that changed the topic; ascending"),
        Field(16, "I", "write_queues", "how many queues took messages before"),
        Field(20, "I", "first_queue", "the first queue in this record"),
        Field(24, "I", "count", "count c of queues in this record, at most 1,024"),
        Field(28, "", "ends", "where queues ended", length="8c"),
    ),
)

QUEUE_END: Final = Layout(
    "End of a queue", 8, (Field(0, "Q", "offset", "one past the last message at the change"),)
)

TOPIC_PERMISSIONS_SECTION: Final = Layout(
    "Section topic-permissions",
    9,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic; ascending"),
        Field(8, "B", "permission", "4: read only; 2: written only; no record: both"),
    ),
)

OUTCOMES_SECTION: Final = Layout(
    "Section unit-outcomes",
    12,
    (
        Field(0, "Q", "through", "index of the last compound entry with records, unsettled"),
        Field(8, "I", "count", "count c of refused units in this record, at most 1,024"),
        Field(12, "", "refused", "refused units", length="12c"),
    ),
)

REFUSED_UNIT: Final = Layout(
    "Refused unit",
    12,
    (
        Field(0, "Q", "index", "index of its entry; ascending"),
        Field(8, "I", "unit", "its number in the entry, from 0; ascending"),
    ),
)

LIVED_TIME_SECTION: Final = Layout(
    "Section lived-time", 8, (Field(0, "Q", "lived_ms", "lived time as of the last entry, ms"),)
)

OFFSETS_SECTION: Final = Layout(
    "Section offsets",
    2,
    (
        Field(0, "H", "topic_length", "length t of the topic's name"),
        Field(2, "", "topic", "the topic's name, UTF-8", length="t"),
        Field(2, "H", "group_length", "length g of the group's name", behind="t"),
        Field(4, "", "group", "the group's name, UTF-8", length="g", behind="t"),
        Field(4, "I", "before", "queues of the pair in records before", behind="t + g"),
        Field(8, "I", "count", "count c of queues in this record, at most 1,024", behind="t + g"),
        Field(12, "", "offsets", "committed offsets", length="12c", behind="t + g"),
    ),
)

COMMITTED_OFFSET: Final = Layout(
    "Committed offset",
    12,
    (Field(0, "I", "queue_id", "queue id; ascending"), Field(4, "Q", "offset", "offset")),
)

PRODUCERS_SECTION: Final = Layout(
    "Section producers",
    41,
    (
        Field(0, "16s", "producer_id", "producer id"),
        Field(16, "16s", "origin", "its first id under its name"),
        Field(32, "q", "used_ms", "used last, in lived time, ms"),
        Field(40, "B", "superseded_count", "count k of its former ids that are fenced, at most 4"),
        Field(41, "", "superseded", "those ids, 16 bytes each, oldest first", length="16k"),
        Field(41, "H", "name_length", "length n of its name", behind="16k"),
        Field(43, "", "name", "its name, UTF-8", length="n", behind="16k"),
        Field(43, "I", "first_queue", "queues of the producer in records before", behind="16k + n"),
        Field(47, "I", "count", "count of queues in this record, at most 64", behind="16k + n"),
        Field(51, "", "queues", "queues of a producer", length="…", behind="16k + n"),
    ),
)

PRODUCER_QUEUE: Final = Layout(
    "Queue of a producer",
    13,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic"),
        Field(8, "I", "queue_id", "queue id"),
        Field(12, "B", "count", "count c of stored batches, 1 to 5, oldest first"),
        Field(13, "", "batches", "stored batches", length="36c"),
    ),
)

STORED_BATCH: Final = Layout(
    "Stored batch",
    36,
    (
        Field(0, "Q", "base_sequence", "base sequence"),
        Field(8, "I", "record_count", "messages"),
        Field(12, "Q", "base_queue_offset", "queue offset of the first message"),
        Field(20, "Q", "base_physical_offset", "physical offset of the first record"),
        Field(28, "q", "store_time_ms", "append time of its entry, ms"),
    ),
)

GROUPS_SECTION: Final = Layout(
    "Section groups",
    2,
    (
        Field(0, "H", "name_length", "length n of the group's name"),
        Field(2, "", "name", "the group's name, UTF-8", length="n"),
        Field(2, "Q", "created", "index of its first join; 0: it only commits", behind="n"),
        Field(10, "q", "used_ms", "used last, in lived time, ms", behind="n"),
        Field(18, "I", "version", "version of the settings that hold", behind="n"),
    ),
)

GROUP_SETTINGS_SECTION: Final = Layout(
    "Section group-settings",
    2,
    (
        Field(0, "H", "name_length", "length n of the group's name"),
        Field(2, "", "name", "the group's name, UTF-8", length="n"),
        Field(2, "I", "version", "version", behind="n"),
        Field(6, "B", "style", "bits: 1 broadcast, 2 orderly", behind="n"),
        Field(7, "B", "start", "start: 0 first, 1 last, 2 by time", behind="n"),
        Field(8, "q", "start_time_ms", "that time, ms", behind="n"),
        Field(16, "H", "strategy_length", "length s of the strategy's name", behind="n"),
        Field(18, "", "strategy", "the strategy's name, UTF-8", length="s", behind="n"),
        Field(18, "H", "topic_count", "count of topics, at most 64", behind="n + s"),
        Field(20, "", "topics", "topics: 2 bytes of length, and UTF-8", length="…", behind="n + s"),
    ),
)

GROUP_FILTERS_SECTION: Final = Layout(
    "Section group-filters",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "I", "version", "version of the settings that say this of tags", behind="g"),
        Field(6, "H", "topic_count", "count of topics, at most 64", behind="g"),
        Field(8, "", "topics", "filtered topics", length="…", behind="g"),
    ),
)

FILTERED_TOPIC: Final = Layout(
    "Filtered topic",
    2,
    (
        Field(0, "H", "topic_length", "length t of the topic's name; ascending"),
        Field(2, "", "topic", "the topic's name, UTF-8", length="t"),
        Field(2, "H", "tag_count", "count of tags, 1 to 1,024", behind="t"),
        Field(
            *(4, "", "tags", "tags, ascending: 2 bytes of length, and UTF-8"),
            length="…",
            behind="t",
        ),
    ),
)

SESSIONS_SECTION: Final = Layout(
    "Section sessions",
    22,
    (
        Field(0, "Q", "session", "index of the join; ascending"),
        Field(8, "8s", "token", "token"),
        Field(16, "I", "version", "version of the settings that it joined with"),
        Field(20, "H", "group_length", "length g of the group's name"),
        Field(22, "", "group", "the group's name, UTF-8", length="g"),
        Field(22, "H", "member_length", "length m of the member's name", behind="g"),
        Field(24, "", "member", "the member's name, UTF-8", length="m", behind="g"),
        Field(24, "H", "choice_count", "topics that it chooses queues of", behind="g + m"),
        Field(26, "", "choices", "chosen queues of a topic", length="…", behind="g + m"),
    ),
)

CHOSEN_QUEUES: Final = Layout(
    "Chosen queues of a topic",
    2,
    (
        Field(0, "H", "topic_length", "length t of the topic's name"),
        Field(2, "", "topic", "the topic's name, UTF-8", length="t"),
        Field(2, "H", "queue_count", "count c of queues", behind="t"),
        Field(4, "", "queues", "chosen queues", length="4c", behind="t"),
    ),
)

CHOSEN_QUEUE: Final = Layout("Chosen queue", 4, (Field(0, "I", "queue_id", "queue id; ascending"),))

GROUP_STARTS_SECTION: Final = Layout(
    "Section group-starts",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "Q", "incarnation", "index of the entry that created the topic", behind="g"),
        Field(10, "I", "started", "queues of the topic in which the group has a start", behind="g"),
    ),
)

LEASES_SECTION: Final = Layout(
    "Section leases",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "Q", "incarnation", "index of the entry that created the topic", behind="g"),
        Field(10, "I", "queue_id", "queue id", behind="g"),
        Field(14, "Q", "session", "who holds it; 0: nobody", behind="g"),
        Field(22, "Q", "epoch", "index of the grant; 0: nobody holds it", behind="g"),
        Field(30, "H", "count", "count c of finished ranges, at most 128", behind="g"),
        Field(32, "", "finished", "finished ranges", length="16c", behind="g"),
    ),
)

FINISHED_RANGE: Final = Layout(
    "Finished range",
    16,
    (
        Field(0, "Q", "first", "the first offset, above all before"),
        Field(8, "Q", "end", "one past the last"),
    ),
)

DELIVERIES_SECTION: Final = Layout(
    "Section deliveries",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "Q", "incarnation", "index of the entry that created the topic", behind="g"),
        Field(10, "B", "style", "bits: 1 FIFO", behind="g"),
        Field(11, "I", "queue_id", "queue id; from 0 without gaps", behind="g"),
        Field(15, "Q", "next", "never handed out from this offset on", behind="g"),
    ),
)

HANDOUTS_SECTION: Final = Layout(
    "Section handouts",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "Q", "incarnation", "index of the entry that created the topic", behind="g"),
        Field(10, "I", "queue_id", "queue id", behind="g"),
        Field(14, "B", "count", "count c of handouts in this record, 1 to 64", behind="g"),
        Field(15, "", "handouts", "handouts", length="42c", behind="g"),
    ),
)

HANDOUT: Final = Layout(
    "Handout",
    42,
    (
        Field(0, "Q", "index", "index of the entry that gave or returned it; ascending"),
        Field(8, "Q", "base", "its first unfinished offset"),
        Field(16, "Q", "mask", "bit n: offset base + n isn't finished"),
        Field(24, "Q", "hidden_until_ms", "nobody else gets it before this append time, ms"),
        Field(32, "8s", "attempt_id", "attempt id; zeros: returned"),
        Field(40, "H", "attempt", "how often it was handed out; 65,535: that often or more"),
    ),
)

DELAYED_SECTION: Final = Layout(
    "Section delayed",
    20,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the schedule topic"),
        Field(8, "I", "queue_id", "queue id: level - 1; ascending"),
        Field(12, "Q", "moved_to", "the first offset that waits"),
    ),
)

RESENT_SECTION: Final = Layout(
    "Section resent",
    14,
    (
        Field(0, "Q", "incarnation", "index of the entry that created the topic"),
        Field(8, "I", "queue_id", "queue id"),
        Field(12, "H", "count", "count c of ranges in this record, at most 1,024"),
        Field(14, "", "resent", "ranges of dead letters that were sent again", length="16c"),
    ),
)

FAILURES_SECTION: Final = Layout(
    "Section failures",
    2,
    (
        Field(0, "H", "group_length", "length g of the group's name"),
        Field(2, "", "group", "the group's name, UTF-8", length="g"),
        Field(2, "Q", "incarnation", "index of the entry that created the topic", behind="g"),
        Field(10, "I", "queue_id", "queue id", behind="g"),
        Field(14, "Q", "offset", "the message at the group's frontier", behind="g"),
        Field(22, "H", "failures", "how often it has failed, 1 at least", behind="g"),
        Field(
            24, "Q", "begun", "epoch of the lease that has nothing else in hand, or 0", behind="g"
        ),
    ),
)

GROUP_ATTEMPTS_SECTION: Final = Layout(
    "Section group-attempts",
    2,
    (
        Field(0, "H", "name_length", "length n of the group's name"),
        Field(2, "", "name", "the group's name, UTF-8", length="n"),
        Field(2, "I", "version", "version of its settings", behind="n"),
        Field(6, "I", "max_attempts", "attempts at a message; no record: 16", behind="n"),
    ),
)

STATE_LAYOUTS: Final = (
    SNAPSHOT_CHUNK,
    SNAPSHOT_END,
    MACHINE_SECTION,
    LEVEL_SECTION,
    LOG_START_SECTION,
    TOPIC_RETENTION_SECTION,
    QUEUE_START,
    QUEUE_NUMBERS_SECTION,
    QUEUE_CHANGES_SECTION,
    QUEUE_END,
    TOPIC_PERMISSIONS_SECTION,
    OUTCOMES_SECTION,
    REFUSED_UNIT,
    LIVED_TIME_SECTION,
    TOPICS_SECTION,
    TOPIC_QUEUE,
    OFFSETS_SECTION,
    COMMITTED_OFFSET,
    PRODUCERS_SECTION,
    PRODUCER_QUEUE,
    STORED_BATCH,
    GROUPS_SECTION,
    GROUP_SETTINGS_SECTION,
    GROUP_FILTERS_SECTION,
    FILTERED_TOPIC,
    SESSIONS_SECTION,
    CHOSEN_QUEUES,
    CHOSEN_QUEUE,
    GROUP_STARTS_SECTION,
    LEASES_SECTION,
    FINISHED_RANGE,
    DELIVERIES_SECTION,
    HANDOUTS_SECTION,
    HANDOUT,
    DELAYED_SECTION,
    RESENT_SECTION,
    GROUP_ATTEMPTS_SECTION,
    FAILURES_SECTION,
)
