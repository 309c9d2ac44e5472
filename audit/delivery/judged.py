"""What a delivery audit's tasks are told, and what judging queues gives: counts, and so many
anomalies in full that they can travel.

Values, and the one step that every way of judging shares (`Judged.judge`); who brings a queue's log
and story together is `audit.delivery.check`'s matter, or `audit.delivery.distributed`'s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import xxhash

from audit.delivery.history import QueueKey, QueueStory
from audit.delivery.judge import (
    Anomaly,
    Kind,
    LoggedQueue,
    compared_messages,
    expired_messages,
    judge_queue,
)
from audit.delivery.lives import compared_in_lives, judge_lives
from dledger.history import Outcome
from dledger.reading.decode import NOTHING_LEFT_OUT, LeftOut, LogRange

MAX_ANOMALIES: Final = 1_000  # A task tells so many of each kind in full; all are counted.


@dataclass(frozen=True, slots=True)
class QueueStarts:
    """The first offset of each queue that a log can hold a message of.

    Attributes:
        offsets: of those that begin behind 0, of topics that were there when the log began.
        made: by name, the entry that made the first topic of it that is known; None where the log
            begins with its first entry. What a topic of no such name was sent, or a former one of
            the name, nobody can tell.
        unknown: why nobody knows them, empty where they are known.
        ends: by name, the entries that ended topics whose name others were given later, ascending:
            so many topics had the name before the present one.
        has_voids: see `LoggedQueue`.
    """

    offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    made: Mapping[str, int] | None = None
    unknown: str = ""
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    has_voids: bool = False

    def of(self, queue: QueueKey, life: int = 0) -> int | None:
        """The queue's of the topic that had the name as number `life` in the log; None if nobody
        knows it. All but the first began in the log, with 0."""
        if self.unknown or not self.tells_of(queue[0]):
            return None
        return 0 if life else self.offsets.get(queue, 0)

    def tells_of(self, topic: str) -> bool:
        """Whether it is known what can be in the log of a topic of that name."""
        return self.made is None or topic in self.made

    def life_of(self, topic: str, index: int) -> int:
        """Which of the topics of that name a message of entry `index` is of, from 0."""
        return bisect_left(self.ends.get(topic, ()), index)

    def log_of(self, queue: QueueKey, *, tail_is_known: bool) -> LoggedQueue:
        """The queue's log, of which no message has been read. What a topic that has ended was sent
        lies before its end, and that has been read."""
        present = len(self.ends.get(queue[0], ()))
        former = (
            LoggedQueue(self.of(queue, life), has_voids=self.has_voids) for life in range(present)
        )
        return LoggedQueue(
            self.of(queue, present), tail_is_known, has_voids=self.has_voids, former=tuple(former)
        )


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
        return self.starts.log_of(queue, tail_is_known=self.tail_is_known)

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

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id


@dataclass(slots=True)
class Judged:
    """What a task found. `told`: how many of `anomalies` are of each kind: none that is undecided
    keeps a lost one from being told. `filtered`: polls that wanted some of the messages only.
    `mistake` and `damage` say why it couldn't: values, because an error that is raised on a cluster
    comes back as the cluster's."""

    queues: list[QueueCount] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    told: Counter[Kind] = field(default_factory=Counter)
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
        is_one = not log.former
        counts: Counter[str] = Counter()
        for anomaly in (judge_queue if is_one else judge_lives)(key, log, story):
            counts[anomaly.kind.value] += 1
            if self.told[anomaly.kind] < MAX_ANOMALIES:
                self.told[anomaly.kind] += 1
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
                stored=sum(len(life.values) for life in log.lives),
                delivered=sum(len(poll.messages) for poll in story.polls),
                expired=expired_messages(log, story) if is_one else 0,
                compared=(compared_messages if is_one else compared_in_lives)(log, story),
                anomalies=dict(counts),
            )
        )


def payload_of(body: bytes | None) -> bytes:
    """The body, or what no value is made of, if it can't be read: nobody has sent that."""
    return b"\xff" if body is None else body


def value_of(body: bytes) -> str:
    """The value of a message: its body without the blanks that fill it up to a wanted size."""
    return body.rstrip(b" ").decode("utf-8", errors="replace")
