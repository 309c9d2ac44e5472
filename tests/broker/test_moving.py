"""Commands of administration about consumer groups (ADR 61): no late commit undoes a move."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.state.leases import FREE
from broker.state.offsets import Offsets
from broker.state.refusals import (
    GroupBroadcasts,
    GroupExists,
    GroupUnknown,
    LeaseLost,
    LeaseMoved,
    Malformed,
    OffsetOutOfRange,
    PartlyRefused,
    TooMuchProgress,
    TopicReplaced,
)
from tests.broker.consuming import END, QUEUES, Owners, wanted

STARTS = (0,) * QUEUES


@pytest.fixture
def owners() -> Iterator[Owners]:
    """With a topic; every invariant holds at the end, and a snapshot keeps everything."""
    found = Owners()
    found.topic()
    yield found
    found.check()


def working(owners: Owners, queue_id: int = 0) -> tuple[int, int]:
    """A session that holds the queue, has finished what is below 10, and 20 to 22."""
    session = owners.session()
    assert owners.grant(session, queue_id, starts=STARTS) is None
    epoch = owners.index
    assert owners.commit(session, epoch, 10, (20, 23), queue_id=queue_id) is None
    return session, epoch


@pytest.mark.parametrize("to", [0, 4, 10, 21, END])
def test_a_move_ends_the_lease_and_forgets_what_was_finished(owners: Owners, to: int) -> None:
    """Back or forth: the group goes on exactly there, and its members are told to look."""
    working(owners)
    owners.changed.clear()
    assert owners.move((0, to)) is None
    assert (owners.frontier(), owners.lease()) == (to, FREE)
    assert owners.changed == ["g"]


@pytest.mark.parametrize("forward", [True, False])
def test_no_late_commit_undoes_a_move(owners: Owners, *, forward: bool) -> None:
    """Of who held the queue: neither further, nor its finished ranges, nor a release."""
    session, epoch = working(owners)
    owners.move((0, 5), forward=forward)
    before = owners.frontier(), owners.lease()
    late = owners.commit(session, epoch, 30, (32, 33), release=True)
    assert isinstance(late, PartlyRefused)
    assert late.queues[0].why == LeaseLost(0, epoch)
    assert (owners.frontier(), owners.lease()) == before


def test_a_grant_on_its_way_over_the_holders_head_is_refused(owners: Owners) -> None:
    """It names an epoch that the move ended; one of a free queue starts where the move says."""
    session, epoch = working(owners)
    owners.move((0, 5))
    late = owners.grant(session, former=epoch)
    assert isinstance(late, PartlyRefused)
    assert late.queues[0].why == LeaseMoved(0, 0)
    assert owners.grant(session) is None
    assert owners.frontier() == 5
    assert owners.commit(session, owners.index, 7) is None
    assert owners.frontier() == 7


@pytest.mark.parametrize(
    ("to", "frontier", "finished"),
    [(3, 10, ((20, 23),)), (12, 12, ((20, 23),)), (20, 23, ()), (22, 23, ()), (30, 30, ())],
)
def test_forward_forgets_nothing_that_is_finished(
    owners: Owners, to: int, frontier: int, finished: tuple[tuple[int, int], ...]
) -> None:
    """What lies below counts as finished; it never goes back."""
    working(owners)
    assert owners.move((0, to), forward=True) is None
    assert (owners.frontier(), owners.lease().finished) == (frontier, finished)
    assert owners.lease().epoch == 0


def test_other_queues_stay_as_they_are(owners: Owners) -> None:
    """A holder keeps those."""
    session, epoch = working(owners, 1)
    assert owners.move((0, 7), (2, 9)) is None
    assert (owners.lease(1).session, owners.lease(1).epoch) == (session, epoch)
    assert [owners.frontier(at) for at in range(QUEUES)] == [7, 10, 9]


def test_a_group_without_members_or_without_a_start_is_moved(owners: Owners) -> None:
    """It goes on there, simple commits or members: the first grant asks no more where it starts."""
    assert owners.simply(3) is None
    assert owners.move((0, 1), (1, 8)) is None
    session = owners.session()
    assert owners.grant(session, 1, starts=(30, 30, 30)) is None
    assert [owners.frontier(at) for at in range(QUEUES)] == [1, 8, 30]


def test_all_queues_are_moved_or_none(owners: Owners) -> None:
    """One of which the queue doesn't reach so far, or that isn't there, keeps all."""
    working(owners)
    before = owners.frontier(), owners.lease()
    for queue_id, offset in ((1, END + 1), (QUEUES, 0)):
        assert owners.move((0, 5), (queue_id, offset)) == OffsetOutOfRange("t", queue_id, offset)
    assert (
        owners.move((0, 5), (0, 6))
        == owners.move()
        == Malformed("a move names each queue once, and one at least")
    )
    assert (owners.frontier(), owners.lease()) == before


def test_who_is_not_there_is_not_moved(owners: Owners) -> None:
    """Nobody's offsets come from a slip of the pen; who broadcasts has none here."""
    assert owners.move((0, 5)) == GroupUnknown("g")
    owners.join(settings=wanted("t", broadcast=True))
    assert owners.move((0, 5)) == GroupBroadcasts("g")
    assert isinstance(owners.move((0, 5), incarnation=99), TopicReplaced)
    assert owners.frontier() is None


def test_a_move_is_use_of_the_group(owners: Owners) -> None:
    """A group that was put somewhere isn't forgotten a moment later."""
    owners.simply(3)
    owners.lived_ms = 900
    owners.move((0, 1))
    owners.lived_ms = 1_500
    owners.forget("g", unused_ms=1_000)
    assert owners.frontier() == 1


def test_a_clone_has_what_its_source_has_committed(owners: Owners) -> None:
    """Nothing of what is finished above, and no members; each goes its own way from there."""
    working(owners)
    assert owners.clone("g", "h") is None
    assert (owners.frontier(group="h"), owners.lease(group="h")) == (10, FREE)
    assert owners.groups.joined("h") is None
    assert owners.simply(12, group="h") is None
    assert (owners.frontier(), owners.frontier(group="h")) == (10, 12)


def test_a_clone_is_of_a_group_that_is_there_and_makes_one_that_is_not(owners: Owners) -> None:
    """Offsets of a group that exists are never overwritten."""
    assert owners.clone("g", "h") == GroupUnknown("g")
    owners.simply(3)
    owners.simply(4, group="h")
    assert owners.clone("g", "h") == owners.clone("g", "h") == GroupExists("h")
    assert owners.clone("g", "g") == GroupExists("g")
    owners.session(group="joined")
    assert owners.clone("g", "joined") == GroupExists("joined")
    assert owners.frontier(group="h") == 4


def test_clones_are_bounded() -> None:
    """As commits are: by pairs of group and topic."""
    offsets = Offsets(max_progress=1)
    owners = Owners(offsets=offsets)
    owners.topic()
    owners.simply(3)
    assert owners.clone("g", "h") == TooMuchProgress(1)
    owners.check()
