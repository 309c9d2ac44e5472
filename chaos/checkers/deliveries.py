"""What a consumer group's members did with messages, checked against what the log holds. Pure.

    forgotten             stored, and the group got past it without anybody being done with it
    handled-unsent        handled, and not in the log
    handled-after-commit  begun after the group's committed offset, as somebody had been told, had
                          passed it, though it had been done and had never failed
    handled-again         begun again, though it had been done and had never failed, and nothing had
                          come between its being done and its being committed (see `Troubles`)
    side-by-side          in order: a second message of the queue begun while one was at work
    out-of-turn           in order: begun before the one in front of it was done
    handled-after-ack     one by one: asked for after the brokers had taken its acknowledgement
    given-while-hidden    one by one: given to two while it was hidden from all but one

That a message is handled twice may be: a member that dies has done what it hadn't committed, and
the next one does it again. These are counted, by what was the matter. Of single messages nothing
more is asked: whoever doesn't acknowledge in time has to expect it.

Moments are those of one machine's monotonic clock, so they compare between processes. A member that
was paused (SIGSTOP) is excused for what it had begun, or was about to begin: nothing can stop a
process between two of its instructions, and nobody promises that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from chaos.checkers.anomalies import Anomaly

ABOUT_TO_US: Final = 100_000  # after a pause: what was taken before it is begun by then
COMMITTED_WITHIN_US: Final = 3_000_000  # what is done, by a member that nothing hinders
RECOVERED_WITHIN_US: Final = 3_000_000  # after a fault: commits go through again
SHOWN: Final = 20  # anomalies of one kind in one group; one more stands for the others


class Place(NamedTuple):
    """Where a message is stored."""

    queue_id: int
    offset: int


class Style(StrEnum):
    """How a group is used: by leases on queues, in order or not, or one message at a time."""

    ANY_ORDER = "any order"
    IN_ORDER = "in order"
    SINGLY = "singly"


class How(StrEnum):
    """What became of a message in a handler; open: its process didn't live to tell."""

    DONE = "done"
    FAILED = "failed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Handling:
    """One call of a handler. `member`: its process; an open one ends where it begins. Of a single
    message: when it was asked for, and when its acknowledgement was answered, if it was."""

    member: str
    value: str
    begun_us: int
    ended_us: int
    how: How
    asked_us: int | None = None
    settled_us: int | None = None


class Told(NamedTuple):
    """Somebody was told at `at_us`: the group has committed the queue up to `offset`."""

    at_us: int
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Troubles:
    """What may come between a message's being done and its being committed.

    A member commits a few times a second. If it lives on for `COMMITTED_WITHIN_US` after it has
    done a message, isn't stopped, and no fault is on at the nodes, nobody handles that again.

    Attributes:
        nodes: from when to when faults were on at nodes or their links.
        ends: when members' processes were killed or asked to end.
        hidden_us: for so long a single message is hidden from others at the least; 0: nobody knows,
            as clocks were changed.
    """

    nodes: Sequence[tuple[int, int]] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    hidden_us: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """All that is known of one consumer group.

    Attributes:
        pauses: by member's process, from when to when it stood still.
    """

    name: str
    style: Style
    handlings: Sequence[Handling]
    told: Sequence[Told]
    pauses: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    troubles: Troubles = field(default_factory=Troubles)

    def was_still(self, member: str, start_us: int, end_us: int) -> bool:
        """Whether a pause of the member reaches into that time."""
        return any(a <= end_us and start_us <= b for a, b in self.pauses.get(member, ()))


@dataclass(frozen=True, slots=True)
class Counts:
    """Over all messages of a group. `again`: handlings begun after the message had been done; of
    them, by what was the matter with whoever had done it: its process ended, it was paused, faults
    were on at nodes. What is left is an anomaly, or had failed before, or wasn't acknowledged."""

    handled: int
    done: int
    failed: int
    again: int
    again_after_ends: int
    again_after_pauses: int
    again_beside_faults: int


def find_delivery_anomalies(group: Group, stored: Mapping[str, Place]) -> list[Anomaly]:
    """What must not be; `stored` is all that the log holds, by value."""
    handlings = sorted(group.handlings, key=lambda each: each.begun_us)
    found = [
        *_bounded(_forgotten(group, handlings, stored)),
        *_bounded(_unsent(group, handlings, stored)),
        *_bounded(_after_commit(group, handlings, stored)),
    ]
    if group.style is Style.SINGLY:
        found += _bounded(_after_acknowledgement(group, handlings, stored))
        found += _bounded(_given_while_hidden(group, handlings, stored))
    else:
        found += _bounded(_unprovoked(group, handlings, stored))
    if group.style is Style.IN_ORDER:
        found += _bounded(_side_by_side(group, handlings, stored))
        found += _bounded(_out_of_turn(group, handlings, stored))
    return found


def without_evidence(group: Group) -> list[str]:
    """Rules that had nothing to go by in a group whose members were at work, with the reason: that
    they found nothing says nothing."""
    last_us = max((each.begun_us for each in group.handlings), default=None)
    if last_us is None:
        return []
    found = []
    if not any(told.offset and told.at_us < last_us for told in group.told):
        found.append("handled-after-commit: nobody was told of a commit while members were at work")
    if group.style is Style.SINGLY:
        if not any(each.settled_us is not None for each in group.handlings):
            found.append("handled-after-ack: no acknowledgement was answered")
        if not group.troubles.hidden_us:
            found.append("given-while-hidden: clocks were changed")
    return found


def count(group: Group) -> Counts:
    """How often."""
    done: set[str] = set()
    for each in group.handlings:
        if each.how is How.DONE:
            done.add(each.value)
    causes = Counter(_cause(group, first, again) for first, again in _repeats(group.handlings))
    failed = sum(each.how is How.FAILED for each in group.handlings)
    return Counts(
        len(group.handlings),
        len(done),
        failed,
        causes.total(),
        causes[_Cause.END],
        causes[_Cause.PAUSE],
        causes[_Cause.NODES],
    )


def takeover_us(
    group: Group, stored: Mapping[str, Place], member: str, died_us: int, within_us: int
) -> int | None:
    """From a member's death until the last of its queues was worked on by another one; None: it
    had worked on none lately, or one of them was worked on by nobody within that time."""
    queues = {
        stored[each.value].queue_id
        for each in group.handlings
        if each.member == member
        and died_us - within_us <= each.begun_us <= died_us
        and each.value in stored
    }
    first: dict[int, int] = {}
    for each in group.handlings:
        if each.member != member and died_us < each.begun_us <= died_us + within_us:
            place = stored.get(each.value)
            if place is not None and place.queue_id in queues:
                first[place.queue_id] = min(first.get(place.queue_id, each.begun_us), each.begun_us)
    if not queues or len(first) < len(queues):
        return None
    return max(first.values()) - died_us


def _bounded(found: Iterable[Anomaly]) -> Iterator[Anomaly]:
    """The first ones, and one that says how many more there are."""
    more, last = 0, None
    for number, anomaly in enumerate(found):
        if number < SHOWN:
            yield anomaly
        else:
            more, last = more + 1, anomaly
    if last is not None:
        yield replace(last, detail=f"the last of {more:,} more: {last.detail}", count=more)


def _forgotten(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    """What lies behind where the group had come in the end isn't: a group that isn't through is a
    problem by itself. In a queue in which nobody was told where it is, everything counts."""
    done = {each.value for each in handlings if each.how is How.DONE}
    come: dict[int, int] = {}
    for told in group.told:
        come[told.queue_id] = max(told.offset, come.get(told.queue_id, 0))
    for value, place in sorted(stored.items(), key=lambda item: item[1]):
        if value not in done and place.offset < come.get(place.queue_id, place.offset + 1):
            yield _anomaly(group, "forgotten", place, f"{value} was done by nobody")


def _unsent(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    for each in handlings:
        if each.value not in stored:
            detail = f"{each.member} was given {each.value}, which the log doesn't hold"
            yield Anomaly("handled-unsent", group.name, detail)


def _after_commit(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    """Of messages that never failed: those that did move to queues of their own."""
    passed = _Passed(group.told)
    failed = {each.value for each in handlings if each.how is How.FAILED}
    done: dict[str, int] = {}
    for each in handlings:
        place, was_done = stored.get(each.value), done.get(each.value)
        if place is not None and was_done is not None and each.value not in failed:
            known_us = passed.when(place)
            still = group.was_still(each.member, each.begun_us - ABOUT_TO_US, each.begun_us)
            if known_us is not None and was_done < each.begun_us > known_us and not still:
                detail = (
                    f"{each.member} began with {each.value} "
                    f"{(each.begun_us - known_us) / 1000:,.1f} ms after it was known as committed"
                )
                yield _anomaly(group, "handled-after-commit", place, detail)
        if each.how is How.DONE and was_done is None:
            done[each.value] = each.ended_us


class _Cause(StrEnum):
    """Why a message that had been done was handled again."""

    END = "its process ended"
    PAUSE = "its process stood still"
    NODES = "a fault was on"
    NONE = "nothing"


def _repeats(handlings: Iterable[Handling]) -> Iterator[tuple[Handling, Handling]]:
    """Handlings of what had been done, each beside the first that had done it."""
    done: dict[str, Handling] = {}
    for each in sorted(handlings, key=lambda each: each.begun_us):
        first = done.get(each.value)
        if first is not None and first.ended_us < each.begun_us:
            yield first, each
        if each.how is How.DONE and (first is None or each.ended_us < first.ended_us):
            done[each.value] = each


def _cause(group: Group, first: Handling, again: Handling) -> _Cause:
    """What came between a message's being done and its being committed."""
    done_us = first.ended_us
    known_us = done_us + COMMITTED_WITHIN_US
    ended_us = group.troubles.ends.get(first.member)
    if ended_us is not None and ended_us <= known_us:
        return _Cause.END
    if group.was_still(first.member, done_us - RECOVERED_WITHIN_US, known_us):
        return _Cause.PAUSE
    until_us = min(known_us, again.begun_us)
    for began_us, healed_us in group.troubles.nodes:
        if began_us <= until_us and done_us <= healed_us + RECOVERED_WITHIN_US:
            return _Cause.NODES
    return _Cause.NONE


def _unprovoked(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    """Of messages that never failed: those that did are given by other queues, and their way there
    may have been in doubt at any time before."""
    failed = {each.value for each in handlings if each.how is How.FAILED}
    for first, again in _repeats(handlings):
        place = stored.get(again.value)
        is_clear = _cause(group, first, again) is _Cause.NONE
        if place is not None and again.value not in failed and is_clear:
            after_ms = (again.begun_us - first.ended_us) / 1000
            detail = (
                f"{again.member} began with {again.value} {after_ms:,.1f} ms after {first.member} "
                "had done it, which wasn't hindered"
            )
            yield _anomaly(group, "handled-again", place, detail)


def _after_acknowledgement(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    settled: dict[str, int] = {}
    for each in handlings:
        if each.settled_us is not None:
            settled[each.value] = min(each.settled_us, settled.get(each.value, each.settled_us))
    for each in handlings:
        place, known_us = stored.get(each.value), settled.get(each.value)
        if place is None or known_us is None or each.asked_us is None:
            continue
        if each.asked_us > known_us:
            detail = (
                f"{each.member} was given {each.value}, and had asked "
                f"{(each.asked_us - known_us) / 1000:,.1f} ms after it was acknowledged"
            )
            yield _anomaly(group, "handled-after-ack", place, detail)


def _given_while_hidden(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    """Two that have it within less than it is hidden for after the first of them had asked. Whoever
    has failed gives it back."""
    latest: dict[str, Handling] = {}
    for each in handlings:
        before, place = latest.get(each.value), stored.get(each.value)
        latest[each.value] = each
        if before is None or place is None or before.asked_us is None or each.asked_us is None:
            continue
        asked_us = min(before.asked_us, each.asked_us)
        is_back = before.how is How.FAILED and before.ended_us <= each.begun_us
        if each.begun_us < asked_us + group.troubles.hidden_us and not is_back:
            detail = (
                f"{each.member} has {each.value} {(each.begun_us - asked_us) / 1000:,.1f} ms after "
                f"{before.member} had asked for it"
            )
            yield _anomaly(group, "given-while-hidden", place, detail)


class _Passed:
    """When a place was first known as committed."""

    def __init__(self, told: Iterable[Told]) -> None:
        self._offsets: dict[int, list[int]] = defaultdict(list)  # ascending
        self._at_us: dict[int, list[int]] = defaultdict(list)
        for at_us, queue_id, offset in sorted(told):
            if not self._offsets[queue_id] or offset > self._offsets[queue_id][-1]:
                self._offsets[queue_id].append(offset)
                self._at_us[queue_id].append(at_us)

    def when(self, place: Place) -> int | None:
        """None: never."""
        at = bisect_left(self._offsets[place.queue_id], place.offset + 1)
        moments = self._at_us[place.queue_id]
        return moments[at] if at < len(moments) else None


def _side_by_side(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    latest: dict[int, Handling] = {}
    for each in handlings:
        place = stored.get(each.value)
        if place is None:
            continue
        before = latest.get(place.queue_id)
        if before is not None and each.begun_us < before.ended_us:
            still = group.was_still(before.member, before.begun_us, before.ended_us)
            about = group.was_still(each.member, each.begun_us - ABOUT_TO_US, each.begun_us)
            if not still and not about:
                detail = (
                    f"{each.member} began with {each.value} while {before.member} was at "
                    f"{before.value}"
                )
                yield _anomaly(group, "side-by-side", place, detail)
        if before is None or each.ended_us >= before.ended_us:
            latest[place.queue_id] = each


def _out_of_turn(
    group: Group, handlings: Sequence[Handling], stored: Mapping[str, Place]
) -> Iterator[Anomaly]:
    """The first time that a message is begun with, the one in front of it has been done."""
    in_front: dict[str, str] = {}
    last: dict[int, str] = {}
    for value, place in sorted(stored.items(), key=lambda item: item[1]):
        if place.queue_id in last:
            in_front[value] = last[place.queue_id]
        last[place.queue_id] = value
    done: dict[str, int] = {}
    for each in handlings:
        if each.how is How.DONE:
            done[each.value] = min(each.ended_us, done.get(each.value, each.ended_us))
    for each in handlings:
        before = in_front.get(each.value)
        if before is not None and done.get(before, each.begun_us + 1) > each.begun_us:
            detail = f"{each.member} began with {each.value} before {before} was done"
            yield _anomaly(group, "out-of-turn", stored[each.value], detail)


def _anomaly(group: Group, name: str, place: Place, detail: str) -> Anomaly:
    return Anomaly(name, f"{group.name}, queue {place.queue_id} offset {place.offset}", detail)
