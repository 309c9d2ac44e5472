"""What becomes of failed messages once more, from the log alone: each has one place at a time.

Used at a run's end, beside a state machine that applies the log again an entry at a time.

    nowhere               a unit with a copy of it, that takes effect
    waits, n failures     moved to its retry topic in its level's order, each once, and not before
                          its time
    again, n failures     sent back: n + 1, and in order what the log counted of it there; waits or
                          is dead; or finished
    dead                  for ever; after exactly the group's attempts, unless it was rejected

Where the log has counted enough, a message is sent back untried: one less, and out of order what it
counted, too.

A copy of anything else, twice of one failure, with another count, or that isn't its message
(`chaos.sim.originals`), is a defect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker.state.compound import Judged
from chaos.sim.defect import Defect
from chaos.sim.lease_model import Copied
from chaos.sim.originals import Originals, lies_at, unit_records
from dledger.reading.entry import EntryHeader
from dledger.records.record import DecodedRecord
from dledger.records.reserved import (
    DEAD_LETTER_PREFIX,
    DEAD_REASON,
    GIVEN_UP_AFTER,
    GIVEN_UP_IN_ORDER,
    ORIGIN_MESSAGE_ID,
    RETRY_PREFIX,
)
from dledger.wire import commands_pb2 as pb

ATTEMPTS = 3  # of every group that fails


class Chain(NamedTuple):
    """A message that a group failed at: its first one's id."""

    group: str
    origin: str


@dataclass(slots=True)
class _Place:
    state: str  # waits, again, dead
    failures: int
    due_ms: int = 0
    at: int = -1  # queue offset of the copy that is there now
    is_rejected: bool = False


class RetryModel:
    """All messages that ever failed, as of the last entry."""

    def __init__(
        self,
        delays_ms: Sequence[int],
        copied: Mapping[tuple[tuple[str, int, int], int], Copied],
        originals: Originals,
    ) -> None:
        """Args:
        copied: what the log had counted where a message was that was sent back; see `LeaseModel`.
        """
        self._delays_ms = delays_ms
        self._copied = copied
        self._originals = originals
        self._places: dict[Chain, _Place] = {}
        self._waiting: dict[int, list[tuple[int, Chain]]] = {}  # by queue of the schedule topic
        self.sent_back = self.fired = 0

    @property
    def dead(self) -> dict[Chain, tuple[int, bool]]:
        """Those that are: how often they failed, and whether they were rejected."""
        return {
            chain: (place.failures, place.is_rejected)
            for chain, place in self._places.items()
            if place.state == "dead"
        }

    @property
    def waiting(self) -> list[Chain]:
        """Those that wait for their time."""
        return [chain for chain, place in self._places.items() if place.state == "waits"]

    def place(self, chain: Chain) -> str:
        """Where it is, for whoever has to tell."""
        return str(self._places.get(chain, "nowhere"))

    def lies_before(self, chain: Chain, offset: int) -> bool:
        """Whether it is in its retry topic, before that offset."""
        place = self._places.get(chain)
        return place is not None and place.state == "again" and place.at < offset

    def applied(self, header: EntryHeader, frame: bytes, units: Sequence[Judged]) -> None:
        """The machine has applied that entry; of one of units, what became of them.

        Raises:
            Defect: it isn't as it should be.
        """
        if not units:
            return
        for unit, records in zip(units, unit_records(header, frame), strict=True):
            if unit.refusal is not None:
                continue
            for command in unit.commands:
                match command.WhichOneof("body"):
                    case "send_back":
                        self._sent_back(command.send_back, records, header)
                    case "fire_delayed":
                        self._fired(command.fire_delayed, records, header)

    def _sent_back(
        self, command: pb.SendBackCommand, records: list[DecodedRecord], header: EntryHeader
    ) -> None:
        (copy,) = records
        chain = Chain(command.group, copy.properties[ORIGIN_MESSAGE_ID])
        where = f"entry {header.index}: {chain}"
        first = self._originals.of(copy, where)
        before = self._places.get(chain)
        if command.topic.startswith(RETRY_PREFIX):
            if before is None or (before.state, before.at) != ("again", command.offset):
                raise Defect(
                    "retry", f"{where} was sent back from {command.offset}, and is {before}"
                )
        elif before is not None:
            raise Defect("retry", f"{where} failed twice where it was sent to, and is {before}")
        elif lies_at(first) != (command.topic, command.queue_id, command.offset):
            raise Defect("retry", f"{where} is of {lies_at(first)}, and {command} took effect")
        seat = command.group, command.incarnation, command.queue_id
        here, is_orderly = self._copied[seat, command.offset]
        enough = GIVEN_UP_IN_ORDER if is_orderly else GIVEN_UP_AFTER
        counts = here if is_orderly or here >= enough else 0
        failures = (0 if before is None else before.failures) + counts + 1
        is_untried = here >= enough and copy.reconsume_times == failures - 1
        if copy.reconsume_times != failures and not is_untried:
            raise Defect("retry", f"{where} failed {failures} times, not {copy.reconsume_times}")
        failures = copy.reconsume_times
        self.sent_back += 1
        if copy.topic.startswith(DEAD_LETTER_PREFIX):
            is_rejected = copy.properties[DEAD_REASON] == "rejected"
            self._places[chain] = _Place("dead", failures, is_rejected=is_rejected)
            return
        if failures >= ATTEMPTS:
            raise Defect("retry", f"{where} failed {failures} times, and is to come again")
        due_ms = header.append_time_ms + self._delays_ms[copy.queue_id]
        self._places[chain] = _Place("waits", failures, due_ms)
        self._waiting.setdefault(copy.queue_id, []).append((copy.queue_offset, chain))

    def _fired(
        self, command: pb.FireDelayedCommand, records: list[DecodedRecord], header: EntryHeader
    ) -> None:
        line = self._waiting.get(command.queue_id, [])
        due = [each for each in line if each[0] < command.end]
        self._waiting[command.queue_id] = line[len(due) :]
        found = {
            Chain(copy.topic.removeprefix(RETRY_PREFIX), copy.properties[ORIGIN_MESSAGE_ID]): copy
            for copy in records
        }
        where = f"entry {header.index}, level {command.queue_id + 1}"
        if len(found) != len(records) or found.keys() != {chain for _, chain in due}:
            raise Defect("retry", f"{where} moved {list(found)}, and {due} were there")
        for chain, copy in found.items():
            self._originals.of(copy, where)
            place = self._places[chain]
            if place.state != "waits" or copy.reconsume_times != place.failures:
                raise Defect("retry", f"{where} moved {chain}, which is {place}")
            if place.due_ms > header.append_time_ms:
                raise Defect("retry", f"{where} moved {chain} {place.due_ms} ms too early")
            self._places[chain] = _Place("again", place.failures, at=copy.queue_offset)
            self.fired += 1
