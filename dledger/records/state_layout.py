"""The bytes of a snapshot of state that others than nodes read: its chunks, which level is in use,
and where queues stand.

As `dledger.records.layout` describes the files. What else is in a snapshot is the broker's alone
(`broker.state.layout`). Who reads a log that begins later than with entry 1 asks the state that it
begins with which level was in use there (docs/adr/0023-levels.md), and an audit where its queues
begin (docs/adr/0043-a-log-that-begins-later.md).
"""

from __future__ import annotations

from typing import Final

from dledger.records.layout import Field, Layout

SNAPSHOT_FOLDER: Final = "snapshot"  # of a data directory: its snapshots are there
SNAPSHOT_COPY: Final = ".copy"  # behind the name of one that is kept twice

SNAPSHOT_CHUNK: Final = Layout(
    "Chunk of a snapshot",
    24,
    (
        Field(0, "I", "magic", "magic", value=0xDAA320F1),
        Field(4, "B", "version", "version", value=1),
        Field(5, "B", "name_length", "length n of the section's name"),
        Field(6, "H", "section_version", "version of the section"),
        Field(8, "Q", "applied_index", "index of the last entry applied, the same in all chunks"),
        Field(16, "I", "number", "number of the chunk, from 0 without gaps"),
        Field(20, "I", "payload_size", "size s of the payload"),
        Field(24, "", "section", "name of the section, ASCII", length="n"),
        Field(24, "", "payload", "payload: whole records", length="s", behind="n"),
        Field(24, "I", "crc", "CRC32C of all bytes before", behind="n + s"),
    ),
)

SNAPSHOT_END: Final = Layout(
    "Section end", 4, (Field(0, "I", "count", "count of the chunks before this one"),)
)

LEVEL: Final = "level"  # The section's name.
LEVEL_VERSION: Final = 1

LEVEL_SECTION: Final = Layout(
    "Section level", 4, (Field(0, "I", "level", "level of formats and commands in use"),)
)

TOPICS: Final = "topics"  # The section's name.
TOPICS_VERSION: Final = 1

TOPICS_SECTION: Final = Layout(
    "Section topics",
    2,
    (
        Field(0, "H", "name_length", "length t of the topic's name"),
        Field(2, "", "name", "the topic's name, UTF-8", length="t"),
        Field(2, "Q", "incarnation", "index of the entry that created it", behind="t"),
        Field(10, "q", "created_time_ms", "created, ms", behind="t"),
        Field(18, "I", "queue_count", "queues of the topic", behind="t"),
        Field(22, "I", "first_queue", "the first queue in this record", behind="t"),
        Field(26, "I", "count", "count c of queues in this record, at most 1,024", behind="t"),
        Field(30, "", "queues", "queues of a topic", length="12c", behind="t"),
    ),
)

TOPIC_QUEUE: Final = Layout(
    "Queue of a topic",
    12,
    (
        Field(0, "Q", "next_offset", "next queue offset"),
        Field(8, "I", "units_crc", "CRC32C of the queue's units, from the first on"),
    ),
)
