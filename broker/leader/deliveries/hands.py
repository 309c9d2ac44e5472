"""In whose hand each message of a queue is, while one command settles many of them, and what some
attempts were given before; and parts of what is in a hand.

Handouts lie in the order of their entries, so who has an offset is found by looking at all of them:
thousands, and once for each settlement that isn't so any more. This looks at all of them once, in
turns, and afterwards at those near an offset. It is one command's: nobody else changes the queue
meanwhile, and what the command settles it is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from broker.state.handouts import SPAN, Draft, Handout, shifted
from dledger.ports import Turns

STEP: Final = 64  # handouts between two looks at the time


class _Hand(NamedTuple):
    """Messages that one entry gave or put back: `mask` from `base` on."""

    entry: int
    base: int
    mask: int


class Hands:
    """Of one queue."""

    def __init__(self) -> None:
        self._near: dict[int, list[_Hand]] = {}  # by base, in spans

    @classmethod
    async def of(cls, handouts: Iterable[Handout], turns: Turns) -> Hands:
        """As they are; nobody changes them before this returns."""
        hands, is_enough = cls(), turns.share()
        for at, each in enumerate(handouts):
            hands._put(_Hand(each.index, each.base, each.mask))
            if not at % STEP and is_enough():
                await turns.pause()
                is_enough = turns.share()
        return hands

    def held(self, entry: int, base: int, mask: int) -> tuple[int, int]:
        """Which of these messages are in the entry's hand, and which in others', as bits."""
        mine = others = 0
        for span in _spans(base):
            for each in self._near.get(span, ()):
                bits = shifted(each.mask, each.base - base) & mask
                if each.entry == entry:
                    mine |= bits
                else:
                    others |= bits
        return mine, others

    def move(self, entry: int, base: int, mask: int, to: int) -> None:
        """These messages aren't in the entry's hand any more, but in that of entry `to`; 0: in
        nobody's."""
        for span in _spans(base):
            near = self._near.get(span)
            if near:
                left = (
                    _without(each, base, mask) if each.entry == entry else each for each in near
                )
                self._near[span] = [each for each in left if each.mask]
        if to:
            self._put(_Hand(to, base, mask))

    def _put(self, hand: _Hand) -> None:
        self._near.setdefault(hand.base // SPAN, []).append(hand)


async def given_before(
    drafts: Mapping[int, Draft], attempts: Collection[bytes], turns: Turns
) -> dict[bytes, dict[int, list[int]]]:
    """The entries that gave each of these attempts something that isn't finished, by queue;
    attempts that have nothing aren't in there. All hands are looked at once for all of them, and in
    turns; nobody changes them before this returns."""
    found: dict[bytes, dict[int, list[int]]] = {}
    is_enough = turns.share()
    for queue_id, draft in drafts.items():
        for page in draft.pages:
            for each in page.given_to(attempts):
                entries = found.setdefault(each.attempt_id, {}).setdefault(queue_id, [])
                if each.index not in entries[-1:]:
                    entries.append(each.index)
            if is_enough():
                await turns.pause()
                is_enough = turns.share()
    return found


def runs(handout: Handout) -> list[tuple[int, int]]:
    """The unfinished offsets, as (first, count) of those that follow each other."""
    found: list[tuple[int, int]] = []
    for offset in handout.offsets():
        if found and sum(found[-1]) == offset:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((offset, 1))
    return found


def onward(handout: Handout, offset: int) -> Handout:
    """That of the handout which lies from the offset on."""
    by = offset - handout.base
    return handout._replace(mask=handout.mask >> by << by)


def in_order(handouts: Iterable[Handout]) -> list[Handout]:
    """Each run of them by itself, the lowest first: they may lie between each other."""
    parts = [
        each._replace(base=base, mask=(1 << count) - 1)
        for each in handouts
        for base, count in runs(each)
    ]
    return sorted(parts, key=lambda each: each.base)


def latest(given: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Of entries that gave an attempt something, by queue, the last one."""
    last = max(each for entries in given.values() for each in entries)
    return {queue_id: [last] for queue_id, entries in given.items() if last in entries}


def _spans(base: int) -> range:
    """Those in which a hand may begin that has any of `SPAN` messages from there on."""
    return range((base - SPAN + 1) // SPAN, (base + SPAN - 1) // SPAN + 1)


def _without(hand: _Hand, base: int, mask: int) -> _Hand:
    return hand._replace(mask=hand.mask & ~shifted(mask, base - hand.base))
