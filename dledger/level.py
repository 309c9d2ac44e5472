"""The level of formats and commands: one number for all that may lie in a log (ADR 23).

Nodes say in their Hello which level they know; the replicated state says which one is in use. What
a release adds to the log belongs to a level above all that were released before.
"""

from __future__ import annotations

from typing import Final

FIRST_LEVEL: Final = 1  # in use from the first entry on
MEMBERS_CHANGE_LEVEL: Final = 2  # configurations that are joint, observers, new members (ADR 41)
LOG_START_LEVEL: Final = 3  # logs that begin later than entry 1 (ADR 43)
TOPIC_RETENTION_LEVEL: Final = 4  # topics that wish for a retention of their own (ADR 48)
COMPOUND_LEVEL: Final = 5  # entries that hold units (ADR 54)
GROUPS_LEVEL: Final = 6  # consumer groups with sessions and leases (ADR 55)
GROUP_EPOCH_LEVEL: Final = 7  # configurations that name the group's epoch (ADR 52)
DELIVERY_LEVEL: Final = 8  # handouts, retries, filters, groups that are moved
TOPIC_RULES_LEVEL: Final = 9  # read and write queues, permissions, attempts that the log counts
KNOWN_LEVEL: Final = 9  # the highest that this program understands
