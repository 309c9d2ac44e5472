"""Groups in queues that go and come back (ADR 60): whoever was behind goes on where they begin."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state.leases import FREE, Place
from dledger.wire.commands_pb2 import (
    SETTLING_FINISHED,
    Command,
    CommitLeasesCommand,
    DeliverCommand,
    EndSessionsCommand,
    GivenMessages,
    GrantLeasesCommand,
    JoinGroupCommand,
    QueueGrant,
    QueueProgress,
    SettledMessages,
    TopicGrants,
    TopicProgress,
    UpdateTopicCommand,
)
from tests.broker.test_compound import Log, Placed, commit
from tests.broker.test_retrying import Failing
from tests.scale import examples

MESSAGES = 10


class Going(Failing):
    """Group `g` holds both queues of `t`; the second one goes."""

    def __init__(self) -> None:
        super().__init__(MESSAGES)
        self.units(([Placed(0, *[b"m"] * MESSAGES, queue_id=1, incarnation=self.t)], []))
        self.place = Place("g", self.t, 1)
        self.hold()

    def hold(self) -> None:
        """The second queue is the group's session's."""
        grants = [QueueGrant(queue_id=1, session=self.session)]
        topic = TopicGrants(topic="t", incarnation=self.t, grants=grants)
        self.held = self.command(
            Command(grant_leases=GrantLeasesCommand(group="g", topics=[topic]))
        )

    def finish(self, frontier: int, *finished: int) -> None:
        queue = QueueProgress(
            queue_id=1, epoch=self.held, frontier=frontier, finished=list(finished)
        )
        topic = TopicProgress(topic="t", incarnation=self.t, queues=[queue])
        done = CommitLeasesCommand(group="g", session=self.session, topics=[topic])
        self.command(Command(commit_leases=done))

    def vanish(self) -> None:
        """The session ends without a goodbye, and another one is there."""
        gone = [self.session]
        self.command(Command(end_sessions=EndSessionsCommand(sessions=gone, vanished=gone)))
        join = JoinGroupCommand(group="g", member="m", token=b"token--2")
        join.settings.topics.append("t")
        self.session = self.command(Command(join_group=join))

    def update(self, queues: int) -> None:
        wish = UpdateTopicCommand(name="t", read_queues=queues, write_queues=queues, drop=True)
        self.command(Command(update_topic=wish))

    def frontiers(self, group: str) -> dict[int, int]:
        return dict(self.machine.offsets.of(group, "t"))

    def check(self) -> None:
        """Whoever applies the log, or restores the state, has the same."""
        chunks = list(self.machine.snapshot())
        assert list(self.restored().snapshot()) == chunks
        again = Log(1)
        for frame in self.frames:
            again.machine.apply(frame)
        assert list(again.machine.snapshot()) == chunks


def test_a_group_that_was_behind_is_through_with_a_queue_that_goes() -> None:
    """What it had finished, what had failed and what anybody held of it is no more; so who is
    given it once it is back begins where it does."""
    log = Going()
    log.finish(4, 2, 1)
    log.vanish()
    log.hold()
    assert set(log.machine.attempts.places()) == {Place("g", log.t, 0), log.place}
    log.update(1)
    assert log.frontiers("g") == {0: 0, 1: MESSAGES}
    assert log.machine.leases.of(log.place) == FREE
    assert set(log.machine.attempts.places()) == {Place("g", log.t, 0)}
    log.check()
    log.update(2)
    log.units(([Placed(MESSAGES, b"n", queue_id=1, incarnation=log.t)], []))
    log.hold()
    assert log.machine.leases.of(log.place).session == log.session
    assert log.frontiers("g")[1] == log.machine.topic_retention.start_of(log.t, 1)
    log.check()


def test_who_only_commits_is_through_as_well_and_who_never_was_there_is_not() -> None:
    log = Going()
    for group, queue_id, offset in (("behind", 1, 3), ("done", 1, MESSAGES), ("other", 0, 2)):
        log.command(commit(group, offset, log.t, queue_id=queue_id))
    log.update(1)
    assert log.frontiers("behind") == log.frontiers("done") == {1: MESSAGES}
    assert log.frontiers("other") == {0: 2}
    log.check()


def test_single_messages_of_a_queue_that_goes_are_in_nobodys_hand() -> None:
    """Handed out or not, they are finished; those of other queues stay where they are."""
    log = Going()

    def deliver(**what: object) -> int:
        command = DeliverCommand(group="shop", topic="t", incarnation=log.t, **what)  # type: ignore[arg-type]
        assert log.units(([], [Command(deliver=command)])) == [None]
        return len(log.frames)

    deliver(starts=[0, 0])
    given = deliver(
        given=[
            GivenMessages(
                queue_id=queue, base=0, mask=0b111, attempt_id=b"attempt1", hidden_ms=60_000
            )
            for queue in (0, 1)
        ]
    )
    done = SettledMessages(
        queue_id=1, handout=given, base=1, mask=1, what=SETTLING_FINISHED, hidden_ms=0
    )
    deliver(settled=[done])
    assert log.machine.deliveries.unfinished == 5
    log.update(1)
    records = log.machine.deliveries.in_topic("shop", log.t)
    assert (records[1].next, list(records[1])) == (MESSAGES, [])
    assert (records[0].next, len(list(records[0]))) == (3, 1)
    assert log.machine.deliveries.unfinished == 3
    assert log.frontiers("shop") == {0: 0, 1: MESSAGES}
    log.check()


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.sampled_from("sfvhc"), st.integers(0, MESSAGES)), max_size=10))
def test_whatever_a_group_did_it_is_never_behind_a_queues_first_message(
    steps: list[tuple[str, int]],
) -> None:
    """However often that comes and goes in between."""
    log, queues = Going(), 2
    log.command(commit("simple", 0, log.t, queue_id=1))
    for step, number in steps:
        match step:
            case "s":
                queues = 3 - queues
                log.update(queues)
            case "f":
                log.finish(number)
            case "v":
                log.vanish()
            case "h" if queues == 2:
                log.hold()
            case _:
                log.command(commit("simple", number, log.t, queue_id=1))
        start = log.machine.topic_retention.start_of(log.t, 1)
        assert min(log.frontiers(group)[1] for group in ("g", "simple")) >= start
    log.check()


def test_a_group_that_is_through_with_what_goes_is_not_touched() -> None:
    """All groups are looked at in one turn, so only those that were behind cost more than that."""
    log = Going()
    log.command(commit("done", MESSAGES, log.t, queue_id=1))
    before = log.machine.offsets.of("done", "t")
    log.update(1)
    assert log.machine.offsets.of("done", "t") is before
