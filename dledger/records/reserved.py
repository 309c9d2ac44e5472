"""Names that belong to the brokers: topics in which failed messages wait, come again, or end.

Nobody but a leader makes them or writes to them; anybody may read. The names and the delays are
RocketMQ's. `LEVEL_DELAYS_MS` is a constant of the format: when a copy is due follows from it.
"""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
_PREFIXES: Final = (SCHEDULE_TOPIC, RETRY_PREFIX, DEAD_LETTER_PREFIX)

_S: Final = 1_000
_MINUTE: Final = 60 * _S
# 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h; level n is at n - 1.
LEVEL_DELAYS_MS: Final = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S),
    *(minutes * _MINUTE for minutes in (*range(1, 11), 20, 30, 60, 120)),
)
LEVELS: Final = len(LEVEL_DELAYS_MS)
FIRST_RETRY_LEVEL: Final = 3  # 10 s
DEFAULT_ATTEMPTS: Final = 16
MOST_ATTEMPTS: Final = 1_000  # that a group may wish for
# What kills the process that has it is counted by nobody but the log (ADR 63): after so many
# holders that vanished the next one begins a message only when all before it is committed.
CAREFUL_AFTER: Final = 3
CAREFUL_IN_ORDER: Final = 1
# So the one after that has had nothing else in hand: the message isn't tried again here.
GIVEN_UP_AFTER: Final = CAREFUL_AFTER + 1
GIVEN_UP_IN_ORDER: Final = CAREFUL_IN_ORDER + 1

# Properties of copies. RocketMQ's names where it has one.
ORIGIN_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_QUEUE: Final = "ORIGIN_QUEUE_ID"
ORIGIN_OFFSET: Final = "ORIGIN_QUEUE_OFFSET"
ORIGIN_TIME: Final = "ORIGIN_STORE_TIME"
FAILED_TIME: Final = "FAILED_TIME"  # the last one, as of the leader's clock
REAL_TOPIC: Final = "REAL_TOPIC"  # where a copy that waits goes to
DELAY_LEVEL: Final = "DELAY"
DEAD_REASON: Final = "DLQ_REASON"
REJECTED: Final = "rejected"  # reasons: nobody can work on it
EXHAUSTED: Final = "attempts"  # it had all of them
OWN_PROPERTIES: Final = frozenset(
    {
        *(ORIGIN_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_QUEUE, ORIGIN_OFFSET, ORIGIN_TIME),
        *(FAILED_TIME, REAL_TOPIC, DELAY_LEVEL, DEAD_REASON),
    }
)


def retry_topic(group: str) -> str:
    """Where the group's failed messages come again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where the group's messages end that it couldn't work on."""
    return DEAD_LETTER_PREFIX + group


def group_of(topic: str) -> str:
    """The consumer group that the topic is there for; empty: for none, or for all."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return ""


def is_reserved(topic: str) -> bool:
    """Whether the topic is the brokers' own."""
    return topic.startswith(_PREFIXES)


def retry_level(failures: int) -> int:
    """The level at which a message waits that has failed so often, this time included."""
    return min(FIRST_RETRY_LEVEL + failures - 1, LEVELS)
