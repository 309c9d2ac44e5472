"""Histories written by hand, an operation a line, for the tests of the checkers."""

from __future__ import annotations

from chaos.checkers.history import Action, End, History, Operation, Poll, Polled, Result, Send
from dledger.history import Outcome


class Story:
    """A history in which things happen one after the other, unless told otherwise."""

    def __init__(self) -> None:
        self.history = History()
        self._now = 0

    def tick(self) -> int:
        """The next moment, microseconds."""
        self._now += 10
        return self._now

    def begin(self, process: str, action: Action) -> Operation:
        """An operation that is under way."""
        return self.history.invoke(self.tick(), process, action)

    def end(
        self, operation: Operation, result: Result = None, outcome: Outcome = Outcome.OK
    ) -> Operation:
        """It completes now."""
        self.history.complete(self.tick(), operation, outcome, result)
        return operation

    def do(
        self, process: str, action: Action, result: Result = None, outcome: Outcome = Outcome.OK
    ) -> Operation:
        """An operation from begin to end."""
        return self.end(self.begin(process, action), result, outcome)

    def refuse(self, process: str, action: Action, refusal: str) -> Operation:
        """An operation that is refused, and may not have happened."""
        begun = self.begin(process, action)
        self.history.refuse(self.tick(), begun, refusal)
        return begun

    def send(self, *values: str, at: int | None = None, by: str = "p", sequence: int = 0) -> None:
        """A send, acknowledged at queue offset `at`; None: nobody knows."""
        action = Send("t", 0, sequence, values)
        if at is None:
            self.begin(by, action)
        else:
            self.do(by, action, at)

    def poll(self, *polled: tuple[int, str], by: str = "c", seek: bool = False) -> None:
        """A poll that gave these messages."""
        self._poll(polled, by, seek=seek, final=False)

    def read_all(self, *polled: tuple[int, str]) -> None:
        """The reading of everything at the end."""
        self._poll(polled, "reader", seek=True, final=True)

    def read_end(self, value: int) -> None:
        """A linearizable read of the maximum offset."""
        self.do("c", End("t", 0), value)

    def _poll(self, polled: Polled, by: str, *, seek: bool, final: bool) -> None:
        offset = polled[0][0] if polled else 0
        self.do(by, Poll("t", 0, offset, seek=seek, final=final), polled)
