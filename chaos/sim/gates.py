"""Which topics of a simulated group are surely closed, as far as its clients know."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Gates:
    """Which topics are surely closed to who sends, each closing by its number; one gatekeeper's."""

    closed: dict[str, int] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)  # an attempt to open them may come late
    closings: int = 0
    has_keeper: bool = False

    def close(self, topic: str) -> None:
        """The log says so, as of an answer that has just come."""
        if topic not in self.doubtful:
            self.closings += 1
            self.closed[topic] = self.closings
