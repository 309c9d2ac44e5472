"""What applications were promised by the library, and what they saw.

A sender's message is *stored* at a place, *refused* (it did not happen), or *in doubt*; a process
that is killed leaves what it hadn't heard of in doubt. Of each message that is handled it is known
by whom, from when to when, and whether it was finished there.

This judges as it goes what must never be, and in the end (`check`) what must be by then, against
what the log holds. It must never take a doubt for one or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.sim.applications.process import ClientProcess
from chaos.sim.defect import Defect
from dledger.client import ClientError, Message, Outcome, SendResult
from dledger.records.record import DecodedRecord
from dledger.records.reserved import DEAD_REASON, REJECTED


class Held(NamedTuple):
    """What a topic has to be read.

    Args:
        messages: their bodies, by queue and offset.
        fronts: by queue: its first offset. What lay before went with the queue, which has come
            again since.
    """

    messages: dict[tuple[int, int], bytes]
    fronts: dict[int, int]

    def has_gone(self, place: tuple[int, int]) -> bool:
        """It went with its queue."""
        queue_id, offset = place
        return offset < self.fronts.get(queue_id, offset + 1)


class Told(NamedTuple):
    """What a sender was told of a message; neither: it is in doubt."""

    place: tuple[int, int] | None = None
    is_refused: bool = False


@dataclass(slots=True)
class SentBook:
    """Of all senders."""

    told: dict[bytes, Told | None] = field(default_factory=dict)  # None: nothing yet
    order: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)  # by sender and key
    of: dict[bytes, tuple[tuple[str, str], int]] = field(default_factory=dict)  # and place there

    def accept(self, body: bytes, sender: str, key: str) -> None:
        """The library has taken it."""
        self.told[body] = None
        order = self.order.setdefault((sender, key), [])
        self.of[body] = (sender, key), len(order)
        order.append(body)

    def settle(self, body: bytes, result: SendResult | None, error: BaseException | None) -> None:
        """Its future tells.

        Raises:
            Defect: an error that no user should meet.
        """
        if result is not None:
            self.told[body] = Told((result.queue_id, result.queue_offset))
        elif not isinstance(error, ClientError):
            raise Defect("library", f"sending {body!r}: {error!r}")
        else:
            self.told[body] = Told(is_refused=error.outcome is Outcome.DID_NOT_HAPPEN)

    def doubt(self, body: bytes) -> None:
        """Nobody will say what became of it."""
        self.told[body] = Told()

    def before(self, body: bytes) -> list[bytes]:
        """What its sender has sent of its key before; nothing if it has none."""
        (_, key), at = self.of[body]
        return self.order[self.of[body][0]][:at] if key else []

    def lose(self, prefix: bytes) -> None:
        """The process of which these were is gone."""
        for body, told in self.told.items():
            if told is None and body.startswith(prefix):
                self.told[body] = Told()

    def gone(self, held: Held) -> set[bytes]:
        """What was stored, and went with its queue. Once one has gone, what was stored before its
        place was told may have been there."""
        there = set(held.messages.values())
        places = {body: told.place for body, told in self.told.items() if told and told.place}
        gone = {body for body, at in places.items() if at[1] >= 0 and held.has_gone(at)}
        if gone:
            gone |= {body for body, at in places.items() if at[1] < 0}
        return gone - there

    def check(self, held: Held, *, has_moved: bool = False) -> None:
        """What was promised is so.

        Args:
            held: of the topic.
            has_moved: the topic's queues were changed: a key's messages may be in several.

        Raises:
            Defect: it isn't.
        """
        if not has_moved and (later := {q: at for q, at in held.fronts.items() if at}):
            raise Defect("front", f"nobody changed the queues, and they begin later: {later}")
        times = Counter(held.messages.values())
        where = {body: place for place, body in held.messages.items()}
        gone = self.gone(held)
        for body, told in self.told.items():
            if told is None:
                raise Defect(
                    "unsettled", f"{body!r} was accepted, and nobody says what became of it"
                )
            if times[body] > 1:
                raise Defect("duplicate", f"{body!r} is stored {times[body]} times")
            if told.is_refused and times[body]:
                raise Defect("phantom", f"{body!r} did not happen, and is at {where[body]}")
            if body in gone:
                continue
            if told.place is not None and told.place[1] < 0 and not times[body]:
                raise Defect("lost", f"{body!r} was stored before, and isn't there")
            if told.place is not None and told.place[1] >= 0 and where.get(body) != told.place:
                raise Defect(
                    "lost", f"{body!r} was stored at {told.place}, is at {where.get(body)}"
                )
        unsent = [body for body in times if body not in self.told]
        if unsent:
            raise Defect("phantom", f"nobody has sent {unsent[:3]}")
        for (sender, key), bodies in self.order.items():
            places = [where[body] for body in bodies if body in where]
            queues = [[at for at in places if at[0] == q] for q in {queue for queue, _ in places}]
            is_apart = len(queues) > 1 and not has_moved
            if key and (is_apart or any(each != sorted(each) for each in queues)):
                raise Defect("out of order", f"{sender}, key {key!r}: {places}")


@dataclass(slots=True)
class Handling:
    """A message in an application's hands."""

    process: ClientProcess
    body: bytes
    began_us: int


class Finish(NamedTuple):
    """By whom a message was finished, and when that was heard."""

    program: str
    place: tuple[int, int]
    attempt: int
    at_us: int


@dataclass(slots=True)
class WorkBook:
    """Of one group. `frontier`: up to where the group is through with a queue, as far as any member
    of the broker group has applied.

    Args:
        is_exclusive: a queue is one member's: nobody else works on the same message.
        before: what has to be finished before a message is begun for the first time; None: nothing.
    """

    group: str
    frontier: Callable[[int], int]
    is_exclusive: bool
    before: Callable[[bytes], list[bytes]] | None = None
    done: Counter[bytes] = field(default_factory=Counter)  # finished so often
    finished: dict[bytes, Finish] = field(default_factory=dict)  # the brokers have said so
    begun: Counter[bytes] = field(default_factory=Counter)
    rejected: set[bytes] = field(default_factory=set)  # by a handler
    hands: dict[bytes, list[Handling]] = field(default_factory=dict)
    ahead: dict[bytes, list[bytes]] = field(default_factory=dict)  # begun, and what wasn't by then

    def begin(self, process: ClientProcess, message: Message) -> Handling:
        """It is handed out.

        Raises:
            Defect: it must not be.
        """
        body, place = message.body, f"{message.queue_id}/{message.queue_offset}"
        is_first = message.reconsume_times == 0
        if (
            self.is_exclusive
            and is_first
            and self.frontier(message.queue_id) > message.queue_offset
        ):
            raise Defect(
                "handled again",
                f"{self.group}, {process.name}: {body!r} at {place}, of a queue that is finished "
                f"up to {self.frontier(message.queue_id)}",
            )
        known = self.finished.get(body)
        if known is not None and process.paused_at_us < known.at_us:  # it may have slept since
            raise Defect(
                "handled again",
                f"{self.group}, {process.name}: {body!r} at {place}, was finished by {known}",
            )
        for other in self.hands.get(body, []):
            was_still = max(other.process.paused_at_us, process.paused_at_us) >= other.began_us
            if self.is_exclusive and other.process is not process and other.process.alive:
                if other.process.paused or was_still:
                    continue
                raise Defect(
                    "two at work", f"{self.group}: {body!r}, {other.process.name}, {process.name}"
                )
        if self.before is not None and not self.begun[body]:
            self.ahead[body] = [each for each in self.before(body) if not self.done[each]]
        handling = Handling(process, body, process.now_us)
        self.hands.setdefault(body, []).append(handling)
        self.begun[body] += 1
        return handling

    def end(self, handling: Handling, *, is_done: bool) -> None:
        """The application is through with it, or has failed."""
        self.hands[handling.body].remove(handling)
        self.done[handling.body] += is_done

    def check_order(self, stored: Set[bytes], dead: Set[bytes]) -> None:
        """Nothing of a key was begun ahead of what was before it, but for dead letters.

        Raises:
            Defect: something was.
        """
        for body in stored:
            passed = [each for each in self.ahead.get(body, []) if each in stored]
            if not dead >= set(passed):
                raise Defect("out of order", f"{self.group}: {body!r} was begun before {passed}")

    def check_dead(self, dead: Iterable[DecodedRecord], attempts: int, uncounted: int) -> None:
        """Each dead letter was rejected by a handler, or begun as often as it may be.

        Args:
            attempts: so often.
            uncounted: how many more the log may have counted, of members that vanished.

        Raises:
            Defect: one wasn't.
        """
        for letter in dead:
            is_rejected = letter.properties.get(DEAD_REASON) == REJECTED
            begun = self.begun[letter.body] + (0 if is_rejected else uncounted)
            if begun < attempts and not (is_rejected and letter.body in self.rejected):
                raise Defect(
                    "given up",
                    f"{self.group}: {letter.body!r} is a dead letter, "
                    f"{letter.properties.get(DEAD_REASON)}, and was begun "
                    f"{self.begun[letter.body]} times",
                )

    def missing(self, stored: Iterable[bytes]) -> list[bytes]:
        """What nobody has finished yet."""
        return [body for body in stored if not self.done[body]]
