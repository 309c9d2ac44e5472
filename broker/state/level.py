"""The level: which formats and commands are in use (ADR 23).

This owns one number. It never falls, and grows one step at a time, by a command. Which level a
command is of stands here as well, as a table: one above the level in use is void on every replica.

    state      on                     becomes
    level n    raise to n + 1         level n + 1
    level n    raise to another one   unchanged      (refused: LevelNotNext)

Whether this program knows what it is raised to is not replicated: the machine asks, and stops.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from broker.state.errors import SnapshotUnknown
from broker.state.refusals import LevelNotNext
from broker.state.snapshot import Section, pack, single_record
from dledger.core.errors import InvariantViolation
from dledger.level import (
    COMPOUND_LEVEL,
    DELIVERY_LEVEL,
    FIRST_LEVEL,
    GROUPS_LEVEL,
    LOG_START_LEVEL,
    TOPIC_RETENTION_LEVEL,
    TOPIC_RULES_LEVEL,
)
from dledger.records.state_layout import LEVEL, LEVEL_SECTION, LEVEL_VERSION

SECTION: Final = LEVEL
VERSION: Final = LEVEL_VERSION
_OWN: Final = LEVEL_SECTION.struct()

# By the command's name in `proto/dledger/wire/commands.proto`.
COMMAND_LEVELS: Final = {
    "create_topic": 1,
    "delete_topic": 1,
    "commit_offsets": 1,
    "raise_level": 1,
    "register_producer": 1,
    "forget_producers": 1,
    "move_log_start": LOG_START_LEVEL,
    "retain_topic": TOPIC_RETENTION_LEVEL,
    "move_queue_starts": TOPIC_RETENTION_LEVEL,
    "settle_units": COMPOUND_LEVEL,
    "join_group": GROUPS_LEVEL,
    "end_sessions": GROUPS_LEVEL,
    "grant_leases": GROUPS_LEVEL,
    "commit_leases": GROUPS_LEVEL,
    "forget_groups": GROUPS_LEVEL,
    "move_group": DELIVERY_LEVEL,
    "clone_group": DELIVERY_LEVEL,
    "deliver": DELIVERY_LEVEL,
    "send_back": DELIVERY_LEVEL,
    "fire_delayed": DELIVERY_LEVEL,
    "resend": DELIVERY_LEVEL,
    "fail_message": TOPIC_RULES_LEVEL,
    "bury": TOPIC_RULES_LEVEL,
    "update_topic": TOPIC_RULES_LEVEL,
    "permit_topic": TOPIC_RULES_LEVEL,
    "make_topic": TOPIC_RULES_LEVEL,
}


@dataclass(slots=True)
class Level:
    """The level in use, as of the last applied entry."""

    current: int = field(default=FIRST_LEVEL, init=False)

    def refusal_of(self, wanted: int) -> LevelNotNext | None:
        """Why the level isn't raised to `wanted`; None if it is."""
        return None if wanted == self.current + 1 else LevelNotNext(wanted, self.current)

    def raise_by_one(self) -> None:
        """The next level is in use; `refusal_of` was asked before."""
        self.current += 1

    def snapshot(self) -> Section:
        """The level as it is now."""
        return Section(SECTION, VERSION, pack((_OWN.pack(self.current),)))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """The level becomes the one that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        (self.current,) = single_record(SECTION, payloads, _OWN)

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        if self.current < FIRST_LEVEL:
            raise InvariantViolation(f"level {self.current} is in use")
