"""A group's style is changed when none of its failed messages come again any more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.retries.copies import Failure, copy_of
from broker.leader.units import ProposedUnit
from broker.services import styles
from broker.state.groups import Settings
from broker.state.topics import TopicRef
from dledger.records.record import decode_records
from dledger.records.reserved import LEVELS, SCHEDULE_TOPIC
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    EndSessionsCommand,
    SendBackCommand,
)
from tests.broker.attended import Member, Room
from tests.broker.leader import batch
from tests.broker.test_delay_pump import WAIT_MS, Levels

CONCURRENT = Settings(topics=("t",))
IN_ORDER = Settings(version=1, is_orderly=True, topics=("t",))
BROADCAST = Settings(version=1, is_broadcast=True, topics=("t",))
SOON_MS = 300


def joined(room: Room, settings: Settings, group: str = "g") -> ErrorCode | None:
    """Why a member could not join; None: it could, and has left again."""
    seat = room.seat()
    member = seat.join(settings=settings, group=group)
    room.pass_ms(SOON_MS, seat)
    if member.ended is None:
        seat.leave()
        room.pass_ms(SOON_MS, seat)
    seat.break_off()
    assert bool(member.session) == (member.code is None)
    return member.code


def finish(room: Room, count: int) -> None:
    """The group is done with so many of what came again."""
    topic = room.machine.topics["%RETRY%g"]
    commit = CommitOffsetsCommand(
        group="g",
        topic=topic.name,
        topic_incarnation=topic.incarnation,
        offsets=[CommittedOffset(queue_id=0, offset=count)],
    )
    with room.leader.running():
        room.leader.replica.appender.submit(Command(commit_offsets=commit))
    room.pass_ms(SOON_MS)


@pytest.mark.parametrize("other", [IN_ORDER, BROADCAST])
def test_a_style_waits_for_messages_that_failed(other: Settings) -> None:
    """At their level, and in the retry topic: nobody would be given them. Others' matter not."""
    room = Levels()
    room.own_topic("%RETRY%g")
    for group in ("g", "h", "i"):
        assert joined(room, CONCURRENT, group) is None
    room.fail(("h", b"another's"), ("g", b"1"), ("g", b"2"))
    room.own_topic("%RETRY%i")
    assert joined(room, other) is ErrorCode.GROUP_DIFFERS
    assert joined(room, CONCURRENT) is None
    assert joined(room, other, "i") is None
    room.pass_ms(WAIT_MS + 1_000)
    for done in range(2):
        finish(room, done)
        assert joined(room, other) is ErrorCode.GROUP_DIFFERS
    finish(room, 2)
    assert joined(room, other) is None
    assert room.machine.groups.get("g").settings.style == other.style  # type: ignore[union-attr]


def test_a_member_that_is_about_to_end_keeps_the_style_too() -> None:
    """By the time that the join is applied it has ended: nobody would have looked."""
    room = Levels()
    room.own_topic("%RETRY%g")
    old, new = room.seat(), room.seat()
    first = old.join(settings=CONCURRENT)
    room.pass_ms(SOON_MS, old)
    room.fail(("g", b"1"))
    with room.leader.running():
        end = EndSessionsCommand(sessions=(first.session,))
        room.leader.replica.appender.submit(Command(end_sessions=end))
    second = new.join("b", settings=IN_ORDER)
    room.pass_ms(SOON_MS, new)
    assert room.machine.groups.members("g") == {}
    assert second.code is ErrorCode.GROUP_HAS_MEMBERS
    assert joined(room, IN_ORDER) is ErrorCode.GROUP_DIFFERS
    room.pass_ms(WAIT_MS + 1_000)
    finish(room, 1)
    assert joined(room, IN_ORDER) is None


def test_where_too_many_wait_to_tell_whose_they_are_it_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(styles, "MOST_PAGES", 2)
    monkeypatch.setattr(styles, "PAGE_MESSAGES", 2)
    room = Levels()
    room.own_topic("%RETRY%g")
    assert joined(room, CONCURRENT) is None
    room.fail(*[("h", b"another's")] * 4)
    assert joined(room, IN_ORDER) is None
    assert joined(room, Settings(version=2, topics=("t",))) is None
    room.fail(("h", b"one more"))
    again = Settings(version=3, is_orderly=True, topics=("t",))
    assert joined(room, again) is ErrorCode.BUSY
    room.pass_ms(WAIT_MS + 1_000)
    assert joined(room, again) is None


def sent_back(room: Room, member: Member) -> ProposedUnit:
    """The first message of `t/0`, which that member holds, and its copy."""
    (record,) = decode_records(batch(0, b"failed").records)
    command = SendBackCommand(
        group="g",
        session=member.session,
        topic="t",
        incarnation=room.machine.topics["t"].incarnation,
        queue_id=0,
        epoch=member.held["t", 0],
        offset=0,
    )
    copy = copy_of(record, Failure("g", 1, 0))
    return ProposedUnit((copy,), (Command(send_back=command),))


def test_a_message_that_is_on_its_way_back_keeps_the_style() -> None:
    """Its member has come again in another process, whose join would be applied behind it."""
    room = Levels()
    room.own_topic("%RETRY%g")
    old, new = room.seat(), room.seat()
    member = old.join(settings=CONCURRENT)
    room.pass_ms(SOON_MS, old)
    appender = room.leader.replica.appender
    with room.leader.running():
        appender.send(b"", [batch(0, b"failed")])
    room.pass_ms(SOON_MS, old)
    with room.leader.running():
        failed = appender.units.propose(sent_back(room, member))
    again = new.join(token=b"token--2", settings=IN_ORDER)
    room.pass_ms(SOON_MS, new)
    assert failed.result().refusal is None
    assert again.code is ErrorCode.BUSY
    again = new.join(token=b"token--2", settings=IN_ORDER)
    room.pass_ms(SOON_MS, new)
    assert again.code is ErrorCode.GROUP_DIFFERS
    room.pass_ms(WAIT_MS + 1_000, new)
    assert room.came() == {"g": [b"failed"]}


def test_a_message_that_comes_to_wait_during_the_look_keeps_the_style(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind what was seen of its level. Others' that come are looked at, and no reason."""
    monkeypatch.setattr(styles, "PAGE_MESSAGES", 1)
    room = Levels()
    room.own_topic("%RETRY%g")
    assert joined(room, CONCURRENT) is None
    room.fail(("h", b"another's"), ("h", b"another's, too"))
    coming = ["h", "h", "g"]

    async def pause() -> None:
        if not coming:
            return
        (record,) = decode_records(batch(0, b"failed").records)
        copy = copy_of(record, Failure(coming.pop(0), 1, 0))
        await room.leader.replica.appender.units.propose(ProposedUnit((copy,)))

    turns = SimpleNamespace(pause=pause)
    monkeypatch.setattr(room.leader.replica.services.groups._styles, "_turns", turns)
    assert joined(room, IN_ORDER) is ErrorCode.GROUP_DIFFERS
    assert not coming


def deleted(room: Room, topic: str) -> str:
    """Why the topic couldn't be deleted; empty: it was."""
    try:
        room.world.run(room.leader, room.leader.replica.services.topics.delete(TopicRef(topic)))
    except BrokerError as error:
        return f"{error.code.name}: {error}"
    return ""


def test_the_topics_of_a_group_that_is_gone_can_go() -> None:
    """Its room is needed; and nothing is taken from a group that is there, or that waits."""
    room = Levels()
    queues = room.machine.topics.queue_count
    for name in ("%RETRY%g", "%DLQ%g", "%RETRY%gone", "%DLQ%gone"):
        room.own_topic(name)
    assert joined(room, CONCURRENT) is None
    room.fail(("gone", b"waits"), ("g", b"another's"))
    for name in ("%RETRY%g", "%DLQ%g"):
        told = deleted(room, name)
        assert told.startswith("GROUP_EXISTS: ")
        assert "group 'g' is known" in told
    waits = "the brokers' own, and can't be deleted: messages wait to come to it"
    assert deleted(room, "%RETRY%gone") == f"QUEUES_UNREAD: topic '%RETRY%gone' is {waits}"
    assert deleted(room, SCHEDULE_TOPIC).startswith("INVALID_ARGUMENT: ")
    assert not deleted(room, "%DLQ%gone")
    room.pass_ms(WAIT_MS + 1_000)
    assert room.came() == {"g": [b"another's"], "gone": [b"waits"]}
    assert not deleted(room, "%RETRY%gone")
    assert room.machine.topics.queue_count == queues + 2


def test_a_group_that_comes_while_it_is_looked_for_keeps_its_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look takes turns of its own: whether the group is known is asked behind it."""
    room = Levels()
    room.own_topic("%RETRY%g")
    monkeypatch.setattr(styles, "PAGE_MESSAGES", 1)
    room.fail(("another", b"waits"), ("another", b"waits, too"))
    appender = room.leader.replica.appender

    async def pause() -> None:
        offsets = [CommittedOffset(queue_id=0, offset=0)]
        commit = CommitOffsetsCommand(group="g", topic="t", offsets=offsets)
        await appender.submit(Command(commit_offsets=commit))

    turns = SimpleNamespace(pause=pause)
    monkeypatch.setattr(room.leader.replica.services.topics._styles, "_turns", turns)
    assert room.machine.groups.get("g") is None
    assert "group 'g' is known" in deleted(room, "%RETRY%g")


def test_a_group_that_has_none_waits_for_nothing() -> None:
    """Nor does one without a topic of them, whatever else fails."""
    room = Levels()
    assert len(room.machine.topics[SCHEDULE_TOPIC].next_offsets) == LEVELS
    assert joined(room, CONCURRENT) is None
    room.fail(("h", b"another's"))
    assert joined(room, IN_ORDER) is None
