"""What may be done with each topic: written, read, or both (ADR 62).

This owns the permission of every topic that hasn't the usual one. Writing is judged here, when an
entry is applied: no record that lies in the log behind a permission without it is ever a message,
whoever proposed it and whatever that leader knew. Reading is no entry, and is asked by whoever
reads. The brokers' own topics can't be named by the command, and so are always written and read.

    state                 on                     becomes
    written and read      permit r, or w         read only, or written only
    read or written only  permit another one     that one; the usual one is forgotten
    any                   permit anything else   unchanged      (refused: PermissionUnknown)
    any                   batch, not written     unchanged      (refused: TopicNotWritable)
    any                   the topic is deleted   nothing is known of it

Keyed by the topic's incarnation. Bounds: those of topics. A state in which every topic is as usual
has no section in its snapshots, which so are those of the releases before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import TOPIC_PERMISSIONS_SECTION
from broker.state.refusals import PermissionUnknown, TopicNotWritable
from broker.state.snapshot import PayloadReader, Section, pack
from broker.state.topics import TopicState
from dledger.core.errors import InvariantViolation

SECTION: Final = "topic-permissions"
VERSION: Final = 1
_OWN: Final = TOPIC_PERMISSIONS_SECTION.struct()


class Permission(IntFlag):
    """What may be done with a topic. Source: RocketMQ's PermName, the bits of its route data."""

    WRITE = 2
    READ = 4


USUAL: Final = Permission.READ | Permission.WRITE
KNOWN: Final = frozenset({USUAL, Permission.READ, Permission.WRITE})


@dataclass(slots=True)
class TopicPermissions:
    """As of the last applied entry."""

    _topics: dict[int, Permission] = field(default_factory=dict, init=False)

    # --- reading ------------------------------------------------------------------------------

    def of(self, incarnation: int) -> Permission:
        """What may be done with the topic."""
        return self._topics.get(incarnation, USUAL)

    def is_writable(self, incarnation: int) -> bool:
        """Whether messages may be sent to it."""
        return not self._topics or Permission.WRITE in self.of(incarnation)

    def is_readable(self, incarnation: int) -> bool:
        """Whether its messages may be read."""
        return not self._topics or Permission.READ in self.of(incarnation)

    def unreadable(self) -> Iterator[int]:
        """The topics, by incarnation, whose messages may not be read."""
        return (each for each, allowed in self._topics.items() if Permission.READ not in allowed)

    def refusal_of(self, topic: TopicState) -> TopicNotWritable | None:
        """Why records for the topic are no messages; None if they may be."""
        return None if self.is_writable(topic.incarnation) else TopicNotWritable(topic.name)

    # --- transitions --------------------------------------------------------------------------

    def permit(self, incarnation: int, wanted: int) -> PermissionUnknown | None:
        """This and nothing else may be done with the topic; or why it isn't so."""
        if wanted not in KNOWN:
            return PermissionUnknown(wanted)
        if wanted == USUAL:
            self._topics.pop(incarnation, None)
        else:
            self._topics[incarnation] = Permission(wanted)
        return None

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of it."""
        self._topics.pop(incarnation, None)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The permissions as they are now, whatever is applied while the payloads are taken; no
        section where all are as usual."""
        if not self._topics:
            return ()
        held = sorted(self._topics.items())
        return (Section(SECTION, VERSION, pack(_OWN.pack(*each) for each in held)),)

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """They become what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        last = 0
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                incarnation, permission = reader.take(_OWN)
                if incarnation <= last or permission not in KNOWN or permission == USUAL:
                    what = f"{SECTION}: {incarnation}"
                    raise SnapshotDamaged(what, "a topic behind the last, not as usual", permission)
                last = incarnation
                self._topics[incarnation] = Permission(permission)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, incarnations: Collection[int]) -> None:
        """Args:
            incarnations: of the topics that there are.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        for incarnation, permission in self._topics.items():
            if incarnation not in incarnations:
                raise InvariantViolation(f"topic {incarnation}, which is gone, has {permission!r}")
            if permission not in KNOWN or permission == USUAL:
                raise InvariantViolation(f"topic {incarnation} has {permission!r}")
