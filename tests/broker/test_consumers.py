"""Looking after consumer groups: pictures of who holds what, and moves under members at work."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands, GroupMove, QueueDone, TopicDone
from broker.leader.groups.pace import USUAL_PACE
from broker.services import consumers as pages
from broker.services.consumers import (
    Consumers,
    MoveWish,
    QueueAt,
    QueuePicture,
    To,
    after_unfinished,
)
from broker.state.groups import Settings
from broker.state.handouts import Handout, Page, Record
from broker.state.moving import MovedQueue, Moves
from broker.state.offsets import OffsetCommit
from broker.state.refusals import Refusal
from broker.state.topics import TopicRef
from dledger.level import DELIVERY_LEVEL
from tests.broker.attended import QUEUES, Member, Room, Seat
from tests.broker.leader import batch

T = TypeVar("T")
SOON_MS = 300
SENT = 10


class Looked(Room):
    """A room in which consumer groups are looked after; ten messages are in t/0."""

    def __init__(self) -> None:
        super().__init__()
        bodies = (b"%d" % number for number in range(SENT))
        self.ask(self.leader.replica.services.sends.send(b"", [batch(0, *bodies)]))

    @property
    def consumers(self) -> Consumers:
        return self.leader.replica.services.consumers

    def ask(self, question: Coroutine[Any, Any, T]) -> T:
        return self.world.run(self.leader, question)

    def move(self, to: To, number: int = 0, *queues: int, group: str = "g") -> list[MovedQueue]:
        return list(
            self.ask(self.consumers.move(MoveWish(group, TopicRef("t"), queues, to, number)))
        )

    def refusal(self, question: Coroutine[Any, Any, T]) -> ErrorCode:
        with pytest.raises(BrokerError) as refused:
            self.ask(question)
        return refused.value.code

    def queue(self, queue_id: int = 0, group: str = "g") -> QueuePicture:
        page = self.ask(self.consumers.progress(group))
        return next(each for each in page.queues if each.at == QueueAt("t", queue_id))

    def commits(self, group: str, offset: int = 1) -> None:
        commit = OffsetCommit(group, "t", ((0, offset),), is_reset=False)
        self.ask(self.leader.replica.services.offsets.commit(commit))


def at_work(room: Looked) -> tuple[Seat, Member]:
    """A member that holds everything, has finished two messages of t/0, and the sixth."""
    seat = room.seat()
    member = seat.join("a")
    room.pass_ms(SOON_MS, seat)
    assert len(member.held) == QUEUES
    assert room.commit(member, 0, 2, 3, 1) == ()
    return seat, member


# --- pictures ----------------------------------------------------------------------------------


def test_a_picture_tells_who_is_there_and_how_far_each_queue_is() -> None:
    """Members with what they hold, finished and unfinished messages, the age of the oldest."""
    room = Looked()
    seat, member = at_work(room)
    seat.join("b")
    room.pass_ms(SOON_MS, seat)
    found = room.ask(room.consumers.describe("g"))
    assert (found.group.member_count, found.group.unused_ms) == (2, 0)
    assert found.group.settings == Settings(topics=("t",))
    first, second = found.members
    assert (first.member, first.session, first.queue_count) == ("a", member.session, QUEUES)
    assert (second.member, second.queue_count) == ("b", 0)
    assert first.is_attached
    assert 0 < first.expires_ms <= USUAL_PACE.session_ms
    queue = room.queue()
    assert (queue.frontier, queue.finished_count, queue.finished_runs) == (2, 1, 1)
    assert (queue.min_offset, queue.max_offset, queue.unfinished_count) == (0, SENT, SENT - 3)
    assert (queue.session, queue.epoch) == (member.session, member.held["t", 0])
    assert queue.is_asked == (("t", 0) in member.asked)
    stored_ms = room.leader.replica.reader.stored_at(TopicRef("t"), 0, 2)
    assert queue.oldest_unfinished_ms == stored_ms > 0
    assert sum(each.is_asked for each in room.ask(room.consumers.progress("g")).queues) == 2
    assert room.queue(1).oldest_unfinished_ms == 0


@pytest.mark.parametrize(
    ("low", "told"),
    [
        (0, (40, 50, 50, 10)),  # 10 to 59 in hand, 60 to 99 finished
        (50, (40, 10, 10, 50)),
        (80, (20, 0, 0, None)),
        (120, (0, 0, 0, None)),
    ],
)
def test_lag_of_single_messages_knows_what_has_gone(
    low: int, told: tuple[int, int, int, int | None]
) -> None:
    """What retention took is neither in hand nor waiting: finished above, lag, in hand, oldest."""
    pages_of = [Handout(3, base, (1 << 10) - 1, 0, b"a" * 8, 1) for base in range(10, 60, 10)]
    record = Record(100, (Page.of(pages_of),), 50, 5)
    asked: list[int] = []

    def stored_ms(_topic: TopicRef, _queue_id: int, offset: int) -> int:
        asked.append(offset)
        return 7

    self: Any = SimpleNamespace(_stored_ms=stored_ms)
    found = Consumers._picture_of_singles(
        self, QueueAt("t", 0), 5, record, 10, (low, max(100, low))
    )
    oldest = asked[0] if asked else None
    assert (found.finished_count, found.unfinished_count, found.in_hand_count, oldest) == told


def test_who_is_away_is_shown_as_such() -> None:
    """Its stream isn't here, and its session ends soon."""
    room = Looked()
    seat, _ = at_work(room)
    seat.break_off()
    (member,) = room.ask(room.consumers.describe("g")).members
    assert not member.is_attached
    assert 0 < member.expires_ms <= USUAL_PACE.away_ms


def test_a_group_that_only_commits_has_neither_style_nor_members() -> None:
    """And topics all the same."""
    room = Looked()
    room.commits("simple", 4)
    (found,) = room.ask(room.consumers.list()).groups
    assert (found.name, found.created, found.settings) == ("simple", 0, None)
    assert (found.member_count, found.topic_count) == (0, 1)
    assert room.queue(group="simple").unfinished_count == SENT - 4
    assert room.queue(1, group="simple").frontier is None


def test_pages_follow_each_other_and_miss_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and members by name, queues by topic and id, each once."""
    for name in ("PAGE_GROUPS", "PAGE_MEMBERS", "PAGE_QUEUES"):
        monkeypatch.setattr(pages, name, 3)
    room = Looked()
    seat, _ = at_work(room)
    room.topic("s")
    for name in "bcde":
        seat.join(name)
        room.commits(f"g{name}")
    settings = Settings(version=1, topics=("s", "t"))
    seat.join("f", settings=settings)
    room.pass_ms(SOON_MS, seat)
    groups, after = [], ""
    while page := room.ask(room.consumers.list(after)):
        groups += [each.name for each in page.groups]
        if not (after := page.following):
            break
    assert groups == ["g", "gb", "gc", "gd", "ge"]
    members, after = [], ""
    while picture := room.ask(room.consumers.describe("g", after)):
        members += [each.member for each in picture.members]
        if not (after := picture.following):
            break
    assert members == list("abcdef")
    queues: list[QueueAt] = []
    start: QueueAt | None = None
    while progress := room.ask(room.consumers.progress("g", start)):
        assert len(progress.queues) <= 3
        queues += [each.at for each in progress.queues]
        if (start := progress.following) is None:
            break
    assert queues == [QueueAt(topic, queue_id) for topic in "st" for queue_id in range(QUEUES)]


def test_a_page_of_groups_is_bounded_by_what_they_have_agreed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group may name 64 topics with 1,024 tags; one at least is told, so that no list gets
    stuck at it."""
    room = Looked()
    seat = room.seat()
    tags = (("t", tuple(f"tag-{number:04}" for number in range(100))),)
    for name in ("g1", "g2", "g3"):
        seat.join("a", group=name, settings=Settings(topics=("t",), tags=tags))
    room.pass_ms(SOON_MS, seat)
    for most, sizes in ((1, [1, 1, 1]), (2_500, [2, 1]), (512 << 10, [3])):
        monkeypatch.setattr(pages, "PAGE_BYTES", most)
        found, after = [], ""
        while page := room.ask(room.consumers.list(after)):
            found.append([each.name for each in page.groups])
            if not (after := page.following):
                break
        assert [len(each) for each in found] == sizes
        assert [name for each in found for name in each] == ["g1", "g2", "g3"]


def test_a_long_page_lets_others_have_the_loop() -> None:
    """A topic that goes meanwhile is left out, and ends nothing."""
    room = Looked()
    seat, _ = at_work(room)
    node = room.leader
    node.replica.services.consumers._turns = turns = _Turns(room)  # type: ignore[assignment]
    assert room.ask(room.consumers.progress("g")).queues == ()
    assert turns.pauses == QUEUES
    seat.break_off()


class _Turns:
    """Each piece has had enough at once; in the first pause the topic is deleted."""

    def __init__(self, room: Looked) -> None:
        self._room = room
        self.pauses = 0

    def share(self) -> Any:
        return lambda: True

    async def pause(self) -> None:
        self.pauses += 1
        if self.pauses == 1:
            await self._room.leader.replica.services.topics.delete(TopicRef("t"))


def test_what_is_not_there_is_said() -> None:
    """Groups, topics, queues and offsets that nobody has."""
    room = Looked()
    consumers = room.consumers
    for question in (consumers.describe("g"), consumers.progress("g"), consumers.clone("g", "h")):
        assert room.refusal(question) is ErrorCode.GROUP_NOT_FOUND
    room.commits("g")
    for wish, code in (
        (MoveWish("h", TopicRef("t"), (), To.FIRST), ErrorCode.GROUP_NOT_FOUND),
        (MoveWish("g", TopicRef("u"), (), To.FIRST), ErrorCode.TOPIC_NOT_FOUND),
        (MoveWish("g", TopicRef("t", 1), (), To.FIRST), ErrorCode.TOPIC_REPLACED),
        (MoveWish("g", TopicRef("t"), (QUEUES,), To.FIRST), ErrorCode.QUEUE_NOT_FOUND),
        (MoveWish("g", TopicRef("t"), (0,), To.OFFSET, SENT + 1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (MoveWish("g", TopicRef("t"), (0, 0), To.FIRST), ErrorCode.INVALID_ARGUMENT),
    ):
        assert room.refusal(consumers.move(wish)) is code
    assert room.refusal(consumers.clone("g", "g")) is ErrorCode.GROUP_EXISTS
    for name in ("", "a b", "a" * 120):
        assert room.refusal(consumers.clone("g", name)) is ErrorCode.INVALID_ARGUMENT
    assert room.queue().frontier == 1


# --- moves -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "number", "goes_on"),
    [
        (To.FIRST, 0, 0),
        (To.LAST, 0, SENT),
        (To.OFFSET, 4, 4),
        (To.TIME, 0, 0),
        (To.TIME, 1 << 50, SENT),
        (To.SKIP, 0, SENT),
        (To.SKIP, 1, 3),
        (To.SKIP, 4, 7),
        (To.SKIP, 99, SENT),
    ],
)
def test_members_are_given_moved_queues_anew(to: To, number: int, goes_on: int) -> None:
    """By other epochs, at the new place; what the old epoch commits late is refused, and changes
    nothing. The other queues stay."""
    room = Looked()
    seat, member = at_work(room)
    before = dict(member.held)
    (moved,) = room.move(to, number, 0)
    assert (moved.queue_id, moved.before) == (0, 2)
    room.pass_ms(SOON_MS, seat)
    assert member.frontiers["t", 0] == goes_on
    assert member.held["t", 0] > before["t", 0]
    assert {k: v for k, v in member.held.items() if k[1]} == {
        k: v for k, v in before.items() if k[1]
    }
    (late,) = room.commit(member, 0, SENT, epoch=before["t", 0])
    assert late.failure.code is ErrorCode.LEASE_LOST
    assert room.queue().frontier == goes_on
    assert room.commit(member, 0, goes_on) == ()


@pytest.mark.parametrize(
    ("to", "number", "goes_on"), [(To.SKIP, 1, 6), (To.SKIP, 0, SENT), (To.FIRST, 0, 0)]
)
def test_what_is_told_of_a_move_is_what_its_entry_did(
    monkeypatch: pytest.MonkeyPatch, to: To, number: int, goes_on: int
) -> None:
    """A member commits between the look at the group and the entry, and another move follows before
    anybody is answered: a skip that passed over nothing says so."""
    room = Looked()
    _, member = at_work(room)
    move_group = Commands.move_group

    def overtaken(commands: Commands, wanted: GroupMove) -> Awaitable[Refusal | Moves]:
        queue = QueueDone(0, member.held["t", 0], 5, (), is_released=False)
        done = TopicDone("t", wanted.topic.incarnation, (queue,))
        commands.commit_leases("g", member.session, (done,))  # to the sixth, which is finished
        answer = move_group(commands, wanted)
        move_group(commands, wanted._replace(offsets=((0, 9),), is_forward=False))
        return answer

    monkeypatch.setattr(Commands, "move_group", overtaken)
    assert room.move(to, number, 0) == [MovedQueue(0, 6, goes_on)]
    assert room.queue().frontier == 9


def test_all_queues_are_moved_unless_some_are_named() -> None:
    """What is finished above the frontier comes again."""
    room = Looked()
    seat, member = at_work(room)
    assert [each.queue_id for each in room.move(To.FIRST)] == list(range(QUEUES))
    room.pass_ms(SOON_MS, seat)
    assert len(member.held) == QUEUES
    assert (room.queue().frontier, room.queue().finished_count) == (0, 0)


def test_a_holder_that_is_given_nothing_back_learns_it() -> None:
    """The queue goes to another member; who had it is told at once and not by a refusal."""
    room = Looked()
    one, other = room.seat(), room.seat()
    settings = Settings(strategy="AVG", topics=("t",))
    first = one.join("a", settings=settings)
    room.pass_ms(SOON_MS, one)
    second = other.join("b", settings=settings)
    room.pass_ms(SOON_MS, one, other)
    asked = sorted(first.asked)
    assert len(asked) == QUEUES // 2
    stays = next(queue_id for queue_id in range(QUEUES) if ("t", queue_id) not in asked)
    room.move(To.LAST, 0, stays)
    room.pass_ms(1, one, other)  # the leader has looked at the group, and won't again so soon
    assert len(first.held) == QUEUES
    room.move(To.LAST, 0, *(queue_id for _, queue_id in asked))
    room.pass_ms(1)  # nor has the member been heard, which would be told what it has lost
    assert len(first.held) == QUEUES // 2
    room.pass_ms(SOON_MS, one, other)
    assert (sorted(second.held), len(first.held)) == (asked, QUEUES // 2)
    assert not set(first.held) & set(second.held)


def test_a_clone_goes_on_where_its_source_is() -> None:
    """From its committed offsets, with its own members."""
    room = Looked()
    at_work(room)
    assert room.ask(room.consumers.clone("g", "h")) == 1
    seat = room.seat()
    member = seat.join("a", group="h")
    room.pass_ms(SOON_MS, seat)
    assert member.frontiers["t", 0] == 2


def test_before_the_level_is_in_use_nothing_is_moved() -> None:
    """A member that doesn't know the command would stop applying."""
    room = Looked()
    room.commits("g")
    room.machine.level.current = DELIVERY_LEVEL - 1
    wish = MoveWish("g", TopicRef("t"), (), To.FIRST)
    for question in (room.consumers.move(wish), room.consumers.clone("g", "h")):
        assert room.refusal(question) is ErrorCode.NOT_READY


@given(st.integers(0, 20), st.sets(st.integers(0, 30)), st.integers(0, 12))
def test_skipping_passes_over_so_many_unfinished_ones(
    first: int, finished: set[int], count: int
) -> None:
    """Against counting one by one."""
    runs: list[tuple[int, int]] = []
    for at in sorted(finished):
        if runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    unfinished = [at for at in range(first, 60) if at not in finished]
    assert after_unfinished(first, tuple(runs), count) == unfinished[count]
