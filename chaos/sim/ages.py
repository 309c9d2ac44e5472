"""Whether what a leader lets go of the log's front is as old as the rules ask for.

What has gone can't be got back, so retention may keep too much, and never too little. A leader
reckons an entry's age from what it still holds; here every entry of the history is known, and with
it how long the group had lived at each. Only for groups whose front goes by its age alone
(`Plan.goes_by_age_alone`): whoever proposes a start there has no other reason.
"""

from __future__ import annotations

from broker.state.lived_time import LivedTime
from chaos.sim.defect import Defect
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind
from dledger.wire.commands_pb2 import Command


class Ages:
    """Of the entries of one run, from the first on."""

    def __init__(self, age_ms: int) -> None:
        self.moves = 0  # of the log's start, so far
        self._age_ms = age_ms
        self._clock = LivedTime()
        self._at_ms = 0
        self._lived: list[int] = []  # when each entry was appended

    def note(self, header: EntryHeader, frame: bytes) -> None:
        """The next entry of the history.

        Raises:
            Defect: it lets go what isn't old enough.
        """
        # Of a kind that the release of another level knows there is none that moves the start.
        if header.kind == EntryKind.COMMAND and header.is_known:
            command = Command.FromString(frame[HEADER_SIZE:])
            if command.HasField("move_log_start"):
                self._check(header.index, command.move_log_start.first_index)
        self._clock.advance(self._at_ms, header.append_time_ms)
        self._at_ms = header.append_time_ms
        self._lived.append(self._clock.lived_ms)

    def _check(self, index: int, first_kept: int) -> None:
        """Who proposes has applied no more than what is before the proposal."""
        self.moves += 1
        age_ms = self._lived[-1] - self._lived[first_kept - 2]
        if age_ms <= self._age_ms:
            raise Defect(
                "retired too early",
                f"entry {index} lets entry {first_kept - 1} go after {age_ms} ms",
            )
