"""Dead letters that were sent again before: whoever asks again is told so, and nothing is sent."""

from __future__ import annotations

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.services.retries import FailedMessage, Resent, SendBack
from broker.services.updates import QueueOf
from broker.state.groups import Settings
from dledger.records.reserved import dead_letter_topic
from dledger.wire.commands_pb2 import Command, MoveQueueStartsCommand, QueueStart
from tests.broker.test_held_back import Shop

DEAD = dead_letter_topic("g")


class Rejecting(Shop):
    """Two dead letters of group g, of which the first was sent again."""

    def __init__(self) -> None:
        super().__init__(settings=Settings(topics=("t",), max_attempts=3))
        self.send(0, b"one", b"two")
        queue = QueueOf("t", self.room.machine.topics["t"].incarnation, 0)
        epoch = self.member.held["t", 0]
        failed = (FailedMessage(queue, epoch, at, is_rejected=True) for at in range(2))
        wish = SendBack("g", "a", self.member.session, tuple(failed))
        node = self.room.leader
        assert self.room.world.run(node, node.replica.services.retries.send_back(wish)) == (0, 0)
        assert self.resend(0) == Resent("t", (0, 2))

    def resend(self, offset: int) -> Resent | ErrorCode:
        node = self.room.leader
        asked = node.replica.services.retries.resend("g", 0, 0, offset)
        try:
            return self.room.world.run(node, asked)
        except BrokerError as error:
            return error.code

    def retire(self) -> None:
        """Retention takes both letters."""
        made = self.room.machine.topics[DEAD].incarnation
        starts = [QueueStart(queue_id=0, offset=2)]
        command = MoveQueueStartsCommand(name=DEAD, incarnation=made, starts=starts)
        with self.room.leader.running():
            self.room.leader.replica.appender.submit(Command(move_queue_starts=command))
        self.pass_ms(100)


@pytest.mark.parametrize("retires", [False, True])
@pytest.mark.parametrize("deletes", [False, True])
def test_a_letter_that_was_sent_again_is_told_so_whatever_has_gone_since(
    *, retires: bool, deletes: bool
) -> None:
    """An error would say that it didn't happen. Where the letter can't be read, nobody knows where
    it came from; the other one wasn't sent again."""
    shop = Rejecting()
    if retires:
        shop.retire()
    if deletes:
        shop.room.delete("t")
    assert shop.resend(0) == Resent("" if retires else "t", None)
    if retires or deletes:
        lost = ErrorCode.OFFSET_OUT_OF_RANGE if retires else ErrorCode.TOPIC_NOT_FOUND
        assert shop.resend(1) is lost
    else:
        assert shop.resend(1) == Resent("t", (0, 3))
    assert shop.resend(2) is ErrorCode.MESSAGE_NOT_FOUND
