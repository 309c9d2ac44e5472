"""Why a command or a batch took no effect: what its proposer learns in the place of a result.

A refusal is decided while the entry is applied, by the log and the state before it, and so alike
on every replica. It is a value and no exception: the entry is applied, and applying it has changed
nothing. `broker.services.refused` (`broker.leader.voided` for batches) says what a caller is told.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicExists:
    """There is a topic of that name, with `queue_count` queues."""

    topic: str
    queue_count: int


@dataclass(frozen=True, slots=True)
class TopicNotFound:
    """There is no topic of that name, or none any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicReplaced:
    """What was meant is the topic that entry `meant` created; the one that has its name now was
    created by entry `present`."""

    topic: str
    meant: int
    present: int


@dataclass(frozen=True, slots=True)
class TopicNotWritable:
    """The topic's permission doesn't let anybody send to it."""

    topic: str


@dataclass(frozen=True, slots=True)
class PermissionUnknown:
    """No topic can have that permission."""

    wanted: int


@dataclass(frozen=True, slots=True)
class TooManyQueues:
    """With `wanted` more, the broker group would have more than `limit` queues over all topics."""

    wanted: int
    limit: int


@dataclass(frozen=True, slots=True)
class TooMuchProgress:
    """With one more, more than `limit` pairs of consumer group and topic would have offsets."""

    limit: int


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """The queue doesn't exist or ends before `offset`: the topic was deleted and made anew since
    the command was proposed."""

    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class QueueNotFound:
    """The batch is for a queue that the topic, with `queue_count` of them, doesn't have."""

    topic: str
    queue_id: int
    queue_count: int


@dataclass(frozen=True, slots=True)
class OffsetTaken:
    """The batch was placed at `offset`, and its queue goes on at `next_offset`."""

    topic: str
    queue_id: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class SequenceBroken:
    """The batch for queue `queue_id` begins at `sequence`, and its producer's next one there is
    `expected`."""

    queue_id: int
    sequence: int
    expected: int


@dataclass(frozen=True, slots=True)
class ProducerUnknown:
    """No producer of that id is registered, or none any more."""

    producer_id: bytes


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """Another producer has registered the name since."""

    name: str


@dataclass(frozen=True, slots=True)
class RegistrationMalformed:
    """The token hasn't its size, or the name is too long: no leader proposes that."""


@dataclass(frozen=True, slots=True)
class TooManyProducers:
    """With one more, more than `limit` producers would be registered."""

    limit: int


@dataclass(frozen=True, slots=True)
class TooManySequences:
    """With one more, more than `limit` queues would be remembered: of one producer, or of all."""

    limit: int


@dataclass(frozen=True, slots=True)
class LevelNotNext:
    """The level in use is `current`, and `wanted` isn't the next one."""

    wanted: int
    current: int


@dataclass(frozen=True, slots=True)
class LogStartNotMoved:
    """The log begins with entry `first`, and can't begin with `wanted`: it is none later, or isn't
    applied yet."""

    wanted: int
    first: int
    applied: int


@dataclass(frozen=True, slots=True)
class RetentionOutOfRange:
    """Messages can be wanted for 0 to `limit_ms`, and not for `wanted_ms`."""

    wanted_ms: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class QueueStartNotMoved:
    """A queue can't begin at that offset: it begins later, ends before, or isn't there."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """Another unit of the entry, or the same one, is about the same: `what` of the topic, or all of
    it where that is empty."""

    topic: str
    what: str


@dataclass(frozen=True, slots=True)
class OutcomesDiffer:
    """Up to entry `through`, `known` units were refused or it isn't unsettled; what was said is
    something else, with `said` of them."""

    through: int
    known: int
    said: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """The entry isn't what its kind says, or is none that the level in use has: a leader wrote what
    no leader may (ADR 23)."""

    why: str


@dataclass(frozen=True, slots=True)
class GroupDiffers:
    """The group's settings, of version `version`, differ from those of who would join in `what`."""

    group: str
    what: tuple[str, ...]
    version: int


@dataclass(frozen=True, slots=True)
class GroupHasMembers:
    """That is done only while the group has no session."""

    group: str


@dataclass(frozen=True, slots=True)
class TooManyGroups:
    """With one more, more than `limit` groups would have been joined."""

    limit: int


@dataclass(frozen=True, slots=True)
class TooManySessions:
    """With one more, there would be more than `limit` sessions."""

    limit: int


@dataclass(frozen=True, slots=True)
class TooManyVersions:
    """Members of more than `limit` versions of the group's settings would be there at once."""

    group: str
    limit: int


@dataclass(frozen=True, slots=True)
class SessionUnknown:
    """The group has no such session, or none any more. `is_replaced`: the member has another."""

    session: int
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class TopicNotTaken:
    """The session, or its group by now, doesn't want that topic, or leases nothing at all."""

    topic: str


@dataclass(frozen=True, slots=True)
class StartMissing:
    """Nobody has said where the group starts in the queue."""

    queue_id: int


@dataclass(frozen=True, slots=True)
class LeaseMoved:
    """The queue's lease is of `present`, 0: of nobody, and not of the epoch that was named."""

    queue_id: int
    present: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The queue isn't held by `epoch`, or not by that session."""

    queue_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TooManyRanges:
    """With these, more than `limit` finished ranges would be kept: of one queue, or of all."""

    limit: int


@dataclass(frozen=True, slots=True)
class GroupUnknown:
    """Nobody ever joined the group, or committed anything for it; or it is forgotten."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupExists:
    """Somebody has joined the group, or committed for it."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupBroadcasts:
    """The group's members keep their offsets themselves."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupStyled:
    """The group is used in another way: single messages are handed out to it (`is_delivered`), or
    its members hold queues."""

    group: str
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class HandoutSuperseded:
    """The message at `offset` isn't in the handout that was named: somebody else has it, or it was
    returned, or never handed out."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class FinishedAlready:
    """The message at that offset was finished before, with a copy or without: no other is made."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class StillHidden:
    """The queue's message at `offset` can't be handed out again yet; in a FIFO group, nothing of
    the queue or nothing behind it."""

    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class TooManyHandedOut:
    """With these, more messages or handouts of the queue, or of all, would be unfinished than may
    be."""

    queue_id: int


@dataclass(frozen=True, slots=True)
class LevelMoved:
    """The level's queue has moved on to `present`."""

    queue_id: int
    present: int


@dataclass(frozen=True, slots=True)
class NotDue:
    """The entry was appended before `due_ms`."""

    queue_id: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class QueueRefused:
    """A queue in which a command took no effect, and why."""

    topic: str
    incarnation: int
    queue_id: int
    why: QueueRefusal


@dataclass(frozen=True, slots=True)
class PartlyRefused:
    """In these queues the command took no effect; in all others that it names it did."""

    queues: tuple[QueueRefused, ...]


QueueRefusal = (
    TopicNotFound
    | TopicReplaced
    | QueueNotFound
    | SessionUnknown
    | TopicNotTaken
    | StartMissing
    | LeaseMoved
    | LeaseLost
    | OffsetOutOfRange
    | TooManyRanges
    | TooMuchProgress
    | Malformed
)
DeliveryRefusal = (
    GroupStyled | HandoutSuperseded | StillHidden | TooManyHandedOut | QueueNotFound | StartMissing
)
Refusal = (
    TopicExists
    | TopicNotFound
    | TopicReplaced
    | TooManyQueues
    | TooMuchProgress
    | OffsetOutOfRange
    | LevelNotNext
    | LogStartNotMoved
    | RetentionOutOfRange
    | QueueStartNotMoved
    | TopicNotWritable
    | PermissionUnknown
    | KeyTaken
    | OutcomesDiffer
    | Malformed
    | ProducerFenced
    | RegistrationMalformed
    | TooManyProducers
    | GroupDiffers
    | GroupHasMembers
    | TooManyGroups
    | TooManySessions
    | TooManyVersions
    | SessionUnknown
    | FinishedAlready
    | LevelMoved
    | NotDue
    | PartlyRefused
    | GroupUnknown
    | GroupExists
    | GroupBroadcasts
    | DeliveryRefusal
)
BatchRefusal = (
    TopicNotFound
    | TopicReplaced
    | TopicNotWritable
    | QueueNotFound
    | OffsetTaken
    | SequenceBroken
    | Malformed
    | ProducerUnknown
    | ProducerFenced
    | TooManySequences
)
