"""Whose log is wrong is found out below tails that nobody else holds (ADR 44)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.comparing import Comparison, _Found
from broker.verdict import Place, Standing
from dledger.core.types import Configuration, NodeId
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
        own = logs[name]
        around: Any = SimpleNamespace(
            node=name,
            durable=lambda: len(own.terms),
            links=lambda: [each for each in NAMES if each != name],
            term_at=lambda index: own.terms[index - 1],
            configuration=lambda: Configuration(voters(*NAMES)),
        )
        log: Any = SimpleNamespace(
            start=SimpleNamespace(index=0),
            digest_at=lambda index: own.place(index, name).digest,
        )
        super().__init__(log, around, SimpleNamespace())  # type: ignore[arg-type]
        self._logs = logs

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
