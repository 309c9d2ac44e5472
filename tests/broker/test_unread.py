"""What a group hasn't finished, with what failed: shown while it is there, told when it is
forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from broker.services.consumers import QueueAt
from broker.services.retries import FailedMessage, SendBack
from broker.services.updates import QueueOf
from broker.state.offsets import OffsetCommit
from dledger.records.reserved import LEVEL_DELAYS_MS, retry_topic
from tests.broker.attended import QUEUES, Member, Seat
from tests.broker.test_consumers import SENT, SOON_MS, Looked
from tests.broker.test_keeper import PACE

FAILED = 3


def failing(room: Looked) -> tuple[Seat, Member]:
    """The first messages of t/0 have failed, and are there again; a member that has no use for them
    holds all queues but theirs."""
    seat = room.seat()
    member = seat.join("a", takes_retries=False)
    room.pass_ms(SOON_MS, seat)
    queue = QueueOf("t", room.machine.topics["t"].incarnation, 0)
    failed = [
        FailedMessage(queue, member.held["t", 0], offset, is_rejected=False)
        for offset in range(FAILED)
    ]
    wish = SendBack("g", "a", member.session, tuple(failed))
    assert room.ask(room.leader.replica.services.retries.send_back(wish)) == (0,) * FAILED
    room.pass_ms(LEVEL_DELAYS_MS[2] + 1_000, seat)
    return seat, member


def forgotten(room: Looked) -> Mapping[str, Any]:
    """What is told of it."""
    room.machine.lived_time.lived_ms += PACE.unused_ms
    with capture_logs() as told:
        room.pass_ms(PACE.forget_ms + 100)
    assert not [*room.machine.groups]
    (event,) = [each for each in told if each["event"] == "groups_forgotten"]
    return event


def test_progress_shows_what_failed_though_nothing_is_committed_there() -> None:
    """Where it lies nobody is handed it."""
    room = Looked()
    _, member = failing(room)
    assert len(member.held) == QUEUES
    queues = room.ask(room.consumers.progress("g")).queues
    (retries,) = [each for each in queues if each.at == QueueAt(retry_topic("g"), 0)]
    assert (retries.frontier, retries.unfinished_count) == (None, FAILED)
    assert len(queues) == QUEUES + 1


def test_a_clone_lags_behind_nothing_that_is_never_given_to_it() -> None:
    """What the source couldn't work on comes to the source again, whoever has its offsets."""
    room = Looked()
    seat, _ = failing(room)
    seat.leave()
    room.pass_ms(SOON_MS, seat)
    commit = OffsetCommit("g", retry_topic("g"), ((0, 1),), is_reset=False)
    room.ask(room.leader.replica.services.offsets.commit(commit))
    room.ask(room.consumers.clone("g", "clone"))
    assert room.machine.offsets.of("clone", retry_topic("g")) == {0: 1}
    shown = {
        group: {each.at.topic for each in room.ask(room.consumers.progress(group)).queues}
        for group in ("g", "clone")
    }
    assert shown == {"g": {"t", retry_topic("g")}, "clone": {"t"}}
    left = forgotten(room)["unread"]
    assert left["g"] - left["clone"] == FAILED - 1


def test_a_group_that_is_forgotten_leaves_what_failed_too() -> None:
    """Each group is told by itself; who has finished everything isn't."""
    room = Looked()
    room.commits("through", SENT)
    seat, member = failing(room)
    assert room.commit(member, 0, FAILED, 1, 2) == ()
    seat.leave()
    room.pass_ms(SOON_MS, seat)
    event = forgotten(room)
    assert sorted(event["groups"]) == ["g", "through"]
    assert event["unread"] == {"g": SENT - FAILED - 2 + FAILED}


def test_where_nothing_was_committed_nothing_is_left() -> None:
    """Such a group had nothing to go on from: it may be of a topic's newest messages only."""
    room = Looked()
    room.commits("simple", 4)
    assert forgotten(room)["unread"] == {"simple": SENT - 4}
