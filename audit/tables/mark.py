"""What a table says of itself: which messages it is for, and how far it has them. Values only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from audit.errors import UsageMistake

FORMAT: Final = "dledger-table/1"
FORMAT_KEY: Final = "dledger.format"
GROUP_KEY: Final = "dledger.group"
TOPICS_KEY: Final = "dledger.topics"
DELETED_KEY: Final = "dledger.include-deleted"
POSITION_KEY: Final = "dledger.position"
DIGEST_KEY: Final = "dledger.digest"

# Topic, incarnation, queue id: what offsets are counted in, for ever.
Queue = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages a table is for: of `topics` (None: of all), and whether those of topics that
    had been deleted when they were exported, too."""

    broker_group: str
    topics: frozenset[str] | None
    includes_deleted: bool

    def as_properties(self) -> dict[str, str]:
        """What the table keeps from its first day on."""
        topics = None if self.topics is None else sorted(self.topics)
        return {
            FORMAT_KEY: FORMAT,
            GROUP_KEY: self.broker_group,
            TOPICS_KEY: json.dumps(topics),
            DELETED_KEY: json.dumps(self.includes_deleted),
        }

    def in_words(self) -> str:
        """As the command would be told of it."""
        topics = "all topics" if self.topics is None else ", ".join(sorted(self.topics))
        return f"{topics}{' with deleted ones' * self.includes_deleted}"

    @classmethod
    def of_properties(cls, properties: dict[str, str]) -> Choice | None:
        """What `as_properties` made; None if that isn't there.

        Raises:
            ValueError: it is there and damaged, or a later release's.
        """
        if FORMAT_KEY not in properties:
            return None
        if properties[FORMAT_KEY] != FORMAT:
            raise ValueError(f"format {properties[FORMAT_KEY]!r} is another release's")
        try:
            topics = json.loads(properties[TOPICS_KEY])
            deleted = json.loads(properties[DELETED_KEY])
            group = properties[GROUP_KEY]
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from error
        if not isinstance(deleted, bool) or not (topics is None or _are_words(topics)):
            raise ValueError(f"{TOPICS_KEY} or {DELETED_KEY} is no choice of topics")
        return cls(group, None if topics is None else frozenset(topics), deleted)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a table has the log: every wanted message of entries below the physical offset
    `position`, and none of those behind; `digest` is the log's running digest there."""

    position: int
    digest: int


def check_choice(name: str, choice: Choice, properties: dict[str, str]) -> None:
    """The table was made for this choice.

    Raises:
        UsageMistake: it wasn't.
    """
    try:
        made_for = Choice.of_properties(properties)
    except ValueError as error:
        raise UsageMistake(f"{name} doesn't describe an export: {error}") from error
    if made_for is None:
        raise UsageMistake(f"{name} is a table that no export made")
    if made_for.broker_group != choice.broker_group:
        raise UsageMistake(
            f"{name} holds messages of broker group {made_for.broker_group!r}, not of "
            f"{choice.broker_group!r}"
        )
    if made_for != choice:
        raise UsageMistake(
            f"{name} was begun with {made_for.in_words()}, not {choice.in_words()}; name a table "
            "a choice"
        )


def _are_words(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)
