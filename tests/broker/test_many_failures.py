"""A call may tell of as many failures as it has room for, in whatever queues they are."""

from __future__ import annotations

import pytest

from broker.services.retries import MAX_MESSAGES_IN_CALL, FailedMessage, SendBack
from broker.services.updates import QueueOf
from broker.state.groups import Settings
from broker.state.leases import MAX_RANGES, Place
from tests.broker.test_held_back import Shop


@pytest.mark.parametrize("slow", [0, 1, MAX_RANGES - 2])
def test_a_whole_call_of_one_queues_failures_is_taken(slow: int) -> None:
    """Next to each other they are one range, or none; before an entry is applied each counts as
    one, so that they take more than one. `slow`: so many are done one by one in front of them, and
    nothing at the frontier."""
    shop = Shop(settings=Settings(topics=("t",), max_attempts=3))
    first = 2 * slow
    shop.send(0, *(b"x" for _ in range(first + MAX_MESSAGES_IN_CALL)))
    member, machine = shop.member, shop.room.machine
    queue = QueueOf("t", machine.topics["t"].incarnation, 0)

    def sent_back(offsets: range) -> tuple[object, ...]:
        failed = tuple(
            FailedMessage(queue, member.held["t", 0], offset, is_rejected=False)
            for offset in offsets
        )
        wish = SendBack("g", "a", member.session, failed)
        told = shop.room.world.run(
            shop.room.leader, shop.room.leader.replica.services.retries.send_back(wish)
        )
        shop.pass_ms(0)
        return told

    if slow:
        assert set(sent_back(range(1, first, 2))) == {0}
    place = Place("g", queue.incarnation, 0)
    assert len(machine.leases.of(place).finished) == slow
    assert set(sent_back(range(first, first + MAX_MESSAGES_IN_CALL))) == {0}
    left = machine.leases.of(place).finished
    assert len(left) == slow  # the last of them goes on
    frontier = machine.offsets.of("g", "t")[0]
    assert frontier == (0 if slow else MAX_MESSAGES_IN_CALL)
