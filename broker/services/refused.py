"""What the proposer of a command is told when the replicated state refused it."""

from __future__ import annotations

from typing import assert_never

from broker.errors import BrokerError, ErrorCode, not_writable, replaced
from broker.leader.voided import refused_batch
from broker.state.compound import UnitRefusal
from broker.state.groups import Groups
from broker.state.refusals import (
    CountedAlready,
    FinishedAlready,
    GroupBroadcasts,
    GroupDiffers,
    GroupExists,
    GroupHasMembers,
    GroupStyled,
    GroupUnknown,
    HandoutSuperseded,
    KeyTaken,
    LeaseLost,
    LeaseMoved,
    LevelMoved,
    LevelNotNext,
    LogStartNotMoved,
    Malformed,
    NotDue,
    OffsetOutOfRange,
    OffsetTaken,
    OutcomesDiffer,
    PartlyRefused,
    PermissionUnknown,
    ProducerFenced,
    ProducerUnknown,
    QueueClosed,
    QueueNotFound,
    QueueNumbersWrong,
    QueueRefusal,
    QueueStartNotMoved,
    QueuesUnread,
    Refusal,
    RegistrationMalformed,
    RetentionOutOfRange,
    SequenceBroken,
    SessionUnknown,
    StartMissing,
    StillHidden,
    TooManyChanges,
    TooManyGroups,
    TooManyHandedOut,
    TooManyProducers,
    TooManyQueues,
    TooManyRanges,
    TooManySequences,
    TooManySessions,
    TooManyVersions,
    TooMuchProgress,
    TopicExists,
    TopicNotFound,
    TopicNotTaken,
    TopicNotWritable,
    TopicReplaced,
)


def refused(refusal: Refusal) -> BrokerError:
    """The error for each kind of refusal."""
    match refusal:
        case TopicNotFound() | TopicReplaced() | TopicExists() | TopicNotWritable():
            return _of_topics(refusal)
        case TooManyQueues() | RetentionOutOfRange() | PermissionUnknown():
            return _of_topics(refusal)
        case QueueNumbersWrong() | TooManyChanges() | QueuesUnread():
            return _of_topics(refusal)
        case TooMuchProgress():
            return BrokerError(
                ErrorCode.LIMIT_REACHED, "too many consumer groups have committed offsets"
            )
        case OffsetOutOfRange(topic):
            return BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"topic {topic!r} was made anew meanwhile"
            )
        case ProducerFenced(name):
            return BrokerError(
                ErrorCode.PRODUCER_FENCED, f"another producer has registered the name {name!r}"
            )
        case RegistrationMalformed():
            return BrokerError(ErrorCode.INVALID_ARGUMENT, "token or name is too long or too short")
        case TooManyProducers(limit):
            text = f"{limit:,} producers are registered, none of which may be forgotten yet"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case LevelNotNext(wanted, current):
            return BrokerError(
                ErrorCode.INTERNAL, f"level {wanted} isn't the next one of {current}"
            )
        case LogStartNotMoved(wanted, first, applied):
            return BrokerError(
                ErrorCode.INTERNAL,
                f"the log can't begin with entry {wanted}: it begins with {first}, and ends with "
                f"{applied}",
            )
        case QueueStartNotMoved(queue_id, offset):
            text = f"queue {queue_id} can't begin at offset {offset}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case KeyTaken(topic, what):
            text = f"another unit is about the {what or 'whole'} of topic {topic!r}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case OutcomesDiffer(through):
            text = f"what became of units up to entry {through} is something else"
            return BrokerError(ErrorCode.INTERNAL, text)
        case Malformed(why):
            return BrokerError(ErrorCode.INTERNAL, f"the leader's entry is void: {why}")
        case PartlyRefused(queues):
            return queue_refused(queues[0].why)
        case QueueNotFound() | StartMissing():
            return queue_refused(refusal)
        case GroupStyled() | HandoutSuperseded() | StillHidden() | TooManyHandedOut():
            return _delivery_refused(refusal)
        case _:
            return _group_refused(refusal)


def _group_refused(
    refusal: GroupDiffers
    | GroupHasMembers
    | TooManyGroups
    | TooManySessions
    | TooManyVersions
    | SessionUnknown
    | GroupUnknown
    | GroupExists
    | GroupBroadcasts
    | FinishedAlready
    | CountedAlready
    | LevelMoved
    | NotDue,
) -> BrokerError:
    match refusal:
        case GroupDiffers(group, what, version):
            text = (
                f"group {group!r} has other settings, of version {version}, in {', '.join(what)}: "
                "a higher version would change them"
            )
            return BrokerError(ErrorCode.GROUP_DIFFERS, text)
        case GroupHasMembers(group):
            text = f"group {group!r} has members: that is done only while it has none"
            return BrokerError(ErrorCode.GROUP_HAS_MEMBERS, text)
        case TooManyGroups(limit):
            return BrokerError(ErrorCode.LIMIT_REACHED, f"{limit:,} groups have members, the limit")
        case TooManySessions(limit):
            return BrokerError(ErrorCode.LIMIT_REACHED, f"{limit:,} members, the limit")
        case TooManyVersions(group, limit):
            text = f"members of {limit} versions of group {group!r} are there, the limit"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case SessionUnknown(session):
            return BrokerError(ErrorCode.SESSION_ENDED, f"session {session} is over")
        case GroupUnknown(group):
            return group_not_found(group)
        case GroupExists(group):
            return BrokerError(ErrorCode.GROUP_EXISTS, f"consumer group {group!r} exists")
        case GroupBroadcasts(group):
            text = f"group {group!r} broadcasts: its members keep their offsets themselves"
            return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        case FinishedAlready(queue_id, offset):
            text = f"the message at offset {offset} of queue {queue_id} was finished before"
            return BrokerError(ErrorCode.MESSAGE_NOT_FOUND, text)
        case CountedAlready(queue_id, failures):
            text = f"the message at the front of queue {queue_id} has failed {failures} times"
            return BrokerError(ErrorCode.INTERNAL, text)
        case LevelMoved(queue_id, present):
            text = f"level {queue_id + 1} has moved on to {present}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case NotDue(queue_id, due_ms):
            text = f"nothing of level {queue_id + 1} is due before {due_ms}"
            return BrokerError(ErrorCode.INTERNAL, text)
        case _:
            assert_never(refusal)


def _of_topics(
    refusal: TopicNotFound
    | TopicReplaced
    | TopicExists
    | TopicNotWritable
    | TooManyQueues
    | RetentionOutOfRange
    | PermissionUnknown
    | QueueNumbersWrong
    | TooManyChanges
    | QueuesUnread,
) -> BrokerError:
    match refusal:
        case TopicNotFound(topic):
            return BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
        case TopicReplaced(topic, meant, present):
            return replaced(topic, meant, present)
        case TopicExists(topic, queue_count):
            return BrokerError(
                ErrorCode.TOPIC_EXISTS, f"topic {topic!r} exists, with {queue_count} queues"
            )
        case TooManyQueues(wanted):
            return BrokerError(
                ErrorCode.LIMIT_REACHED, f"no room for {wanted} more queues in this broker group"
            )
        case RetentionOutOfRange(wanted_ms, limit_ms):
            text = f"messages can be kept for 0 to {limit_ms} ms, not for {wanted_ms}"
            return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        case TopicNotWritable(topic):
            return not_writable(topic)
        case PermissionUnknown(wanted):
            text = f"a topic's permission is 6 (written and read), 4 or 2, not {wanted}"
            return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        case QueueNumbersWrong(read_queues, write_queues, limit):
            text = (
                f"a topic is read in 1 to {limit:,} queues and written in as many of them at most, "
                f"not read in {read_queues} and written in {write_queues}"
            )
            return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        case TooManyChanges(limit):
            text = (
                f"the topic's write queues were changed {limit} times since the log begins: again "
                "when retention has let go of what was stored before"
            )
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case QueuesUnread(topic, group, queue_id, offset, end):
            where = f"is at {offset:,}" if offset >= 0 else "hasn't begun"
            text = f"group {group!r} {where} in {topic}/{queue_id}, which ends at {end:,}"
            return BrokerError(ErrorCode.QUEUES_UNREAD, text)
        case _:
            assert_never(refusal)


def _delivery_refused(
    refusal: GroupStyled | HandoutSuperseded | StillHidden | TooManyHandedOut,
) -> BrokerError:
    match refusal:
        case GroupStyled(group, is_delivered):
            others = "gets single messages" if is_delivered else "has members that hold queues"
            text = f"group {group!r} {others}: it isn't used in two ways until it is forgotten"
            return BrokerError(ErrorCode.GROUP_STYLED, text)
        case HandoutSuperseded(queue_id, offset):
            text = f"offset {offset} of queue {queue_id} isn't in the hand that was named any more"
            return BrokerError(ErrorCode.RECEIPT_SUPERSEDED, text)
        case StillHidden(queue_id, offset):
            text = f"offset {offset} of queue {queue_id} is hidden: somebody is at work on it"
            return BrokerError(ErrorCode.INTERNAL, text)
        case TooManyHandedOut(queue_id):
            text = f"too many messages of queue {queue_id} are handed out and unfinished"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case _:
            assert_never(refusal)


def unit_refused(refusal: UnitRefusal) -> BrokerError:
    """The error of a unit: of its commands, or of its batches."""
    match refusal:
        case QueueNotFound() | OffsetTaken() | SequenceBroken() | ProducerUnknown():
            return refused_batch(refusal)
        case TooManySequences() | QueueClosed():
            return refused_batch(refusal)
        case _:
            return refused(refusal)


def queue_refused(why: QueueRefusal) -> BrokerError:
    """The error of one queue of a command."""
    match why:
        case LeaseLost(queue_id, epoch) | LeaseMoved(queue_id, epoch):
            text = f"queue {queue_id} isn't held by epoch {epoch}"
            return BrokerError(ErrorCode.LEASE_LOST, text)
        case QueueNotFound(topic, queue_id, count):
            text = f"topic {topic!r} has queues 0 to {count - 1}, not {queue_id}"
            return BrokerError(ErrorCode.QUEUE_NOT_FOUND, text)
        case OffsetOutOfRange(topic, queue_id, offset):
            text = f"{topic}/{queue_id} ends before offset {offset}"
            return BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        case TooManyRanges(limit):
            text = f"more than {limit:,} finished ranges: commit the lowest first"
            return BrokerError(ErrorCode.LIMIT_REACHED, text)
        case Malformed(reason):
            return BrokerError(ErrorCode.INVALID_ARGUMENT, reason)
        case StartMissing(queue_id):
            return BrokerError(ErrorCode.INTERNAL, f"the group has no start in queue {queue_id}")
        case TopicNotTaken(topic):
            return BrokerError(ErrorCode.INTERNAL, f"the session doesn't want topic {topic!r}")
        case _:
            return refused(why)


def resend_refused(refusal: UnitRefusal) -> BrokerError:
    """The error of a dead letter that isn't sent again: it finishes nothing, so that what is told
    of finished ranges would help nobody."""
    if isinstance(refusal, PartlyRefused) and isinstance(refusal.queues[0].why, TooManyRanges):
        text = (
            f"{refusal.queues[0].why.limit:,} ranges of dead letters were sent again, of all "
            "groups, and no more are remembered: those of a group that was forgotten go with "
            "its topic (dledger topic delete '%DLQ%group')"
        )
        return BrokerError(ErrorCode.LIMIT_REACHED, text)
    return unit_refused(refusal)


def group_not_found(group: str) -> BrokerError:
    """Nobody ever joined the group, or committed for it; or it is forgotten."""
    return BrokerError(ErrorCode.GROUP_NOT_FOUND, f"consumer group {group!r} does not exist")


def session_ended(groups: Groups, group: str, member: str, session: int) -> BrokerError:
    """What a member is told that hasn't the session it names; by whether somebody else is that
    member now."""
    present = groups.members(group).get(member)
    if present is not None and present.session > session:
        text = f"another process has joined group {group!r} as member {member!r}"
        return BrokerError(ErrorCode.MEMBER_REPLACED, text)
    return BrokerError(ErrorCode.SESSION_ENDED, f"session {session} of {member!r} is over")


def partly(error: BrokerError, what: str = "a part of it was done") -> BrokerError:
    """What is told where not all of a call was denied: the same attempt asks again."""
    told, text = error.failure, f"{what}, and then: {error.message}"
    return BrokerError(ErrorCode.LEADERSHIP_LOST, text, leader=told.leader, term=told.term)
