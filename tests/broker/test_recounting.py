"""What members counted wrongly below level 9 they count alike from the raise on (ADR 57)."""

from __future__ import annotations

from broker.state.machine import StateMachine
from dledger.level import TOPIC_RULES_LEVEL
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    Command,
    DeliverCommand,
    GivenMessages,
    RaiseLevelCommand,
    SettledMessages,
    Settling,
)
from tests.broker.test_compound import Log, Placed

ATTEMPT = b"attempt1"
HANDS = ((0, 64), (64, 36))  # by base: so many messages, given by one entry to one attempt
MESSAGES = 100


class Losing(Log):
    """A group of single messages, in order, whose rows are lost as they were below level 9."""

    def __init__(self) -> None:
        super().__init__(TOPIC_RULES_LEVEL - 1)
        self.t = self.topic(queues=1)
        self.units(([Placed(0, *[b"m"] * MESSAGES, incarnation=self.t)], []))
        hands = [given(base, count) for base, count in HANDS]
        self.entry = self.deliver(DeliverCommand(starts=[0], given=hands))
        for at in range(MESSAGES):
            self.settle(at, 1, SETTLING_EXTENDED)

    def check(self) -> None:
        """Not what is lost at those levels."""

    def deliver(self, command: DeliverCommand) -> int:
        own = DeliverCommand(group="g", topic="t", incarnation=self.t, fifo=True)
        own.MergeFrom(command)
        assert self.units(([], [Command(deliver=own)])) == [None]
        return len(self.frames)

    def settle(self, base: int, count: int, what: Settling) -> None:
        mask = (1 << count) - 1
        settled = SettledMessages(
            queue_id=0, handout=self.entry, base=base, mask=mask, what=what, hidden_ms=1_000
        )
        self.deliver(DeliverCommand(settled=[settled]))

    def lose(self) -> None:
        """Both pages become smaller at once: what is left of the second one goes with the first."""
        self.settle(0, 40, SETTLING_FINISHED)
        self.settle(40, 53, SETTLING_FINISHED)

    def raised(self) -> StateMachine:
        """The level is 9 from now on; a member that applies the raise after a snapshot."""
        twin = self.restored()
        assert twin.deliveries != self.machine.deliveries, "nothing was counted wrongly"
        self.command(Command(raise_level=RaiseLevelCommand(level=TOPIC_RULES_LEVEL)))
        twin.apply(self.frames[-1])
        return twin

    def restored(self) -> StateMachine:
        return StateMachine.restore(self.machine.snapshot(), self.files, options=self.options)


def given(base: int, count: int) -> GivenMessages:
    mask = (1 << count) - 1
    return GivenMessages(queue_id=0, base=base, mask=mask, attempt_id=ATTEMPT, hidden_ms=1_000)


def test_a_count_that_was_wrong_is_right_from_the_raise_on() -> None:
    """For who has applied all and for who began with a snapshot: they judge alike by it."""
    log = Losing()
    log.lose()
    deliveries = log.machine.deliveries
    record = deliveries.in_topic("g", log.t)[0]
    assert (record.unfinished, deliveries.unfinished, list(record)) == (7, 7, [])
    assert log.raised().deliveries == deliveries
    log.machine.check_invariants()
    assert deliveries.unfinished == deliveries.in_topic("g", log.t)[0].unfinished == 0


def test_a_queue_in_order_goes_on_behind_a_count_that_was_wrong() -> None:
    """It is given nothing new while anything is in hand, and now nothing is: to the last message,
    and what is finished leaves nothing behind."""
    log = Losing()
    log.lose()
    log.raised()
    log.units(([Placed(MESSAGES, b"m", incarnation=log.t)], []))
    log.entry = log.deliver(DeliverCommand(given=[given(MESSAGES, 1)]))
    log.settle(MESSAGES, 1, SETTLING_FINISHED)
    log.machine.check_invariants()
    assert log.machine.deliveries.unfinished == 0
    assert log.machine.offsets.of("g", "t")[0] == MESSAGES + 1


def test_what_was_counted_rightly_stays() -> None:
    """The same object: a raise costs a group that lost nothing no more than the counting."""
    log = Losing()
    log.settle(40, 30, SETTLING_FINISHED)
    before = log.machine.deliveries.in_topic("g", log.t)[0]
    log.command(Command(raise_level=RaiseLevelCommand(level=TOPIC_RULES_LEVEL)))
    assert log.machine.deliveries.in_topic("g", log.t)[0] is before
