"""Up to where a queue is handed out to a group that reads in order: a key that has moved here waits
until its old queue is read to where it moved (ADR 60).

This owns no state: what holds back is derived from the log's (`broker.state.queue_numbers`), from
how far the group is, and from what can still be read. Whoever hands out asks before each read, and
reads no further: what is applied between the two isn't handed out by that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from broker.state.machine import StateMachine
from broker.state.queue_numbers import held_from, open_ends
from broker.state.topics import TopicRef, TopicState

KEPT_AT_ONCE: Final = 1_024  # answers, of groups in topics that were changed

_Key = tuple[str, int]  # group, the topic's incarnation
_Held = Mapping[int, int]


class Bounds(Protocol):
    """`broker.reading.queues.QueueReader`, as far as it is used here."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]: ...


class HeldBack:
    """Asked for one node's state."""

    def __init__(self, state: StateMachine, reader: Bounds) -> None:
        self._state = state
        self._reader = reader
        # For many queues of one pull the same: as of which entry, and what was found.
        self._found: dict[_Key, tuple[int, _Held]] = {}

    def end_of(self, group: str, topic: TopicState, queue_id: int) -> int:
        """Up to where the queue is handed out now; where nothing holds it back, to its end."""
        end = topic.next_offsets[queue_id]
        if not self._state.queue_numbers.changed(topic.incarnation):
            return end
        return min(end, self._held(group, topic).get(queue_id, end))

    def freed(self, group: str, topics: Iterable[TopicState]) -> Callable[[], bool] | None:
        """Whether, since this was asked, the group has finished one of the queues of these topics
        that others wait for, as far as they do; None: none waits for any. To be asked after each
        entry, at the price of a look at what the group has committed in each; it stays so.

        What retention has taken from such a queue is finished as well, and tells nobody: whoever
        waits looks again now and then (`broker.reading.held`).
        """
        offsets = self._state.offsets
        watched = [
            (topic.name, ends)
            for topic in topics
            if self._state.queue_numbers.changed(topic.incarnation)
            and (ends := self._open_ends(group, topic))
        ]
        if not watched:
            return None
        seen = [offsets.of(group, name) for name, _ in watched]
        is_finished = False

        def is_one_finished() -> bool:
            nonlocal is_finished
            for at, (name, ends) in enumerate(watched):
                known = offsets.of(group, name)
                if known is seen[at]:
                    continue
                seen[at] = known
                if any(known.get(queue_id, 0) >= end for queue_id, end in ends):
                    is_finished = True
            return is_finished

        return is_one_finished

    def _open_ends(self, group: str, topic: TopicState) -> list[tuple[int, int]]:
        numbers = self._state.queue_numbers.of(topic.incarnation, len(topic.next_offsets))
        return open_ends(numbers, self._done(group, topic))

    def _held(self, group: str, topic: TopicState) -> _Held:
        key, applied = (group, topic.incarnation), self._state.applied_index
        before = self._found.get(key)
        if before is not None and before[0] == applied:
            return before[1]
        count = len(topic.next_offsets)
        numbers = self._state.queue_numbers.of(topic.incarnation, count)
        held = held_from(numbers, count, self._done(group, topic))
        if len(self._found) >= KEPT_AT_ONCE:
            self._found.clear()
        self._found[key] = applied, held
        return held

    def _done(self, group: str, topic: TopicState) -> Callable[[int], int]:
        known = self._state.offsets.of(group, topic.name)
        ref = TopicRef(topic.name, topic.incarnation)

        def done(queue_id: int) -> int:
            low, _ = self._reader.bounds(ref, queue_id)
            return max(low, known.get(queue_id, 0))

        return done
