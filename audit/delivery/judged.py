"""What a delivery audit's tasks are told, and what judging queues gives: counts, and so many
anomalies in full that they can travel.

Values, and the one step that every way of judging shares (`Judged.judge`); who brings a queue's log
and story together is `audit.delivery.check`'s matter, or `audit.delivery.distributed`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import xxhash

from audit.delivery.history import QueueKey, QueueStory
from audit.delivery.judge import (
    Anomaly,
    LoggedQueue,
    compared_messages,
    expired_messages,
    judge_queue,
)
from dledger.history import Outcome
from dledger.reading.decode import NOTHING_LEFT_OUT, LeftOut, LogRange

MAX_ANOMALIES: Final = 1_000  # A task tells so many in full; all are counted.


@dataclass(frozen=True, slots=True)
class QueueStarts:
    """The first offset of each queue that a log can hold a message of. `offsets`: of those that
    begin behind 0; `unknown`: why nobody knows them, empty where they are known."""

    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    unknown: str = ""

    def of(self, queue: QueueKey) -> int | None:
        """The queue's; None if nobody knows it."""
        return None if self.unknown else self.offsets.get(queue, 0)


@dataclass(frozen=True, slots=True)
class DeliveryTask:
    """Judge the queues of share `share` of `shares`. `ends`: see `audit.delivery.history`;
    `ended`: topics that may have been deleted, by the log, between the histories' `ends` and the
    log's end."""

    histories: tuple[str, ...]
    parts: tuple[LogRange, ...]
    starts: QueueStarts
    tail_is_known: bool
    share: int
    shares: int
    weight: int
    host: str | None = None
    left_out: LeftOut = NOTHING_LEFT_OUT
    ends: tuple[int, ...] = ()
    ended: frozenset[str] = frozenset()

    def log_of(self, queue: QueueKey) -> LoggedQueue:
        """The queue's log, of which no message has been read."""
        return LoggedQueue(self.starts.of(queue), self.tail_is_known)

    def keeps(self, queue: QueueKey) -> bool:
        """Whether the queue is in the share; the same in every process."""
        name = f"{queue[0]}/{queue[1]}".encode()
        return xxhash.xxh3_64_intdigest(name) % self.shares == self.share


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Messages of one queue: handed over by producers, by what they learned; in the log; got by
    consumers, each time counted; acknowledged and taken away by retention since (`expired`);
    acknowledged or got by consumers, and held against the log (`compared`)."""

    topic: str
    queue_id: int
    acknowledged: int
    unknown: int
    refused: int
    stored: int
    delivered: int
    expired: int
    compared: int
    anomalies: dict[str, int]


@dataclass(slots=True)
class Judged:
    """What a task found. `filtered`: polls that wanted some of the messages only. `mistake` and
    `damage` say why it couldn't: values, because an error that is raised on a cluster comes back as
    the cluster's."""

    queues: list[QueueCount] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    deleted: tuple[str, ...] = ()
    operations: int = 0
    filtered: int = 0
    mistake: str = ""
    damage: str = ""

    def complain(self, mistake: str) -> None:
        """What is wrong with the histories; of several, the same one whoever found which."""
        self.mistake = min(self.mistake or mistake, mistake)

    def judge(self, key: QueueKey, log: LoggedQueue, story: QueueStory) -> None:
        """The queue's counts and anomalies are here too."""
        counts: Counter[str] = Counter()
        for anomaly in judge_queue(key, log, story):
            counts[anomaly.kind.value] += 1
            if len(self.anomalies) < MAX_ANOMALIES:
                self.anomalies.append(anomaly)
        self.filtered += sum(poll.is_filtered for poll in story.polls)
        outcomes: Counter[Outcome] = Counter()
        for sent in story.sends:
            outcomes[sent.outcome] += len(sent.values)
        self.queues.append(
            QueueCount(
                *key,
                acknowledged=outcomes[Outcome.OK],
                unknown=outcomes[Outcome.UNKNOWN],
                refused=outcomes[Outcome.FAIL],
                stored=len(log.values),
                delivered=sum(len(poll.messages) for poll in story.polls),
                expired=expired_messages(log, story),
                compared=compared_messages(log, story),
                anomalies=dict(counts),
            )
        )


def payload_of(body: bytes | None) -> bytes:
    """The body, or what no value is made of, if it can't be read: nobody has sent that."""
    return b"\xff" if body is None else body


def value_of(body: bytes) -> str:
    """The value of a message: its body without the blanks that fill it up to a wanted size."""
    return body.rstrip(b" ").decode("utf-8", errors="replace")
