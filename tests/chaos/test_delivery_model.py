"""Single messages in order, followed through the log once more (`chaos/sim/delivery_model.py`): who
was passed is judged by what the entries say, and by no clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.defect import Defect
from chaos.sim.delivery_model import DeliveryModel
from chaos.sim.originals import Originals
from chaos.sim.poppers import check_order
from dledger.reading.entry import EntryHeader
from dledger.wire import commands_pb2 as pb

FIRST, SECOND = b"first..\1", b"second.\1"
HIDDEN_MS = 100
LATE_MS = 10_000  # after whatever time something is hidden


class Followed:
    """One queue of a FIFO group, of which `FIRST` was given four messages by the first entry."""

    def __init__(self) -> None:
        machine: Any = SimpleNamespace(topics={}, groups={})
        self._model = DeliveryModel(machine, Originals())
        self.entry, self.now_ms = 0, 0
        self.apply(starts=(0,), given=(self.give(0, 4, FIRST),))

    def apply(
        self,
        *settled: pb.SettledMessages,
        given: tuple[pb.GivenMessages, ...] = (),
        starts: tuple[int, ...] = (),
    ) -> int:
        """An entry that does this is the log's next one: its index."""
        self.entry += 1
        command = pb.DeliverCommand(
            group="g", topic="t", incarnation=1, fifo=True, settled=settled, given=given
        )
        command.starts.extend(starts)
        header = EntryHeader(0, 0, 0, 0, 0, self.entry, 1, 0, self.now_ms, 0)
        self._model._deliver(command, header)
        return self.entry

    @staticmethod
    def give(base: int, count: int, who: bytes, former: int = 0) -> pb.GivenMessages:
        mask = (1 << count) - 1
        return pb.GivenMessages(
            former=former, base=base, mask=mask, attempt_id=who, hidden_ms=HIDDEN_MS
        )

    def is_passed(self) -> int:
        """Its time is over, and the first two messages are another one's: by that entry."""
        self.now_ms += HIDDEN_MS
        return self.apply(given=(self.give(0, 2, SECOND, former=1),))


def settled(what: pb.Settling, hidden_ms: int, *, base: int = 2, by: int = 1) -> pb.SettledMessages:
    return pb.SettledMessages(handout=by, base=base, mask=3, what=what, hidden_ms=hidden_ms)


HIDING = [(pb.SETTLING_EXTENDED, HIDDEN_MS), (pb.SETTLING_RETURNED, HIDDEN_MS)]


@pytest.mark.parametrize(("what", "hidden_ms"), HIDING)
@pytest.mark.parametrize("later_ms", [0, LATE_MS])
def test_who_was_passed_hides_nothing(what: pb.Settling, hidden_ms: int, later_ms: int) -> None:
    """In the same moment and at any later one."""
    queue = Followed()
    queue.is_passed()
    queue.now_ms += later_ms
    with pytest.raises(Defect, match="and was passed"):
        queue.apply(settled(what, hidden_ms))


@pytest.mark.parametrize("what", [pb.SETTLING_FINISHED, pb.SETTLING_RETURNED])
def test_who_was_passed_finishes_or_gives_back_at_once(what: pb.Settling) -> None:
    queue = Followed()
    queue.is_passed()
    queue.apply(settled(what, 0))


@pytest.mark.parametrize(("what", "hidden_ms"), HIDING)
def test_what_lies_before_nothing_is_whose_it_was(what: pb.Settling, hidden_ms: int) -> None:
    """Once the other one is through with what it had."""
    queue = Followed()
    other = queue.is_passed()
    queue.apply(settled(pb.SETTLING_FINISHED, 0, base=0, by=other))
    queue.apply(settled(what, hidden_ms))


def test_how_long_an_entry_was_on_its_way_is_no_defect() -> None:
    """It was chosen while the hand's time wasn't over, and nobody was given anything since: what
    lies before is what its own worker has given back."""
    queue = Followed()
    queue.apply(settled(pb.SETTLING_RETURNED, 0, base=0))
    queue.now_ms += LATE_MS
    queue.apply(settled(pb.SETTLING_EXTENDED, HIDDEN_MS))


def test_what_is_told_out_of_order_is_a_defect() -> None:
    """Within a queue."""
    check_order("one", [(0, 3, 7), (1, 1, 7), (0, 4, 7), (1, 2, 7)])
    for told in ([(0, 3, 7), (1, 4, 7), (0, 2, 6)], [(0, 3, 7), (0, 3, 7)]):
        with pytest.raises(Defect, match="told out of order"):
            check_order("one", told)
