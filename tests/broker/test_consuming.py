"""Consumer groups as replicated state (ADR 55): who is in, who holds what, how far it is done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.state.groups import MAX_CHOICES, MAX_TOPICS, MAX_VERSIONS, Groups
from broker.state.leases import FREE, MAX_RANGES, Lease, Leases, ranges_of, runs_of, united
from broker.state.offsets import OffsetCommit
from broker.state.refusals import (
    GroupDiffers,
    GroupHasMembers,
    GroupUnknown,
    LeaseLost,
    LeaseMoved,
    Malformed,
    OffsetOutOfRange,
    PartlyRefused,
    QueueRefusal,
    Refusal,
    SessionUnknown,
    StartMissing,
    TooManyGroups,
    TooManyRanges,
    TooManySessions,
    TooManyVersions,
    TopicNotTaken,
)
from dledger.wire.commands_pb2 import (
    START_LAST,
    START_TIME,
    GroupSettings,
    JoinGroupCommand,
    QueueChoice,
)
from tests.broker.consuming import END, QUEUES, Owners, wanted
from tests.scale import examples

STARTS = (3, 4, 5)


def why(refusal: Refusal | None) -> QueueRefusal:
    """Why the only queue of a command was refused."""
    assert isinstance(refusal, PartlyRefused), refusal
    (queue,) = refusal.queues
    return queue.why


@pytest.fixture
def owners() -> Iterator[Owners]:
    """With a topic; every invariant holds at the end, and a snapshot keeps everything."""
    found = Owners()
    found.topic()
    yield found
    found.check()


# --- members ----------------------------------------------------------------------------------


def test_a_join_makes_the_group_and_a_session(owners: Owners) -> None:
    """Both by its entry's index; the same token is the same session, another one ends it."""
    first = owners.session()
    assert first == owners.groups.get("g").created == owners.index  # type: ignore[union-attr]
    assert owners.session() == first
    owners.grant(first, starts=STARTS)
    second = owners.session(token=b"token--2")
    assert second > first
    assert owners.groups.session(first) is None
    assert owners.lease() == FREE  # what the first one held goes with it


def test_who_disagrees_is_refused_by_name(owners: Owners) -> None:
    """Until it comes with a higher version; the time of the start aside."""
    owners.session()
    others = wanted("t", "u", orderly=True, strategy="AVG", start=START_LAST)
    assert owners.join("n", settings=others) == GroupDiffers(
        "g", ("is_orderly", "strategy", "start", "topics"), 0
    )
    higher = wanted("t", "u", version=1)
    assert isinstance(owners.join("n", settings=higher), int)
    assert isinstance(owners.join("o"), GroupDiffers)  # what it was no longer is


def test_a_start_by_time_is_that_of_the_first_join(owners: Owners) -> None:
    """Members that say *an hour ago* each mean another moment."""
    for number, time_ms in enumerate((70, 90)):
        asked = wanted("t", start=START_TIME, start_time_ms=time_ms)
        assert isinstance(owners.join(f"m{number}", settings=asked), int)
    asked = wanted("t", version=4, start=START_TIME, start_time_ms=99)
    assert isinstance(owners.join("m9", settings=asked), int)
    group = owners.groups.get("g")
    assert group is not None
    assert (group.settings.start_time_ms, group.version) == (70, 4)


def test_a_style_changes_only_without_sessions(owners: Owners) -> None:
    """The member that is alone may change it as it comes again."""
    first = owners.session()
    orderly = wanted("t", version=1, orderly=True)
    assert owners.join("n", settings=orderly) == GroupHasMembers("g")
    assert isinstance(owners.join("m", b"token--2", settings=orderly), int)
    assert owners.groups.session(first) is None


def test_versions_in_use_at_once_are_bounded(owners: Owners) -> None:
    """Each has members; with the last of one it goes."""
    sessions = []
    for version in range(MAX_VERSIONS):
        sessions.append(owners.join(f"m{version}", settings=wanted("t", version=version)))
    late = wanted("t", version=MAX_VERSIONS)
    assert owners.join("late", settings=late) == TooManyVersions("g", MAX_VERSIONS)
    assert isinstance(sessions[0], int)
    owners.end(sessions[0])
    assert isinstance(owners.join("late", settings=late), int)


def test_groups_and_sessions_are_bounded() -> None:
    """Of a group that only commits there may be more: offsets are bounded by themselves."""
    owners = Owners(Groups(max_groups=1, max_sessions=2))
    owners.topic()
    assert owners.simply(1, group="other") is None
    owners.session("a")
    owners.session("b")
    assert owners.join("c") == TooManySessions(2)
    assert owners.join("a", group="h") == TooManyGroups(1)
    owners.session("b", b"token--2")  # in the place of its own
    owners.check()


@pytest.mark.parametrize(
    "command",
    [
        JoinGroupCommand(),
        JoinGroupCommand(group="g" * 120, member="m", token=bytes(8), settings=wanted("t")),
        JoinGroupCommand(group="g", member="m" * 256, token=bytes(8), settings=wanted("t")),
        JoinGroupCommand(group="g", member="m", token=bytes(7), settings=wanted("t")),
        JoinGroupCommand(group="g", member="m", token=bytes(8), settings=wanted()),
        JoinGroupCommand(group="g", member="m", token=bytes(8), settings=wanted("u", "t")),
        JoinGroupCommand(group="g", member="m", token=bytes(8), settings=wanted("t", "t")),
        JoinGroupCommand(group="g", member="m", token=bytes(8), settings=wanted("t" * 128)),
        JoinGroupCommand(
            group="g",
            member="m",
            token=bytes(8),
            settings=wanted(*(f"t{n:03}" for n in range(MAX_TOPICS + 1))),
        ),
        JoinGroupCommand(
            group="g", member="m", token=bytes(8), settings=wanted("t", strategy="s" * 65)
        ),
        JoinGroupCommand(
            group="g", member="m", token=bytes(8), settings=wanted("t", start_time_ms=-1)
        ),
        JoinGroupCommand(
            group="g",
            member="m",
            token=bytes(8),
            settings=wanted("t"),
            queues=[QueueChoice(topic="u", queue_ids=[0])],
        ),
        JoinGroupCommand(
            group="g",
            member="m",
            token=bytes(8),
            settings=wanted("t"),
            queues=[QueueChoice(topic="t", queue_ids=[1, 1])],
        ),
        JoinGroupCommand(
            group="g",
            member="m",
            token=bytes(8),
            settings=wanted("t"),
            queues=[QueueChoice(topic="t", queue_ids=range(MAX_CHOICES + 1))],
        ),
        JoinGroupCommand.FromString(
            JoinGroupCommand(
                group="g", member="m", token=bytes(8), settings=wanted("t")
            ).SerializeToString()
            + b"\x22\x02\x28\x09"  # settings: start 9
        ),
    ],
)
def test_what_no_leader_proposes_is_refused(owners: Owners, command: JoinGroupCommand) -> None:
    """Every bound is the state's own."""
    assert isinstance(owners.consuming.join(command, owners.at()), Malformed)
    assert len(owners.groups) == 0


def test_the_largest_session_fits_a_snapshot(owners: Owners) -> None:
    """Every field as long as it may be."""
    topics = [f"{n:03}".ljust(127, "t") for n in range(MAX_TOPICS)]
    choices = [QueueChoice(topic=name, queue_ids=range(MAX_CHOICES // 64)) for name in topics]
    settings_ = wanted(*topics, strategy="s" * 64)
    found = owners.join("m" * 255, group="g" * 119, settings=settings_, choices=choices)
    assert isinstance(found, int)


# --- leases -----------------------------------------------------------------------------------


def test_the_first_grant_writes_where_the_group_starts(owners: Owners) -> None:
    """In all queues: whoever holds one next finds it, though nothing was ever committed."""
    session = owners.session()
    assert why(owners.grant(session)) == StartMissing(0)
    assert owners.grant(session, starts=STARTS) is None
    assert owners.lease() == Lease(session, owners.index)
    assert [owners.frontier(queue_id) for queue_id in range(QUEUES)] == list(STARTS)
    owners.end(session)
    assert owners.grant(owners.session("n"), 1, starts=(9, 9, 9)) is None
    assert owners.frontier(1) == STARTS[1]  # it never changes


def test_what_was_committed_before_is_where_a_group_starts(owners: Owners) -> None:
    """A group that had no members goes on where it was; its other queues start."""
    owners.simply(7, queue_id=1)
    assert owners.grant(owners.session(), starts=STARTS) is None
    assert [owners.frontier(queue_id) for queue_id in range(QUEUES)] == [3, 7, 5]


def test_a_start_beyond_the_end_is_none(owners: Owners) -> None:
    """Nor one of a queue that isn't there."""
    session = owners.session()
    assert why(owners.grant(session, starts=(END + 1, 0, 0))) == OffsetOutOfRange("t", 0, END + 1)
    refused = owners.grant(session, starts=(0,) * (QUEUES + 1))
    assert type(why(refused)).__name__ == "QueueNotFound"
    assert owners.lease() == FREE


def test_a_queue_that_came_later_has_a_start_of_its_own(owners: Owners) -> None:
    """The others keep theirs."""
    session = owners.session()
    owners.grant(session, starts=STARTS)
    topic = owners.topics["t"]
    topic.next_offsets.append(END)
    topic.units_crcs.append(0)
    owners.topics._queue_count += 1
    assert why(owners.grant(session, QUEUES)) == StartMissing(QUEUES)
    assert owners.grant(session, QUEUES, starts=(0,), first_start=QUEUES) is None
    assert [owners.frontier(queue_id) for queue_id in range(QUEUES + 1)] == [*STARTS, 0]


def test_a_grant_names_the_epoch_that_it_ends(owners: Owners) -> None:
    """One that was decided before another took effect changes nothing."""
    one, other = owners.session("a"), owners.session("b")
    owners.grant(one, starts=STARTS)
    epoch = owners.index
    assert why(owners.grant(other)) == LeaseMoved(0, epoch)
    assert why(owners.grant(other, former=epoch - 1)) == LeaseMoved(0, epoch)
    assert owners.grant(other, former=epoch) is None
    assert owners.lease() == Lease(other, owners.index)
    assert why(owners.commit(one, epoch, 9)) == LeaseLost(0, epoch)
    assert owners.grant(0, former=owners.lease().epoch) is None
    assert owners.lease() == FREE


def test_only_a_session_that_wants_the_topic_gets_its_queues(owners: Owners) -> None:
    """Not one of another group, one that is over, one with older settings, a broadcast one."""
    owners.topic("u")
    old = owners.session()
    owners.grant(old, starts=STARTS)
    owners.join("n", settings=wanted("t", "u", version=1))
    assert why(owners.grant(old, topic="u", starts=(0,) * QUEUES)) == TopicNotTaken("u")
    assert why(owners.grant(99)) == SessionUnknown(99)
    stranger = owners.session("s", group="h")
    assert why(owners.grant(stranger, 1)) == SessionUnknown(stranger)
    owners.join("b", group="all", settings=wanted("t", broadcast=True))
    loud = owners.groups.members("all")["b"].session
    assert why(owners.grant(loud, group="all", starts=STARTS)) == TopicNotTaken("t")


# --- commits ----------------------------------------------------------------------------------


def held(owners: Owners) -> tuple[int, int]:
    """A session that holds queue 0, and the epoch."""
    session = owners.session()
    assert owners.grant(session, starts=STARTS) is None
    return session, owners.index


def test_a_commit_moves_forward_only(owners: Owners) -> None:
    """Frontier and finished ranges; one that comes late, or again, changes nothing."""
    session, epoch = held(owners)
    assert owners.commit(session, epoch, 6, (8, 10), (12, 13)) is None
    assert owners.commit(session, epoch, 4, (9, 11)) is None
    assert (owners.frontier(), owners.lease().finished) == (6, ((8, 11), (12, 13)))
    assert owners.commit(session, epoch, 8) is None
    assert (owners.frontier(), owners.lease().finished) == (11, ((12, 13),))


def test_a_commit_by_another_epoch_is_refused_by_name(owners: Owners) -> None:
    """And so is one of a session that is over, or of another group."""
    session, epoch = held(owners)
    for wrong in (0, epoch - 1, epoch + 1):
        assert why(owners.commit(session, wrong, 6)) == LeaseLost(0, wrong)
    assert why(owners.commit(session, epoch, 6, queue_id=1)) == LeaseLost(1, epoch)
    other = owners.session("n")
    assert why(owners.commit(other, epoch, 6)) == LeaseLost(0, epoch)
    owners.end(session)
    assert owners.commit(session, epoch, 6) == SessionUnknown(session)
    assert owners.frontier() == STARTS[0]


def test_what_is_finished_outlives_its_holder(owners: Owners) -> None:
    """The next one passes over it."""
    session, epoch = held(owners)
    owners.commit(session, epoch, 5, (7, 9), release=True)
    assert owners.lease() == Lease(finished=((7, 9),))
    assert why(owners.commit(session, epoch, 9)) == LeaseLost(0, epoch)
    assert owners.grant(session) is None
    assert owners.lease() == Lease(session, owners.index, ((7, 9),))


def test_nothing_beyond_the_end_is_finished(owners: Owners) -> None:
    """Neither below the frontier nor above it."""
    session, epoch = held(owners)
    assert why(owners.commit(session, epoch, END + 1)) == OffsetOutOfRange("t", 0, END + 1)
    assert why(owners.commit(session, epoch, 4, (6, END + 2))) == OffsetOutOfRange("t", 0, END + 2)
    assert owners.commit(session, epoch, 4, (6, END)) is None


def test_finished_ranges_are_bounded_and_never_cut() -> None:
    """What was called finished doesn't come again: too many are refused whole."""
    owners = Owners(leases=Leases(max_all_ranges=MAX_RANGES + 1))
    owners.topic(queues=2)
    for queue_id in range(2):
        owners.topics.advance(owners.topics["t"], queue_id, 1_000)
    session = owners.session()
    owners.grant(session, starts=(0, 0))
    epoch = owners.index
    many = [(at, at + 1) for at in range(2, 2 * MAX_RANGES + 2, 2)]
    assert owners.commit(session, epoch, 0, *many) is None
    assert why(owners.commit(session, epoch, 0, (600, 601))) == TooManyRanges(MAX_RANGES)
    assert owners.lease().finished == tuple(many)
    owners.grant(session, 1)
    second = owners.index
    assert owners.commit(session, second, 0, (2, 3), queue_id=1) is None
    refused = owners.commit(session, second, 0, (2, 3), (5, 6), queue_id=1)
    assert why(refused) == TooManyRanges(MAX_RANGES + 1)
    owners.check()


def test_commits_without_a_lease_are_for_groups_without_sessions(owners: Owners) -> None:
    """They say where the group is: nothing above counts as finished then."""
    session, epoch = held(owners)
    owners.commit(session, epoch, 5, (7, 9))
    assert owners.simply(9) == GroupHasMembers("g")
    assert owners.simply(0, reset=True) == GroupHasMembers("g")
    owners.end(session)
    assert owners.simply(4, reset=True) is None
    assert (owners.frontier(), owners.lease()) == (4, FREE)


def test_a_deleted_topic_takes_everything_along(owners: Owners) -> None:
    """A topic of its name is another one: the group starts there anew."""
    session, epoch = held(owners)
    owners.commit(session, epoch, 5, (7, 9))
    owners.delete()
    assert owners.leases.held_by(session) == []
    owners.topic()
    assert why(owners.grant(session)) == StartMissing(0)


# --- forgetting -------------------------------------------------------------------------------


def test_a_group_is_forgotten_when_nobody_used_it_for_long(owners: Owners) -> None:
    """By its last join, commit, or end of a session; never while it has one."""
    session, epoch = held(owners)
    owners.lived_ms = 10_000
    owners.forget("g", unused_ms=1_000)
    assert owners.commit(session, epoch, 5, (7, 9)) is None
    owners.end(session)
    owners.lived_ms += 999
    assert owners.groups.forgettable(owners.lived_ms, 1_000, 9) == ()
    owners.forget("g", unused_ms=1_000)
    assert owners.frontier() == 5
    owners.lived_ms += 1
    assert owners.groups.forgettable(owners.lived_ms, 1_000, 9) == ("g",)
    owners.forget("g", "nobody", unused_ms=1_000)
    assert owners.frontier() is None
    assert owners.groups.get("g") is None
    assert owners.leases == Leases()


def test_a_group_that_only_commits_is_forgotten_too(owners: Owners) -> None:
    """And gone with the last topic that it committed in."""
    owners.simply(1)
    owners.simply(1, group="h")
    owners.lived_ms = 500
    owners.simply(1)  # where it is: that is use as well
    owners.lived_ms = 1_000
    owners.forget("g", "h", unused_ms=1_000)
    assert (owners.frontier(), owners.frontier(group="h")) == (1, None)
    owners.delete()
    assert owners.groups.get("g") is None
    owners.topic()


def test_a_snapshot_shows_the_moment_at_which_it_was_taken(owners: Owners) -> None:
    """Whatever is applied before its payloads are."""
    session, epoch = held(owners)
    owners.commit(session, epoch, 5, (7, 9))
    before = [list(each.payloads) for each in owners.sections()]
    taken = owners.sections()
    owners.join("n", settings=wanted("t", "u", version=1))
    owners.lived_ms += 10
    owners.commit(session, epoch, 8, release=True)
    owners.grant(session, 1)
    owners.end(session)
    assert [list(each.payloads) for each in taken] == before
    assert [list(each.payloads) for each in owners.sections()] != before


# --- whatever happens -------------------------------------------------------------------------

RUNS = st.lists(st.integers(1, 5), max_size=8).map(lambda runs: runs[: len(runs) // 2 * 2])


@given(st.integers(0, 9), RUNS)
def test_runs_and_ranges_are_the_same(frontier: int, runs: list[int]) -> None:
    """Either gives the other."""
    ranges = ranges_of(frontier, runs)
    assert ranges is not None
    assert runs_of(frontier, ranges) == runs


def test_runs_come_in_pairs() -> None:
    """Of at least one message each."""
    assert ranges_of(0, [1]) is None
    assert ranges_of(0, [1, 0]) is None


@given(st.integers(0, 9), RUNS, st.integers(0, 9), RUNS)
def test_united_is_what_either_says(a: int, ours: list[int], b: int, theirs: list[int]) -> None:
    """Offset by offset."""
    mine, other = ranges_of(a, ours) or (), ranges_of(b, theirs) or ()
    frontier, ranges = united(a, mine, ((0, b), *other) if b else other)

    def finished(front: int, parts: tuple[tuple[int, int], ...]) -> set[int]:
        return {*range(front), *(at for part in parts for at in range(*part))}

    assert finished(frontier, ranges) == finished(a, mine) | finished(b, other)
    ends = [frontier, *(end for part in ranges for end in part)]
    assert all(one < after for one, after in pairwise(ends))


class Anything(RuleBasedStateMachine):
    """Commands in any order. What was finished stays finished, a holder loses its lease only by a
    grant that names it or with its session, and every invariant holds after each."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners(Groups(max_groups=2, max_sessions=4), Leases(max_all_ranges=6))
        self.owners.topic()
        self.epochs: list[tuple[int, int, int, str]] = []  # that were ever granted

    def finished(self, group: str, queue_id: int) -> set[int]:
        frontier = self.owners.frontier(queue_id, group) or 0
        ranges = self.owners.lease(queue_id, group).finished
        return {*range(frontier), *(at for each in ranges for at in range(*each))}

    groups = st.sampled_from("gh")
    queues = st.integers(0, QUEUES - 1)
    members = st.sampled_from("abc")

    @rule(
        group=groups, member=st.sampled_from("abc"), token=st.integers(0, 2), higher=st.booleans()
    )
    def join(self, group: str, member: str, token: int, higher: bool) -> None:
        version = self.owners.groups.get(group)
        settings_ = wanted("t", version=(version.version if version else 0) + higher)
        self.owners.join(member, bytes(7) + bytes([token]), group=group, settings=settings_)

    @precondition(lambda self: self.owners.groups.session_count)
    @rule(data=st.data(), queue_id=queues, takes=st.booleans())
    def grant(self, data: st.DataObject, queue_id: int, takes: bool) -> None:
        owners = self.owners
        session = data.draw(st.sampled_from(sorted(owners.groups._sessions.values(), key=str)))
        before = owners.lease(queue_id, session.group)
        former = before.epoch if takes else 0
        refusal = owners.grant(
            session.session, queue_id, former=former, starts=STARTS, group=session.group
        )
        if before.epoch != former:
            assert isinstance(why(refusal), LeaseMoved)
            assert owners.lease(queue_id, session.group) == before
        else:
            assert owners.lease(queue_id, session.group).epoch == owners.index
            self.epochs.append((session.session, owners.index, queue_id, session.group))

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), frontier=st.integers(0, 12), runs=RUNS, release=st.booleans())
    def commit(self, data: st.DataObject, frontier: int, runs: list[int], release: bool) -> None:
        owners = self.owners
        session, epoch, queue_id, group = data.draw(st.sampled_from(self.epochs))
        before, holder = self.finished(group, queue_id), owners.lease(queue_id, group)
        refusal = owners.commit(
            session,
            epoch,
            frontier,
            *(ranges_of(frontier, runs) or ()),
            queue_id=queue_id,
            release=release,
            group=group,
        )
        after = self.finished(group, queue_id)
        assert after >= before
        if holder.epoch != epoch:
            assert refusal is not None
            assert (after, owners.lease(queue_id, group)) == (before, holder)
        elif refusal is None:
            assert after >= set(range(frontier))
            assert (owners.lease(queue_id, group).epoch == 0) == release

    @precondition(lambda self: self.owners.groups.session_count)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sessions = sorted(self.owners.groups._sessions)
        session = data.draw(st.sampled_from(sessions))
        held_ = [
            (each, self.finished(each.group, each.queue_id))
            for each in self.owners.leases.held_by(session)
        ]
        self.owners.end(session)
        for place, finished in held_:
            assert self.owners.leases.of(place).epoch == 0
            assert self.finished(place.group, place.queue_id) == finished

    @rule(group=groups, queue_id=queues, offset=st.integers(0, END), reset=st.booleans())
    def simply(self, group: str, queue_id: int, offset: int, reset: bool) -> None:
        refusal = self.owners.simply(offset, queue_id=queue_id, reset=reset, group=group)
        assert (refusal is None) == (not self.owners.groups.members(group))

    @rule(group=groups, queue_id=queues, offset=st.integers(0, END), forward=st.booleans())
    def move(self, group: str, queue_id: int, offset: int, forward: bool) -> None:
        owners = self.owners
        before, others = self.finished(group, queue_id), self.rest_of(group, queue_id)
        refusal = owners.move((queue_id, offset), forward=forward, group=group)
        assert self.rest_of(group, queue_id) == others
        if owners.groups.get(group) is None:
            assert refusal == GroupUnknown(group)
            return
        assert refusal is None
        assert owners.lease(queue_id, group).epoch == 0
        wanted_ = set(range(offset))
        assert self.finished(group, queue_id) == (wanted_ | before if forward else wanted_)

    def rest_of(self, group: str, queue_id: int) -> list[object]:
        """What a move of the queue has nothing to do with."""
        return [
            (self.finished(each, at), self.owners.lease(at, each))
            for each in "gh"
            for at in range(QUEUES)
            if (each, at) != (group, queue_id)
        ]

    @rule(source=groups, name=st.sampled_from("ghi"))
    def clone(self, source: str, name: str) -> None:
        owners = self.owners
        is_new, has = owners.groups.get(name) is None, owners.offsets.has(source)
        refusal = owners.clone(source, name)
        assert (refusal is None) == (is_new and has)
        if refusal is None:
            assert owners.offsets.of(name, "t") == owners.offsets.of(source, "t")

    @rule(later=st.integers(0, 600), group=groups)
    def forget(self, later: int, group: str) -> None:
        self.owners.lived_ms += later
        self.owners.forget(group, unused_ms=1_000)

    @rule()
    def delete(self) -> None:
        self.owners.delete()
        self.owners.topic()

    @invariant()
    def holds(self) -> None:
        self.owners.check()


Anything.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestAnything = Anything.TestCase


def test_settings_are_shown_whole() -> None:
    """What differs is found in every field but version and time."""
    one = Owners()
    one.join(settings=GroupSettings(topics=["t"]))
    changes = [
        GroupSettings(topics=["t"], broadcast=True),
        GroupSettings(topics=["t"], orderly=True),
        GroupSettings(topics=["t"], strategy="AVG"),
        GroupSettings(topics=["t"], start=START_LAST),
        GroupSettings(topics=["u"]),
    ]
    found = [one.join("n", settings=each) for each in changes]
    assert all(isinstance(each, GroupDiffers) for each in found)


# --- what it is for ever ----------------------------------------------------------------------

# Of the sections that the commands below lead to. Another
# state is another rule: see WHAT_TO_DO in tests/broker/test_kept_log.py.
STATE = "b76c8f0b26979fc8b4848aadd975f06a3f32148113ad296895145903d114fccd"


def test_commands_give_the_state_that_they_gave() -> None:
    """Each command of level 6, each with and without effect: members of two releases hold the
    same."""
    owners = Owners()
    owners.topic()
    owners.topic("u", 1)
    owners.simply(2, group="h")
    first = owners.session("a")
    choices = [QueueChoice(topic="t", queue_ids=[0, 2])]
    second = owners.join("b", choices=choices)
    assert isinstance(second, int)
    owners.grant(first, 0, starts=STARTS)
    epoch = owners.index
    owners.grant(second, 1)
    owners.grant(second, 0)
    owners.lived_ms = 70
    owners.commit(first, epoch, 5, (7, 9), (12, 13))
    owners.commit(first, epoch + 9, 6)
    owners.commit(second, epoch + 1, 4, queue_id=1, release=True)
    owners.simply(9)
    owners.join("c", settings=wanted("t", "u", version=3, start=START_TIME, start_time_ms=8))
    owners.join("d", settings=wanted("u"))
    owners.join("e", group="loud", settings=wanted("t", broadcast=True, strategy="AVG"))
    owners.end(second, 999)
    owners.lived_ms = 2_000
    owners.forget("h", "g", unused_ms=1_500)
    owners.check()
    found = hashlib.sha256()
    for section in (*owners.groups.snapshot(), *owners.leases.snapshot()):
        payload = b"".join(section.payloads)
        found.update(f"{section.name} {section.version} {len(payload)}\n".encode() + payload)
    assert found.hexdigest() == STATE


def test_groups_are_known_in_one_order_whatever_they_were_restored_from() -> None:
    """Offsets that a snapshot gave back are in another order than those that were committed one
    after the other; what is known of groups since the level that keeps it is the same, and written
    the same (seed 61044)."""
    commits = [("g0", "a"), ("g1", "b"), ("early", "a")]
    applied, restored = Owners(), Owners()
    for owners in (applied, restored):
        owners.topic("a")
        owners.topic("b")
    for group, topic in commits:
        commit = OffsetCommit(group, topic, ((0, 1),), is_reset=False)
        assert applied.offsets.commit(commit, applied.topics[topic].next_offsets) is None
    section = applied.offsets.snapshot()
    restored.offsets.restore(section.version, section.payloads)
    assert applied.offsets.committed_groups() != restored.offsets.committed_groups()
    for owners in (applied, restored):
        owners.consuming.begin(owners.at())
    written = [
        [list(each.payloads) for each in owners.sections()] for owners in (applied, restored)
    ]
    assert written[0] == written[1]
