"""How wrong a majority of the nodes' clocks was made, at worst, in one run.

Stored times follow the clocks of a majority (docs/adr/0026-the-logs-own-clock.md), so that is what
they may be off by. This reckons from the orders alone and looks at no clock. Faults that overlap
add up on a node that has several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.real.scenario import Option


@dataclass(frozen=True, slots=True)
class _Wrong:
    """One fault of clocks that is going on; `by_ms` at once, `per_s_ms` more with each second."""

    victims: tuple[str, ...]
    by_ms: float
    per_s_ms: float
    since_us: int


@dataclass(slots=True)
class WrongClocks:
    """The clocks of one run."""

    nodes: Sequence[str]
    worst_ms: float = 0.0  # a majority's, up to now
    _open: dict[str, _Wrong] = field(default_factory=dict)

    def begin(
        self,
        label: str,
        nemesis: str,
        victims: tuple[str, ...],
        options: Mapping[str, Option],
        now_us: int,
    ) -> None:
        """The fault `nemesis` of `victims` goes on from now on, if it is one of clocks."""
        if nemesis in ("clock-step", "clock-strobe"):
            wrong = _Wrong(victims, abs(float(options["offset_ms"])), 0.0, now_us)
        elif nemesis == "clock-drift":
            wrong = _Wrong(victims, 0.0, abs(float(options["rate"]) - 1.0) * 1_000, now_us)
        else:
            return
        self._open[label] = wrong
        self._note(now_us)

    def end(self, label: str, now_us: int) -> None:
        """The fault of that label is over."""
        self._note(now_us)
        self._open.pop(label, None)

    def _note(self, now_us: int) -> None:
        wrong_ms = sorted((self._wrong_ms(node, now_us) for node in self.nodes), reverse=True)
        self.worst_ms = max(self.worst_ms, wrong_ms[len(wrong_ms) // 2])

    def _wrong_ms(self, node: str, now_us: int) -> float:
        return sum(
            wrong.by_ms + wrong.per_s_ms * (now_us - wrong.since_us) / 1e6
            for wrong in self._open.values()
            if node in wrong.victims
        )
