"""How long a queue of a member couldn't be read: each one's own time, under its own lease."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dledger.client.errors import Busy
from dledger.client.members import pulling
from dledger.client.members.finished import Finished
from dledger.client.members.member import Member
from dledger.client.members.process_queue import Bounds, Order, Place, ProcessQueue
from dledger.client.members.pulling import Counts, Pace, Pulling
from tests.client.loops import async_test


class Clock:
    """Time that the test makes."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pulls_of(member: Member, patch: pytest.MonkeyPatch) -> tuple[Pulling, Clock]:
    """Of nobody: the test says what they bring."""
    made = Clock()
    patch.setattr(pulling, "clock", made)
    pace = Pace(pull_bytes=1, hold_ms=0, commit_every_s=None)
    nobody: Any = None
    pulls = Pulling(
        *(nobody, "g", member, pace, Counts()), on_work=lambda: None, on_gone=lambda queue: None
    )
    return pulls, made


def holding(member: Member, *queue_ids: int, epoch: int) -> list[ProcessQueue]:
    for queue_id in queue_ids:
        member.queues[place(queue_id)] = ProcessQueue(
            place(queue_id), epoch, Finished(0), order=Order.NONE, bounds=Bounds()
        )
    return [member.queues[place(queue_id)] for queue_id in queue_ids]


def place(queue_id: int) -> Place:
    return Place("t", 1, queue_id)


@async_test
async def test_queue_that_comes_back_has_failed_no_time_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It couldn't be read an hour ago, under a lease that others have ended since."""
    member: Any = SimpleNamespace(queues={})
    pulls, time = pulls_of(member, monkeypatch)
    (queue,) = holding(member, 0, epoch=1)
    pulls._note_unread(queue, Busy("no time"))
    (again,) = holding(member, 0, epoch=3)
    time.now += 3_600
    pulls._note_unread(again, Busy("no time"))
    assert pulls.unreadable(10) is None
    time.now += 11
    pulls._note_unread(again, Busy("no time"))
    assert isinstance(pulls.unreadable(10), Busy)


@async_test
async def test_what_is_done_to_one_queue_does_not_hide_another_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who seeks in one, or pauses it, again and again; and that one's own time begins anew."""
    member: Any = SimpleNamespace(queues={}, to_pull=lambda now: [])
    pulls, time = pulls_of(member, monkeypatch)
    sought, ill = holding(member, 0, 1, epoch=1)
    for queues in ([sought, ill], [sought]):
        for queue in queues:
            pulls._note_unread(queue, Busy(f"no time for {queue.place.queue_id}"))
        time.now += 11
    pulls.look_again([sought])
    pulls._note_unread(sought, Busy("no time for 0"))
    assert pulls.unreadable(10) is None
    pulls._note_unread(ill, Busy("no time for 1"))
    error = pulls.unreadable(10)
    assert error is not None
    assert error.message == "no time for 1"


@async_test
async def test_queues_that_are_gone_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Push consumers never ask."""
    member: Any = SimpleNamespace(queues={})
    pulls, _ = pulls_of(member, monkeypatch)
    for epoch in range(1, 100):
        (queue,) = holding(member, 0, epoch=epoch)
        pulls._note_unread(queue, Busy("no time"))
    assert len(pulls._unread) <= 2
