"""What members in this process say of their files, from warnings on, kept instead of printed.

Most of what they say is of the group's life: streams that end, leaders that change, a loop that was
held. What is of a file names one of the member's, or has a name that speaks of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from chaos.flips.places import QUEUES

LOUD: Final = frozenset({"warning", "error", "critical"})
OF_FILES: Final = re.compile(
    r"rot|repair|wrong|mend|damag|corrupt|unreadable|beyond|snapshot|checkpoint|seal|queue"
)
OF_QUEUES: Final = "consume_queue_"  # `_wrong`, `_mended`
MAX_KEPT: Final = 10_000  # of one flip


@dataclass(slots=True)
class Heard:
    """Events in the order in which they came, from the last `begin` on."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def begin(self) -> None:
        """Nothing was said so far."""
        self.events.clear()

    def of(self, directory: Path, others: Iterable[Path]) -> list[str]:
        """Names of events that may be of the files of the member whose directory that is, and
        aren't of the `others`', which were hit as well."""
        elsewhere = [str(other) for other in others]
        return [
            event["event"]
            for event in self.events
            if (str(directory) in str(event) or OF_FILES.search(event["event"]))
            and not any(other in str(event) for other in elsewhere)
        ]

    def since(self, count: int) -> Heard:
        """What was heard after the first `count` events."""
        return Heard(self.events[count:])

    def of_file(self, file: Path, others: Iterable[Path]) -> list[str]:
        """Names of events that are of that very file, or of the one that it is a copy of; of
        ConsumeQueues, whose events name topics, of any that the `others` may have as well."""
        directory = file.parent
        is_queue = QUEUES in file.parts
        elsewhere = [str(other) for other in others]
        return [
            event["event"]
            for event in self.events
            if (
                str(directory / file.stem) in str(event)
                or (is_queue and event["event"].startswith(OF_QUEUES))
            )
            and not any(other in str(event) for other in elsewhere)
        ]

    def __call__(self, _: Any, name: str, event: MutableMapping[str, Any]) -> NoReturn:
        if name in LOUD and len(self.events) < MAX_KEPT:
            self.events.append(dict(event))
        raise structlog.DropEvent


@contextmanager
def hearing() -> Iterator[Heard]:
    """Within it nothing is printed; what is said is heard."""
    before = structlog.get_config()
    heard = Heard()
    structlog.configure(processors=[heard])
    try:
        yield heard
    finally:
        structlog.configure(**before)
