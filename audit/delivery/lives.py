"""A name that one topic had after the other, by the log: which of them a history speaks of.

Whoever deletes a topic and makes it anew needn't write a history, and histories name topics, not
which of that name. But values are unique within a queue. So what is said of a value is held against
the topic whose log has it, and each of them, a *life* of the name, is judged as a queue of its own
(`audit.delivery.judge`). What no life has is an anomaly if it is one in each; where one excuses it,
the verdict is undecided, never that it was delivered.

    acknowledged    a life has it at that offset      it was there, before or after
                    a life has it elsewhere           moved
                    none has it                       lost, but undecided where retention took that
                                                      place of a life, or its end isn't known
                     - and one's log has a hole there lost: something is, and no unit was refused
                     - more than lives could have     lost, but for so many
    delivered       a life has it at that offset      it was there; order and gaps within a life
                                                      are judged, a former one's rest is not owed
                    none has it there                 phantom, but undecided as above
                    of a former life, behind a later  undecided: a late answer
    sent            to a former life, behind a later  undecided: it was sent again
    in the log      twice in one life                 duplicated
                    in two lives                      undecided: it was sent again
                    sent by nobody                    phantom, but undecided in a life of whose
                                                      queue nobody tells anything: it was others'

A creation that had no effect makes no life, as the log has no end of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from audit.delivery.history import Polled, Process, QueueKey, QueueStory, Sent
from audit.delivery.judge import Anomaly, Kind, LoggedQueue, judge_queue
from dledger.history import Outcome

_NONE: Final = -1  # of the lives


class _Message(NamedTuple):
    """One message, as a client was told of it."""

    offset: int | None
    value: str
    process: Process

    def anomaly(self, kind: Kind, key: QueueKey, detail: str) -> Anomaly:
        return Anomaly(kind, *key, self.offset, self.value, self.process[1], detail)


class _Span(NamedTuple):
    """A life, and where it begins and ends, which asks for all its messages."""

    life: LoggedQueue
    start: int
    end: int


def judge_lives(key: QueueKey, log: LoggedQueue, story: QueueStory) -> Iterator[Anomaly]:
    """Every anomaly of one queue whose topic's name others had before."""
    lives = log.lives
    yield from _check_missing(key, lives, story)
    yield from _check_sent_again(key, lives, story)
    parts = [QueueStory() for _ in lives]
    _part_sends(lives, story, parts)
    yield from _part_polls(key, lives, story, parts)
    for life, part in zip(lives, parts, strict=True):
        is_told = bool(part.sends) or any(poll.messages for poll in part.polls)
        for anomaly in judge_queue(key, life, part):
            is_others = anomaly.kind is Kind.PHANTOM and not is_told
            yield replace(anomaly, kind=Kind.UNDECIDED) if is_others else anomaly


def compared_in_lives(log: LoggedQueue, story: QueueStory) -> int:
    """See `compared_messages`: a place that retention took of one life may be that of another."""
    lives = log.lives
    start = max(life.start for life in lives)
    messages = [*_acknowledged(story), *_delivered(story)]
    return sum(
        bool(_having(lives, each.value)) or (each.offset is not None and each.offset >= start)
        for each in messages
    )


def _acknowledged(story: QueueStory) -> Iterator[_Message]:
    for sent in story.sends:
        if sent.outcome is Outcome.OK:
            for at, value in enumerate(sent.values):
                offset = None if sent.offset is None else sent.offset + at
                yield _Message(offset, value, sent.process)


def _delivered(story: QueueStory) -> Iterator[_Message]:
    for poll in story.polls:
        for offset, value in poll.messages:
            yield _Message(offset, value, poll.process)


def _having(lives: Sequence[LoggedQueue], value: str) -> list[int]:
    return [number for number, life in enumerate(lives) if life.has(value)]


def _having_at(lives: Sequence[LoggedQueue], offset: int, value: str) -> list[int]:
    return [number for number in _having(lives, value) if offset in lives[number].places_of(value)]


# --- what no life has --------------------------------------------------------------------------


def _check_missing(
    key: QueueKey, lives: Sequence[LoggedQueue], story: QueueStory
) -> Iterator[Anomaly]:
    """lost, phantom, undecided."""
    told: Counter[int | None] = Counter()
    spans = [_Span(life, life.start, life.end) for life in lives]
    for each in _acknowledged(story):
        if _having(lives, each.value):
            continue
        excuses = _excuses(spans, each.offset)
        has_hole = each.offset is not None and any(_has_hole(span, each.offset) for span in spans)
        told[each.offset] += 1
        is_surplus = each.offset is not None and told[each.offset] > excuses
        kind = Kind.LOST if has_hole or is_surplus or not excuses else Kind.UNDECIDED
        where = "" if each.offset is None else f" at {each.offset}"
        yield each.anomaly(kind, key, f"acknowledged{where}, no topic of that name has it")
    for each in _delivered(story):
        assert each.offset is not None
        if not _having_at(lives, each.offset, each.value):
            kind = Kind.UNDECIDED if _excuses(spans, each.offset) else Kind.PHANTOM
            detail = f"delivered at {each.offset}, where no topic of that name has it"
            yield each.anomaly(kind, key, detail)


def _excuses(spans: Sequence[_Span], offset: int | None) -> int:
    """How many lives may have had a message there that isn't in the log that is left, or read."""
    if offset is None:
        return sum(start > 0 or not life.tail_is_known for life, start, _ in spans)
    return sum(
        offset < start or (offset >= end and not life.tail_is_known) for life, start, end in spans
    )


def _has_hole(span: _Span, offset: int) -> bool:
    """Whether something has got lost there, whatever it was."""
    life, _, end = span
    is_within = life.first is not None and life.first <= offset < end
    return is_within and offset not in life.values and not life.has_voids


# --- from one life to another ------------------------------------------------------------------


def _check_sent_again(
    key: QueueKey, lives: Sequence[LoggedQueue], story: QueueStory
) -> Iterator[Anomaly]:
    """undecided: what was sent to one life may be stored in another one, if the first answer didn't
    come."""
    last: dict[Process, int] = {}
    for sent in story.sends:
        if sent.outcome is Outcome.FAIL:
            continue
        for value in sent.values:
            having = _having(lives, value)
            if not having:
                continue
            here = _Message(lives[having[-1]].places[value], value, sent.process)
            if len(having) > 1:
                detail = f"in the logs of {len(having)} topics of that name"
                yield here.anomaly(Kind.UNDECIDED, key, detail)
                continue
            if having[0] < last.get(sent.process, _NONE):
                detail = (
                    "it lies in a former topic of that name, behind one sent earlier to a later"
                )
                yield here.anomaly(Kind.UNDECIDED, key, detail)
            last[sent.process] = having[0]


def _part_sends(
    lives: Sequence[LoggedQueue], story: QueueStory, parts: Sequence[QueueStory]
) -> None:
    """Each life is told of what its log has."""
    for sent in story.sends:
        for at, value in enumerate(sent.values):
            offset = None if sent.offset is None else sent.offset + at
            having = _having(lives, value)
            there = [] if offset is None else _having_at(lives, offset, value)
            for number in having:
                part = Sent(sent.process, (value,), sent.outcome, offset)
                if sent.outcome is Outcome.OK and number != (there or having)[-1]:
                    part = Sent(sent.process, (value,))  # It was another one that was acknowledged.
                parts[number].sends.append(part)


def _part_polls(
    key: QueueKey, lives: Sequence[LoggedQueue], story: QueueStory, parts: Sequence[QueueStory]
) -> Iterator[Anomaly]:
    """Each life is told of what consumers got of it; undecided: they got something of a former one
    behind that, or from before an offset that may have been meant for another one."""
    at: dict[Process, int] = {}  # the life that a consumer is at
    for poll in story.polls:
        before = at.get(poll.process, _NONE)
        here = before
        numbers: list[int] = []
        for offset, value in poll.messages:
            number = _life_at(_having_at(lives, offset, value), here)
            numbers.append(number)
            if number != _NONE:
                if number < here:
                    told = _Message(offset, value, poll.process)
                    detail = f"delivered at {offset} of a former topic of that name, behind a later"
                    yield told.anomaly(Kind.UNDECIDED, key, detail)
                here = number
        asked = poll.asked
        if numbers and asked is not None and numbers[0] != before and poll.messages[0][0] < asked:
            told = _Message(*poll.messages[0], poll.process)
            detail = f"delivered at {told.offset}, {asked} was asked for, of any topic of that name"
            yield told.anomaly(Kind.UNDECIDED, key, detail)
            asked = None
        if here != _NONE:
            at[poll.process] = here
        # One that brought nothing of a life says something there only if what follows may be behind
        # what it passed over.
        goes_on = not (poll.is_seek or poll.is_filtered or _NONE in numbers)
        for number in set(numbers) if goes_on else range(len(parts)):
            parts[number].polls.append(_part_of(replace(poll, asked=asked), numbers, number))


def _life_at(having: Sequence[int], here: int) -> int:
    """The one of these lives that a consumer got a message of that is at life `here`."""
    later = [number for number in having if number >= here]
    return min(later, default=max(having, default=_NONE))


def _part_of(poll: Polled, numbers: Sequence[int], number: int) -> Polled:
    """What a poll brought of one life. What none has is told already, and no gap in this one."""
    messages = zip(poll.messages, numbers, strict=True)
    is_first = numbers[:1] == [number]
    return Polled(
        poll.process,
        poll.is_seek,
        poll.asked if is_first else None,
        poll.is_filtered or _NONE in numbers,
        tuple(message for message, of in messages if of == number),
    )
