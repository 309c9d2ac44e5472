"""The steps of the distributed delivery audit, without Spark: a shuffle here is a sort.

Whatever the cuts and the partitions, the job must give what one process gives that reads all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from audit.delivery.check import _whole_log, judge_share
from audit.delivery.distributed import (
    HistoryRange,
    MessageReader,
    QueueJudge,
    Row,
    Summary,
    _as_a_person_counts,
    history_ranges,
    join_events,
    key_of,
    read_events,
)
from audit.delivery.judged import DeliveryTask, Judged, QueueStarts
from audit.reading.survey import committed_log
from chaos.checkers.history import Delete, Poll, Send
from dledger.history import Outcome
from dledger.reading.decode import Wanted
from tests.audit.test_delivery import SENT, log_of, written
from tests.chaos.histories import Story

COLUMNS = ("topic", "queue_id", "queue_offset", "index", "body")


def shuffled(rows: list[Row], partitions: int) -> Iterator[list[Row]]:
    """The rows by their keys' partition, each sorted as Spark sorts: keys that are None first."""
    for number in range(partitions):
        here = [row for row in rows if crc32((row.key or "").encode()) % partitions == number]
        yield sorted(here, key=lambda row: (row.key or "", *row[1:4]))


def stepped(
    rows: list[Row], partitions: int, work: Callable[[Iterator[Row]], Iterator[Row]]
) -> list[Row]:
    return [row for part in shuffled(rows, partitions) for row in work(iter(part))]


def run_job(task: DeliveryTask, range_bytes: int, partitions: int) -> list[Judged]:
    """As `audit.delivery.distributed` orders the steps."""
    ranges = history_ranges(task.histories, range_bytes)
    operations = stepped([row for r in ranges for row in read_events(r)], partitions, join_events)
    summaries: list[Summary] = [pickle.loads(r.payload) for r in operations if r.key is None]
    deleted = {topic for each in summaries for topic in each.deleted}
    topics = frozenset({topic for each in summaries for topic in each.topics} - deleted)
    reader = MessageReader(Wanted(COLUMNS, topics), task.starts)
    messages = [row for part in task.parts for row in reader(part)]
    judge = QueueJudge(task.starts, task.tail_is_known, topics)
    said = [row for row in operations if row.key is not None]
    judged = stepped([*said, *messages], partitions, judge)
    total = Judged(
        deleted=tuple(sorted(deleted)), operations=sum(each.operations for each in summaries)
    )
    return [total, *(pickle.loads(row.payload) for row in judged)]


def random_story(random: Random, name: str) -> Story:
    """Sends of every outcome, polls, and now and then a deletion; in time's order, so that
    operations' events lie between each other's. Values are of that name."""
    story = Story()
    for number in range(60):
        queue = random.randrange(5)
        if random.random() < 0.6:
            outcome = random.choice((Outcome.OK, Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN))
            result = random.randrange(12) if outcome is Outcome.OK else None
            story.do(f"p{queue}", Send("t", queue, number, (f"{name}{number}",)), result, outcome)
        elif random.random() < 0.95:
            story.do("c", Poll("t", queue, 0), ((random.randrange(12), f"{name}{number // 2}"),))
        else:
            story.do("k", Delete("u"), outcome=Outcome.UNKNOWN)
    return story


@pytest.mark.parametrize("ends", [(), (21, 40)])
@pytest.mark.parametrize("seed", range(6))
def test_cuts_and_partitions_change_nothing(
    tmp_path: Path, seed: int, ends: tuple[int, ...]
) -> None:
    """The same counts and the same anomalies as of one task that reads everything, also where the
    topics' names were given anew."""
    random = Random(seed)
    values = [f"{random.choice('vvw')}{random.randrange(60)}" for _ in range(50)]
    replica = log_of(tmp_path, *values, queues=5)
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file, name, part in ((first, "v", 1), (second, "w", 3)):  # The same numbers in both.
        lines = list(random_story(random, name).history.lines())
        told = "".join(line + "\n" for line in lines[: len(lines) // part])
        file.write_text(told, encoding="utf-8")
    log = committed_log(replica)
    starts = QueueStarts(ends={"t": ends} if ends else {})
    task = DeliveryTask((str(first), str(second)), _whole_log(log), starts, True, 0, 1, 0)
    (alone,) = [judge_share(task)]
    assert alone.anomalies
    for range_bytes, partitions in ((1 << 20, 1), (97, 3), (1, 7)):
        job = run_job(task, range_bytes, partitions)
        assert (job[0].operations, job[0].deleted) == (alone.operations, alone.deleted)
        queues = sorted((q for each in job for q in each.queues), key=lambda q: q.queue_id)
        assert queues == sorted(alone.queues, key=lambda q: q.queue_id)
        assert sorted(map(repr, (a for each in job for a in each.anomalies))) == sorted(
            map(repr, alone.anomalies)
        )


def test_a_value_that_is_sent_twice_is_the_same_mistake(tmp_path: Path) -> None:
    """Whichever task comes upon which; a log that is rotten, too, changes nothing."""
    replica = log_of(tmp_path, "a")
    story = Story()
    for queue in range(4):
        for process in ("p", "q"):
            story.do(process, Send("t", queue, 0, ("a",)), 0)
    log = committed_log(replica)
    file = written(tmp_path, story)
    task = DeliveryTask((file,), _whole_log(log), QueueStarts(), True, 0, 1, 0)
    alone = judge_share(task).mistake
    assert "t/0: 'a' was sent by p of history 1 and again by q of history 1" in alone
    for partitions in (1, 3):
        job = run_job(task, 1 << 20, partitions)
        assert min(each.mistake for each in job if each.mistake) == alone
    broken = replace(task, parts=(replace(task.parts[0], commitlog=str(tmp_path)),))
    assert judge_share(broken) == Judged(mistake=alone)


def test_each_line_belongs_to_the_range_it_begins_in(tmp_path: Path) -> None:
    """Cut at every byte, each line is read once, wherever the cut lies."""
    file = tmp_path / "history.jsonl"
    file.write_text(SENT + '{"event":"ok","op":1,"result":0}\n' + SENT, encoding="utf-8")
    size = file.stat().st_size
    whole = list(read_events(HistoryRange(0, str(file), 0, size)))
    assert len(whole) == 3
    for cut in range(size + 1):
        parts = (HistoryRange(0, str(file), 0, cut), HistoryRange(0, str(file), cut, size))
        assert [row for part in parts for row in read_events(part)] == whole


def test_a_number_may_be_used_again_when_its_operation_is_over(tmp_path: Path) -> None:
    """Two operations, each with its own place; one that never ends is of unknown outcome."""
    file = tmp_path / "history.jsonl"
    file.write_text(SENT + '{"event":"ok","op":1,"result":5}\n' + SENT, encoding="utf-8")
    (part,) = history_ranges([str(file)])
    rows = list(join_events(read_events(part)))
    sends = [pickle.loads(row.payload) for row in rows if row.key is not None]
    assert [(sent.outcome.value, sent.offset) for sent in sends] == [("ok", 5), ("unknown", None)]
    summary = pickle.loads(rows[-1].payload)
    assert (summary.operations, summary.mistake) == (2, None)


def test_the_first_bad_line_is_the_one_that_is_told(tmp_path: Path) -> None:
    """By its place in the files, not by which task saw it first; as a line, not as a byte."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(SENT, encoding="utf-8")
    end = '{"event":"ok","op":7,"result":0}\n'
    bad.write_text(SENT + end + "{\n" + end, encoding="utf-8")
    paths = [str(good), str(bad)]
    rows = [row for part in history_ranges(paths, 10) for row in read_events(part)]
    summaries = [pickle.loads(r.payload) for r in stepped(rows, 3, join_events) if r.key is None]
    first = min(each.mistake for each in summaries if each.mistake is not None)
    told = _as_a_person_counts(paths, *first)
    assert told == f"{bad}, line 2: operation 7 ends and isn't under way"


def test_any_topic_has_a_key() -> None:
    """Half a surrogate pair, a quote, a huge number: a history is anybody's JSON."""
    keys = {key_of((topic, queue)) for topic in ("t", "\ud800", '"', "") for queue in (0, 10**30)}
    assert len(keys) == 8
    assert all(key.isascii() for key in keys)


def test_a_damaged_log_is_a_row_and_no_error(tmp_path: Path) -> None:
    """An error of a task would come back as the cluster's."""
    replica = log_of(tmp_path, "a")
    log = committed_log(replica)
    (part,) = _whole_log(log)
    rows = list(
        MessageReader(Wanted(COLUMNS), QueueStarts())(replace(part, commitlog=str(tmp_path)))
    )
    assert [(row.key, b"No such file" in row.payload) for row in rows] == [(None, True)]
    (judged,) = [
        pickle.loads(row.payload)
        for row in QueueJudge(QueueStarts(), True, frozenset("t"))(iter(rows))
    ]  # fmt: skip
    assert "No such file" in judged.damage
