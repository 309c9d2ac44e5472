"""Whose log is wrong is found out below tails that nobody else holds (ADR 44)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.comparing import Comparison, _Found
from broker.verdict import Place, Standing
from dledger.core.errors import UnknownEntry
from dledger.core.types import Configuration, Index, NodeId
from tests.broker.test_verdict import voters

NAMES = tuple(NodeId(name) for name in ("n1", "n2", "n3"))


class Log(NamedTuple):
    """Terms of entries 1, 2, …, and the entry from which its digests are others than the group's;
    0: none. What is behind `shared` entries is its own."""

    terms: tuple[int, ...]
    altered: int = 0
    shared: int = 0

    def place(self, index: int, name: str) -> Place:
        """Digests run: each tells of all before it."""
        digest = hash((self.terms[:index], name if 0 < self.altered <= index else ""))
        return Place(index, self.terms[index - 1], digest)


class Asking(Comparison):
    """One member's, beside logs that answer at once."""

    def __init__(self, name: NodeId, logs: dict[NodeId, Log]) -> None:
        self._logs = logs
        self._name = name
        around: Any = SimpleNamespace(
            node=name,
            durable=lambda: len(self._own.terms),
            links=lambda: [each for each in NAMES if each != name],
            term_at=self._term_at,
            configuration=lambda: Configuration(voters(*NAMES)),
        )
        log: Any = SimpleNamespace(
            start=SimpleNamespace(index=0),
            digest_at=lambda index: self._own.place(index, name).digest,
        )
        super().__init__(log, around, SimpleNamespace())  # type: ignore[arg-type]

    @property
    def _own(self) -> Log:
        return self._logs[self._name]

    def _term_at(self, index: int) -> int:
        """As the core's."""
        if index > len(self._own.terms):
            raise UnknownEntry(Index(index), Index(len(self._own.terms)))
        return self._own.terms[index - 1]

    async def _ask_all(self, peers: Iterable[NodeId], own: Place) -> dict[NodeId, Place]:
        logs = {peer: self._logs[peer] for peer in peers}
        return {peer: log.place(min(own.index, len(log.terms)), peer) for peer, log in logs.items()}

    def round(self, wanted: int) -> _Found | None:
        """What everybody says."""
        return asyncio.run(self._round(wanted))


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[NodeId, Log], int]:
    """Three logs with a committed beginning and tails of their own terms, and where one of them
    is altered."""
    steps = st.lists(st.integers(0, 2), min_size=1, max_size=12)
    committed: list[int] = []
    for step in draw(steps):
        committed.append((committed[-1] if committed else 1) + step)
    logs: dict[NodeId, Log] = {}
    altered = draw(st.integers(1, len(committed)))
    for number, name in enumerate(NAMES):
        tail: list[int] = []
        for step in draw(st.lists(st.integers(0, 1), max_size=8)):
            # A term's entries are one leader's: no two tails share one.
            before = tail[-1] if tail else committed[-1] + 3 * draw(st.integers(0, 2)) + number
            tail.append(before + 3 * step if tail else before + 3)
        logs[name] = Log((*committed, *tail), altered if number == 1 else 0, len(committed))
    if draw(st.booleans()):  # what one leader wrote, and two have
        logs[NAMES[0]] = logs[NAMES[1]]._replace(altered=0)
    return logs, altered


@settings(deadline=None)
@given(groups())
def test_who_is_altered_is_outvoted_wherever_it_is_suspected(
    drawn: tuple[dict[NodeId, Log], int],
) -> None:
    """Also at an entry that a third has another one of; and nobody else ever is."""
    logs, altered = drawn
    for name in NAMES:
        log = logs[name]
        for wanted in range(altered, len(log.terms) + 1):
            found = Asking(name, logs).round(wanted)
            if name == NAMES[1]:
                assert found is not None
                assert found.standing is Standing.OUTVOTED
                assert altered <= found.own.index <= log.shared
            else:
                assert found is None or found.standing is not Standing.OUTVOTED


ONES = (1,) * 10
TAILS = {
    NAMES[0]: Log((*ONES, *(3,) * 6, *(5,) * 4), 0, len(ONES)),
    NAMES[1]: Log((*ONES, *(4,) * 10), 0, len(ONES)),
    NAMES[2]: Log((*ONES, *(2,) * 2, *(6,) * 8), 0, len(ONES)),
}


@settings(deadline=None)
@given(groups(), st.integers(1, 6), st.integers(0, 8), st.integers(1, 3))
@example((TAILS, len(ONES)), 2, 0, 1)
def test_a_log_whose_tail_is_replaced_between_two_questions_stops_nobody(
    drawn: tuple[dict[NodeId, Log], int], question: int, kept: int, entries: int
) -> None:
    """By a new leader's, of a newer term, and maybe by a shorter one; and a sound log is outvoted
    by nobody then."""
    logs, altered = drawn
    newest = max(log.terms[-1] for log in logs.values()) + 1

    class Replaced(Asking):
        questions = 0

        async def _ask_all(self, peers: Iterable[NodeId], own: Place) -> dict[NodeId, Place]:
            told = await super()._ask_all(peers, own)
            self.questions += 1
            if self.questions == question:
                now = self._own
                terms = (*now.terms[: now.shared + kept], *(newest,) * entries)
                self._logs[self._name] = now._replace(terms=terms)
            return told

    for name in NAMES:
        for wanted in range(altered, len(logs[name].terms) + 1):
            found = Replaced(name, dict(logs)).round(wanted)
            if name != NAMES[1] and found is not None:
                assert found.standing is not Standing.OUTVOTED


def test_who_is_silent_is_asked_once_a_round() -> None:
    """A round waits for him once, and not at each place that is compared."""
    asked: list[NodeId] = []

    class Silent(Asking):
        """n3 has answered once, and then no more."""

        async def _ask_all(self, peers: Iterable[NodeId], own: Place) -> dict[NodeId, Place]:
            peers = list(peers)
            asked.extend(peers)
            told = await super()._ask_all(peers, own)
            if asked.count(NAMES[2]) > 1:
                told.pop(NAMES[2], None)
            return told

    tail = tuple(range(20, 60, 2))
    own = Log((1, *tail), 1, 1)
    logs = {NAMES[0]: Log((1, *(each + 1 for each in tail))), NAMES[1]: own}
    logs[NAMES[2]] = Log((1, *tail))
    asyncio.run(Silent(NAMES[1], logs)._round(len(own.terms)))
    assert asked.count(NAMES[2]) <= 2
