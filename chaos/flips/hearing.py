"""What members in this process say of themselves, from warnings on, kept instead of printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

LOUD: Final = frozenset({"warning", "error", "critical"})
# Said of the group's life and not of a file.
OF_LIFE: Final = frozenset(
    {
        *("peer_stream_ended", "log_time_stepped", "leadership_not_handed_over", "clock_off"),
        *("peer_refused", "storage_slow", "listens_without_tls"),
    }
)
MAX_KEPT: Final = 10_000


@dataclass(slots=True)
class Heard:
    """Events in the order in which they came."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def since(self, mark: int, others: Iterable[Path]) -> list[str]:
        """Names of events from `mark` on that don't name a file of another member that was hit."""
        names = [str(directory) for directory in others]
        return [
            event["event"]
            for event in self.events[mark:]
            if not any(name in str(event) for name in names)
        ]

    def __call__(self, _: Any, name: str, event: MutableMapping[str, Any]) -> NoReturn:
        if name in LOUD and event["event"] not in OF_LIFE and len(self.events) < MAX_KEPT:
            self.events.append(dict(event))
        raise structlog.DropEvent


@contextmanager
def hearing() -> Iterator[Heard]:
    """Within it nothing is printed; what is said is heard."""
    before: Mapping[str, Any] = structlog.get_config()
    heard = Heard()
    structlog.configure(processors=[heard])
    try:
        yield heard
    finally:
        structlog.configure(**before)
