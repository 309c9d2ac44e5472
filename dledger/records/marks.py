"""Names of marks: consumer groups that say how far a sink's topic of intents is over.

A sink in Spark keeps them (ADR 33), and brokers don't forget them while that topic is there: both
know them by their names alone. A mark that is forgotten looks like one that was never set.
"""

from __future__ import annotations

from typing import Final

PROGRESS_SUFFIX: Final = "-progress"
# Batches that are numbered by days, hours or seconds don't meet in one with the last.
MARKS: Final = 11
_NUMBERS: Final = frozenset(map(str, range(MARKS)))


def progress_topic(producer: str) -> str:
    """Where the producer's intents are."""
    return producer + PROGRESS_SUFFIX


def mark_of(topic: str, batch: int) -> str:
    """The group that has committed how far intents in the topic are of `batch` or earlier ones."""
    return f"{topic}-{batch % MARKS}"


def marked_topic(group: str) -> str:
    """The topic that the group is a mark of, by its name; empty: it is none."""
    topic, _, number = group.rpartition("-")
    if len(topic) <= len(PROGRESS_SUFFIX) or not topic.endswith(PROGRESS_SUFFIX):
        return ""
    return topic if number in _NUMBERS else ""
