"""Where queues begin in a log that begins later: what retention took is told from what got lost.

The state that a log begins with says it, in the bytes that nodes write.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from audit.delivery import check
from audit.delivery.check import _whole_log, audit_delivery
from audit.delivery.history import QueueKey, QueueStory, Sent
from audit.delivery.judge import Kind, LoggedQueue, judge_queue
from audit.delivery.judged import Judged
from audit.delivery.starts import starts_of
from audit.engines.engine import Engine, LocalEngine
from audit.errors import FrontGone
from audit.reading.replica import Replica, Seat
from audit.reading.survey import committed_log
from broker.state.snapshot import seal
from broker.state.topics import Topics
from chaos.checkers.history import Poll, Send
from dledger.history import Outcome
from dledger.outcome import ExitCode
from dledger.reading.decode import Wanted, read_records
from dledger.reading.entry import EntryKind
from dledger.reading.errors import LogDamaged
from dledger.reading.lifetimes import followed
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Position
from dledger.records.layout import SNAPSHOT_FILE
from store.files import OsFiles
from store.snapshot_files import SnapshotFiles, SnapshotHead
from tests.audit.replicas import Entry, LogBuilder, dropping, flip_bit, start_of
from tests.audit.simulated_group import later_plan, make_group
from tests.audit.test_delivery import log_of, told, written
from tests.audit.test_lifetimes import create, delete
from tests.chaos.histories import Story


def begun_later(
    path: Path, values: list[str], begins: Callable[[int], dict[QueueKey, int]] | None
) -> tuple[Replica, int]:
    """A replica whose first segment is gone, and how many of the values of `t/0` that took.

    Args:
        begins: next offsets of queues in the state that the log begins with, of that number; None:
            that state is gone.
    """
    replica = log_of(path, *values)
    start = start_of(Path(replica.path), len(values))
    for _ in dropping(Path(replica.path), start):
        pass
    taken = start.index - 1  # The first entry is no message.
    if begins is not None:
        write_base(Path(replica.path), start, begins(taken))
    assert replica.position is not None
    position = replace(replica.position, first_index=start.first_index)
    return replace(replica, position=position), taken


def write_base(path: Path, start: LogStart, begins: dict[QueueKey, int]) -> None:
    """The state that a log begins with, as far as topics go."""
    topics = Topics()
    for number, name in enumerate(sorted({topic for topic, _ in begins}), 1):
        ends = [end for (topic, _), end in sorted(begins.items()) if topic == name]
        topics.create(name, len(ends), incarnation=number, created_time_ms=0)
        topics[name].next_offsets[:] = ends
    head = SnapshotHead(bytes(16), start.index, start.term, start.digest, start.end_offset)
    files = SnapshotFiles(path, OsFiles())
    unfinished = files.begin(head)
    unfinished.add(list(seal(start.index, [topics.snapshot()])))
    unfinished.finish()
    files.publish(unfinished)


VALUES = [f"v{number}" for number in range(150)]


def all_of_them(emptied: tuple[str, ...] = ()) -> Story:
    """`VALUES` in queue 0 and `emptied` in queue 1, acknowledged and read."""
    story = Story()
    for at, value in enumerate(VALUES):
        story.send(value, at=at)
    story.poll(*enumerate(VALUES))
    if emptied:
        story.do("p", Send("t", 1, 0, emptied), 0)
        story.do("c", Poll("t", 1, 0), tuple(enumerate(emptied)))
    return story


def test_a_queue_that_retention_has_emptied_lost_nothing(tmp_path: Path, engine: Engine) -> None:
    """All that was acknowledged there was taken away, and another queue is judged as ever."""
    replica, taken = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n, ("t", 1): 2})
    history = written(tmp_path, all_of_them(("gone", "gone too")))
    report = audit_delivery([replica], [history], engine)
    assert told(report) == []
    assert (report.verdict, report.exit_code) == ("delivered", ExitCode.CONSISTENT)
    assert [queue.expired for queue in report.queues] == [taken, 2]


def test_messages_that_are_all_gone_prove_nothing(tmp_path: Path) -> None:
    """Retention took whatever the history speaks of."""
    replica, _ = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n})
    story = Story()
    story.send(VALUES[0], at=0)
    story.poll((0, VALUES[0]))
    story.send(*VALUES[1:])
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    assert (told(report), report.verdict) == ([], "undecided")


@pytest.mark.parametrize("lost", [1, 3])
def test_a_loss_at_the_front_of_what_is_kept_is_told(
    tmp_path: Path, engine: Engine, lost: int
) -> None:
    """Retention left more than is there, as the state says that the log begins with."""
    replica, taken = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n - lost})
    report = audit_delivery([replica], [written(tmp_path, all_of_them())], engine)
    missing = [each for each in told(report) if each[0] == "lost"]
    assert missing == [("lost", at, f"v{at}") for at in range(taken - lost, taken)]
    assert report.exit_code == ExitCode.INCONSISTENT


def test_a_loss_in_a_queue_that_began_with_the_log_is_told(tmp_path: Path, engine: Engine) -> None:
    """What the state doesn't know was made later: nothing of it was ever taken away."""
    replica, _ = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n, ("other", 1): 7})
    report = audit_delivery([replica], [written(tmp_path, all_of_them(("gone",)))], engine)
    assert [each for each in told(report) if each[0] == "lost"] == [("lost", 0, "gone")]


def test_a_topic_that_was_deleted_before_the_log_lost_nothing(
    tmp_path: Path, engine: Engine
) -> None:
    """By an operator, and its deletion has left the log: neither the state nor the log knows it.
    Whether its messages were lost before nobody can tell."""
    replica, _ = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n})
    story = all_of_them()
    story.do("p", Send("gone", 0, 0, ("x0", "x1")), 0)
    story.do("c", Poll("gone", 0, 0), ((0, "x0"), (1, "x1")))
    report = audit_delivery([replica], [written(tmp_path, story)], engine)
    assert (told(report), report.verdict) == ([], "undecided")
    assert report.exit_code is ExitCode.INCOMPLETE
    assert any(
        "2 acknowledged messages are of topics that neither" in each for each in report.notes
    )


def test_a_loss_in_a_topic_that_was_made_in_a_later_log_is_told(tmp_path: Path) -> None:
    """Nothing of it was ever taken away; unless it is the one before of that name, as a note
    says."""
    replica = behind_a_former_one(tmp_path, create("new"))
    story = Story()
    story.do("p", Send("new", 0, 0, ("x0",)), 0)
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    assert told(report) == [("lost", 0, "x0")]
    assert any("topic new was made by entry 152: " in note for note in report.notes)


def test_what_a_former_topic_had_before_the_log_is_noted(tmp_path: Path) -> None:
    """Where its end has left the log as well, the log can't tell its messages from the present
    one's: they are told as lost, and the note says what they may be."""
    replica, _ = begun_later(tmp_path, VALUES, lambda n: {("t", 0): 0})
    story = Story()
    story.send("former", at=200)
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    assert ("lost", 200, "former") in told(report)
    assert any("topic t was made by entry 1: " in note for note in report.notes)


def spoil(base: Path) -> None:
    """A bit of the state and one of its copy's."""
    flip_bit(base, base.stat().st_size - 6)


def of_another_log(base: Path) -> None:
    """As of an entry that isn't the one before the log's first."""
    content = bytearray(base.read_bytes())
    at = SNAPSHOT_FILE.at("digest")
    content[at] ^= 1
    head = content[: SNAPSHOT_FILE.at("head_crc")]
    content[len(head) : len(head) + 4] = crc32c(bytes(head)).to_bytes(4, "big")
    content[-4:] = crc32c(bytes(content[:-4])).to_bytes(4, "big")
    base.write_bytes(content)


@pytest.mark.parametrize("ruin", [Path.unlink, spoil, of_another_log])
def test_what_was_before_an_unknown_beginning_is_undecided(
    tmp_path: Path, engine: Engine, ruin: Callable[[Path], None]
) -> None:
    """Without the state that the log begins with, what is gone may have been lost or taken away:
    neither is claimed."""
    replica, taken = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n, ("t", 1): 1})
    (base,) = (Path(replica.path) / "snapshot").iterdir()
    ruin(base)
    history = written(tmp_path, all_of_them(("gone",)))
    report = audit_delivery([replica], [history], engine)
    assert told(report) == []
    assert (report.verdict, report.exit_code) == ("undecided", ExitCode.INCOMPLETE)
    assert [queue.expired for queue in report.queues] == [taken, 1]
    assert any(base.name in note and "lost" in note for note in report.notes)
    later = Story()
    later.poll(*enumerate(VALUES[taken:], taken))
    for at, value in enumerate(VALUES[taken:], taken):
        later.send(value, at=at)
    report = audit_delivery([replica], [written(tmp_path, later)], engine)
    assert (report.verdict, told(report)) == ("delivered", [])


def test_a_copy_of_the_state_does_where_the_state_has_rotted(tmp_path: Path) -> None:
    """A node keeps it twice."""
    replica, _ = begun_later(tmp_path, VALUES, lambda n: {("t", 0): n})
    (base,) = (Path(replica.path) / "snapshot").iterdir()
    base.with_suffix(".copy").write_bytes(base.read_bytes())
    spoil(base)
    report = audit_delivery([replica], [written(tmp_path, all_of_them())], LocalEngine())
    assert report.verdict == "delivered"


FORMER = [f"former {number}" for number in range(150)]


def behind_a_former_one(path: Path, *entries: Entry) -> Replica:
    """A replica whose log begins later, among `FORMER`, which lie in `t/0` from queue offset 1000
    on; then come `entries`."""
    builder = LogBuilder(path / "n1", "n1")
    former = messages(FORMER, 1000)
    for entry in (Entry(1, EntryKind.NOOP), *former, *entries):
        builder.add(entry)
    builder.flush()
    end, last = builder.log.end_offset, builder.log.last_index
    builder.close()
    start = start_of(path / "n1", len(FORMER))
    for _ in dropping(path / "n1", start):
        pass
    write_base(path / "n1", start, {("t", 0): 1000 + start.index - 1})
    position = Position(end, 0, last, start.first_index)
    return Replica("n1", str(path / "n1"), position=position, seat=Seat(1, serves=True))


def messages(values: list[str], first: int) -> list[Entry]:
    """Of `t/0`, at queue offset `first` and behind it."""
    return [
        Entry(1, topic="t", count=1, queue_offset=at, bodies=(value.encode().ljust(64),))
        for at, value in enumerate(values, first)
    ]


def of_the_one_of_now(path: Path, lost: int) -> str:
    """A history: `VALUES`, acknowledged from 0 on. `FORMER` are somebody else's, of unknown
    outcome."""
    story = Story()
    story.begin("another", Send("t", 0, 0, tuple(FORMER)))
    for at, value in enumerate(VALUES):
        story.send(value, at=at)
    story.poll(*enumerate(VALUES[lost:], lost))
    return written(path, story)


@pytest.mark.parametrize("ending", [delete("t", 1), delete("t")], ids=["named", "older"])
@pytest.mark.parametrize("before", [(), (create("t"),)], ids=["", "void"])
@pytest.mark.parametrize("lost", [0, 100, 150])
def test_a_topic_that_was_made_anew_begins_at_0(
    tmp_path: Path, engine: Engine, lost: int, before: tuple[Entry, ...], ending: Entry
) -> None:
    """The state knows another one of its name. Nothing of this one's was ever taken away, however
    much of its front isn't there. That somebody asked for the other one when it was there already
    changes nothing. Where nothing of this one is there, all may be of what retention took of the
    other."""
    anew = messages(VALUES[lost:], lost)
    replica = behind_a_former_one(tmp_path, *before, ending, create("t"), *anew)
    report = audit_delivery([replica], [of_the_one_of_now(tmp_path, lost)], engine)
    kind = "lost" if lost < len(VALUES) else "undecided"
    assert told(report) == [(kind, at, f"v{at}") for at in range(lost)]
    assert [queue.expired for queue in report.queues] == [0]


def test_what_retention_took_of_the_one_before_is_undecided(tmp_path: Path, engine: Engine) -> None:
    """It was acknowledged and read, and so was what is left of both."""
    replica = behind_a_former_one(tmp_path, delete("t", 1), create("t"), *messages(VALUES, 0))
    story = Story()
    story.send(*FORMER, at=1000)
    for at, value in enumerate(VALUES):
        story.send(value, at=at)
    story.poll(*enumerate(FORMER, 1000))
    story.poll(*enumerate(VALUES))
    report = audit_delivery([replica], [written(tmp_path, story)], engine)
    taken = (replica.position.first_index if replica.position else 0) - 2
    assert [each for each in told(report) if each[0] != "undecided"] == []
    undecided = {(offset, value) for _, offset, value in told(report)}
    assert undecided == {(1000 + at, FORMER[at]) for at in range(taken)}
    assert report.exit_code is ExitCode.INCOMPLETE


@pytest.mark.parametrize(
    ("before", "behind"),
    [((), ()), ((delete("t", 99), create("t")), ()), ((), (delete("t", 1), delete("t")))],
    ids=["lives", "void", "gone"],
)
def test_a_name_that_nobody_else_was_given_begins_where_its_topic_does(
    tmp_path: Path, before: tuple[Entry, ...], behind: tuple[Entry, ...]
) -> None:
    """Commands that had no effect, or a deletion alone, make no other topic: what lay before the
    state's offsets was taken away."""
    replica = behind_a_former_one(tmp_path, *before, *messages(VALUES, 1150), *behind)
    story = Story()
    story.send(*FORMER)
    story.send("taken", at=999)
    for at, value in enumerate(VALUES, 1150):
        story.send(value, at=at)
    report = audit_delivery([replica], [written(tmp_path, story)], LocalEngine())
    assert (told(report), [queue.expired for queue in report.queues]) == ([], [1])


def test_a_queue_begins_where_it_is_known_to() -> None:
    """What is left doesn't tell, unless nobody knows it better."""
    sent = [Sent((0, "p"), (value,), Outcome.OK, at) for at, value in enumerate("abc")]
    for first, start in ((0, 0), (2, 2), (None, 1)):
        queue = LoggedQueue(first)
        queue.add(1, "b")
        queue.add(2, "c")
        assert (queue.start, queue.end) == (start, 3)
        lost = [(each.kind, each.offset) for each in judge_queue(("t", 0), queue, QueueStory(sent))]
        assert lost == ([(Kind.LOST, 0)] if first == 0 else [])
    assert (LoggedQueue(7).start, LoggedQueue(7).end) == (7, 7)


def test_real_members_begin_where_their_states_say(tmp_path: Path) -> None:
    """Each member's log, begun at another segment, has no message of before, and that one."""
    made = make_group(tmp_path, later_plan(), killed=True, apart=True)
    columns = ("topic", "queue_id", "queue_offset")
    begun = []
    for name, path in made.items():
        log = committed_log(Replica(name, str(path)))
        starts = starts_of(log, followed(log))
        assert starts.unknown == ""
        first: dict[QueueKey, int] = {}
        for part in _whole_log(log):
            for records in read_records(part, Wanted(columns)):
                for topic, queue_id, offset in zip(
                    *(records.columns[each] for each in columns), strict=True
                ):
                    first.setdefault((str(topic), int(queue_id)), int(offset))
        assert first == {queue: starts.of(queue) for queue in first}
        begun.append(first["orders", 0])
    assert len(set(begun)) == 2
    assert 0 not in begun


@pytest.mark.parametrize("times", [1, check.LOOKS])
def test_front_that_goes_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It is read again from where it begins by now; one that goes each time is told as that."""
    replica = log_of(tmp_path / "log", *VALUES)
    folder, seen = Path(replica.path), []
    history = written(tmp_path, all_of_them())

    def judge(*arguments: Any) -> list[Judged]:
        seen.append(arguments)
        if len(seen) == 1:
            start = start_of(folder, len(VALUES))
            list(dropping(folder, start))
            write_base(folder, start, {("t", 0): start.index - 1})
        if len(seen) <= times:
            return [Judged(damage="No such file or directory")]
        return judge_really(*arguments)

    judge_really = check._judge
    monkeypatch.setattr(check, "_judge", judge)
    if times == 1:
        report = audit_delivery([replica], [history], LocalEngine(processes=1))
        assert (report.verdict, len(seen)) == ("delivered", 2)
    else:
        begins = itertools.count(1)
        monkeypatch.setattr(
            check,
            "committed_log",
            lambda each: replace(committed_log(each), retained_from=next(begins) << 30),
        )
        with pytest.raises(FrontGone, match="began later each time") as gone:
            audit_delivery([replica], [history], LocalEngine(processes=1))
        assert gone.value.exit_code is ExitCode.INCOMPLETE
        assert len(seen) == check.LOOKS
    monkeypatch.setattr(check, "_has_front_gone", lambda _: False)
    monkeypatch.setattr(check, "_judge", lambda *_: [Judged(damage="No such file or directory")])
    with pytest.raises(LogDamaged):
        audit_delivery([replica], [history], LocalEngine(processes=1))
