"""Topics as a stream: how it goes on from batch to batch, and what it makes of topics that change.

A stream's offset is, by topic, its incarnation, when it was made (ms since the epoch: two broker
groups may have topics of one name and incarnation) and the next offset of each queue:

    {"orders": {"incarnation": 17, "created": 1790000000000, "offsets": [23, 40]}}

What becomes of it when the topics change, from one batch to the next:

    topic                            failOnDataLoss       otherwise
    as before                        up to the new end
    new in `topics`                  from its first message
    no longer in `topics`            left out; it begins anew if it is ever named again
    deleted                          DataLost             waits where it is
    deleted and made anew            DataLost             from the new one's first message
    another broker group's           DataLost             the same
    messages kept no longer          DataLost             from the first that is kept
    ends before what was read        DataLost             from that end on
    a queue more                     from offset 0, or where it ended when it went, if it was there
    a queue less, read to its end    nothing of it until it comes back
    a queue less, not read           DataLost             the same
    came and went in between         DataLost             the same

A queue that went is never made anew: it may come back, and begins where it ended. So the stream
keeps its offset, and those of queues that were gone already when it began. Where a topic comes to
the stream later, `begins` says so of queues that were gone by then, as all others begin at 0:

    {"orders": {"incarnation": …, "created": …, "offsets": [23, 40, 7], "begins": {"2": 7}}}

Ranges follow from two offsets alone, so a batch that is repeated is the same batch. What is planned
is looked up at whoever leads; a connection lasts as long as the query. What a checkpoint says is
judged before it is used: it may be another source's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dledger.spark.brokers import Brokers, Topic
from dledger.spark.edges import Edge, resolved
from dledger.spark.errors import BadOption, DataLost
from dledger.spark.topics import QueueRange, Reading, read_range

if TYPE_CHECKING:
    import pyarrow

Offsets = dict[str, Any]  # as the picture above has it


class TopicsStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics.

    Args:
        starting: where it begins if it has no checkpoint.
        max_rows: of a batch, over all queues, where the trigger sets no other; 0: all there is.
    """

    def __init__(self, reading: Reading, starting: Edge, max_rows: int = 0) -> None:
        self._reading = reading
        self._starting = starting
        self._max_rows = max_rows
        self._target: Offsets | None = None
        self._brokers: Brokers | None = None

    def __getstate__(self) -> dict[str, Any]:
        """It travels to executors with its `read`; a connection does not."""
        return self.__dict__ | {"_brokers": None}

    def initialOffset(self) -> Offsets:
        asked = self._connection()
        found: Offsets = {}
        for name in self._reading.topics:
            told = asked.with_gone(name)
            if told is None:
                raise DataLost(f"there is no topic {name!r} (topics)")
            topic, gone = told
            strict = self._reading.fails_on_loss
            offsets = resolved(self._starting, topic, asked.offset_by_time, fails_on_loss=strict)
            found[name] = _told(topic, [*offsets, *gone])
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is stored from now on is another run's."""
        self._target = self._ends()

    def reportLatestOffset(self) -> Offsets:
        return self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """As far as `limit` lets a batch go.

        Raises:
            DataLost: what comes next is there no longer.
        """
        check_offsets(start)
        ends = self._ends()
        if self._reading.fails_on_loss:
            for name in self._reading.topics:
                check_there(start, ends, name)
        if self._target is not None:
            ends = earlier(ends, self._target)
        known = {name: continued(start, ends, name) for name in self._reading.topics}
        if not isinstance(limit, ReadMaxRows):
            return known
        return limited(start, known, limit.max_rows)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The ranges between two offsets; nothing is looked up, so it is always the same.

        Raises:
            BadOption: these are another source's offsets.
        """
        check_offsets(start)
        check_offsets(end)
        return [
            InputPartition(part)
            for name in sorted(end)
            for whole in ranges_between(start, end, name)
            for part in whole.cut(self._reading.max_range)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return read_range(self._reading, partition.value)

    def commit(self, end: Offsets) -> None:
        """Nothing is kept here: the offset is the checkpoint's."""

    def stop(self) -> None:
        """The connection is closed."""
        brokers, self._brokers = self._brokers, None
        if brokers is not None:
            brokers.close()

    def _connection(self) -> Brokers:
        """One for the query: a new one would look for the leader before each batch."""
        if self._brokers is None:
            self._brokers = Brokers(self._reading.access).__enter__()
        return self._brokers

    def _ends(self) -> Offsets:
        """Of the topics that there are."""
        asked = self._connection()
        found = [asked.with_gone(name) for name in self._reading.topics]
        return {told[0].name: _ends_told(*told) for told in found if told is not None}


def _told(topic: Topic, offsets: list[int]) -> dict[str, Any]:
    """A topic's part of an offset."""
    return {
        "incarnation": topic.incarnation,
        "created": topic.created_ms,
        "offsets": offsets,
    }


def _ends_told(topic: Topic, gone: Sequence[int]) -> dict[str, Any]:
    """Where all queues end that ever were; those that nobody reads any more begin there, too."""
    read = len(topic.bounds)
    told = _told(topic, [*(high for _, high in topic.bounds), *gone])
    begins = {str(queue_id): end for queue_id, end in enumerate(gone, read)}
    return told | {"begins": begins} if gone else told


def check_offsets(offsets: Offsets) -> None:
    """This source has made them.

    Raises:
        BadOption: another one has, or somebody's hand.
    """
    for name, each in offsets.items():
        if (
            not isinstance(each, dict)
            or set(each) - {"begins"} != {"incarnation", "created", "offsets"}
            or not isinstance(each["offsets"], list)
            or not isinstance(begins := each.get("begins", {}), dict)
            or not all(map(_is_number, (each["incarnation"], each["created"], *each["offsets"])))
            or not all(map(_is_number, begins.values()))
        ):
            told = f"{{{name!r}: {each!r}}}"[:200]
            raise BadOption(f"checkpointLocation holds another source's offsets: {told}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def check_there(start: Offsets, ends: Offsets, name: str) -> None:
    """What comes next in the topic can be there, as far as is known before it is read.

    Raises:
        DataLost: it can't.
    """
    before, now = start.get(name), ends.get(name)
    if now is None:
        raise DataLost(f"there is no topic {name!r}, from which this stream reads")
    if before is None or not before["incarnation"]:
        return
    if before["incarnation"] != now["incarnation"]:
        raise DataLost(
            f"topic {name!r} was deleted and made anew: this stream reads incarnation "
            f"{before['incarnation']}, there is {now['incarnation']}"
        )
    if before["created"] != now["created"]:
        raise DataLost(
            f"topic {name!r} was made at {now['created']} ms, the one that this stream reads at "
            f"{before['created']} ms: the checkpoint is of another broker group"
        )
    gone = now.get("begins", {})
    for queue_id, (read, end) in enumerate(zip(before["offsets"], now["offsets"], strict=False)):
        if read < gone.get(str(queue_id), read):
            raise DataLost(
                f"queue {queue_id} of topic {name!r} went with messages {read} to {end}, before "
                "this stream had read them"
            )
        if end < read:
            raise DataLost(
                f"{name}/{queue_id} ends at {end}, and this stream has read up to {read}: the "
                "brokers have lost messages, and may have given their offsets to others"
            )
    _check_unseen(before, gone, name)


def _check_unseen(before: dict[str, Any], gone: dict[str, int], name: str) -> None:
    """No queue of the topic came and went since this stream looked last, with messages in it.

    Raises:
        DataLost: one did.
    """
    known, passed_over = len(before["offsets"]), before.get("begins", {})
    for queue_id, end in gone.items():
        first = passed_over.get(queue_id, 0)
        if int(queue_id) >= known and first < end:
            raise DataLost(
                f"queue {queue_id} of topic {name!r} came and went with messages {first} to {end} "
                "since this stream looked last (or, in a checkpoint of a release before, was read "
                "to there: those tell nothing of queues that went)"
            )


def is_same(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether both speak of one topic."""
    return before is not None and all(
        before[name] == now[name] for name in ("incarnation", "created")
    )


def earlier(ends: Offsets, target: Offsets) -> Offsets:
    """What there is, as far as there was when the run began."""
    found: Offsets = {}
    for name, now in ends.items():
        then = target.get(name)
        if then is not None and is_same(then, now):
            found[name] = now | {"offsets": [*map(min, now["offsets"], then["offsets"])]}
    return found


def continued(start: Offsets, ends: Offsets, name: str) -> dict[str, Any]:
    """Where the topic's reading may go to: its end, or nowhere if it is gone. The end may lie
    before what was read if the brokers have lost messages and the stream is to go on: what is
    stored from then on has offsets that were another message's, and is read."""
    before, now = start.get(name), ends.get(name)
    if now is None:
        return before or {"incarnation": 0, "created": 0, "offsets": []}
    known = 0 if before is None or not is_same(before, now) else len(before["offsets"])
    told = before.get("begins", {}) if before is not None and known else {}
    new = {at: each for at, each in now.get("begins", {}).items() if int(at) >= known}
    found = {each: now[each] for each in ("incarnation", "created", "offsets")}
    return found | {"begins": told | new} if told or new else found


def starts_of(start: Offsets, end: Offsets, name: str) -> list[int]:
    """Where the topic's reading begins, a number for each queue of `end`: where it was, which a
    queue that wasn't there before was at 0 unless `end` says otherwise. (Ends of releases before
    lack queues that went.)"""
    before, now = start.get(name), end[name]
    at = before["offsets"] if before is not None and is_same(before, now) else []
    begins, count = now.get("begins", {}), len(now["offsets"])
    return [*at[:count], *(begins.get(str(each), 0) for each in range(len(at), count))]


def ranges_between(start: Offsets, end: Offsets, name: str) -> Iterator[QueueRange]:
    for queue_id, (low, high) in enumerate(
        zip(starts_of(start, end, name), end[name]["offsets"], strict=True)
    ):
        if low < high:
            made = end[name]["incarnation"], end[name]["created"]
            yield QueueRange(name, *made, queue_id, low, high)


def limited(start: Offsets, end: Offsets, most: int) -> Offsets:
    """At most `most` messages further than `start`: each queue its share of what is there, and the
    rest, less than one a queue, to the first ones that lack it."""
    lags = {
        (name, queue_id): max(high - low, 0)
        for name in end
        for queue_id, (low, high) in enumerate(
            zip(starts_of(start, end, name), end[name]["offsets"], strict=True)
        )
    }
    total = sum(lags.values())
    if total <= most:
        return end
    shares = {place: lag * most // total for place, lag in lags.items()}
    left = most - sum(shares.values())
    for place in sorted(lags, key=lambda each: shares[each] - lags[each] * most / total):
        if left and shares[place] < lags[place]:
            shares[place] += 1
            left -= 1
    return {
        name: each
        | {
            "offsets": [
                min(low + shares[name, queue_id], high)
                for queue_id, (low, high) in enumerate(
                    zip(starts_of(start, end, name), each["offsets"], strict=True)
                )
            ]
        }
        for name, each in end.items()
    }
