from dledger.wire import commands_pb2 as _commands_pb2
from dledger.wire import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttendRequest(_message.Message):
    __slots__ = ("join", "heartbeat", "leave")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    join: Join
    heartbeat: Heartbeat
    leave: Leave
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("slot", "group", "member", "token", "session", "settings", "queues", "no_retries", "attempt")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NO_RETRIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    slot: int
    group: str
    member: str
    token: bytes
    session: int
    settings: _commands_pb2.GroupSettings
    queues: _containers.RepeatedCompositeFieldContainer[_commands_pb2.QueueChoice]
    no_retries: bool
    attempt: int
    def __init__(self, slot: _Optional[int] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., token: _Optional[bytes] = ..., session: _Optional[int] = ..., settings: _Optional[_Union[_commands_pb2.GroupSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_commands_pb2.QueueChoice, _Mapping]]] = ..., no_retries: _Optional[bool] = ..., attempt: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("slot",)
    SLOT_FIELD_NUMBER: _ClassVar[int]
    slot: int
    def __init__(self, slot: _Optional[int] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("joined", "heartbeat_answered", "assignment", "ended")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    heartbeat_answered: HeartbeatAnswered
    assignment: Assignment
    ended: Ended
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., heartbeat_answered: _Optional[_Union[HeartbeatAnswered, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("slot", "session", "heartbeat_ms", "session_ms", "release_ms", "return_within_ms", "settings")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RETURN_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    session: int
    heartbeat_ms: int
    session_ms: int
    release_ms: int
    return_within_ms: int
    settings: _commands_pb2.GroupSettings
    def __init__(self, slot: _Optional[int] = ..., session: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., session_ms: _Optional[int] = ..., release_ms: _Optional[int] = ..., return_within_ms: _Optional[int] = ..., settings: _Optional[_Union[_commands_pb2.GroupSettings, _Mapping]] = ...) -> None: ...

class HeartbeatAnswered(_message.Message):
    __slots__ = ("number", "return_within_ms", "heartbeat_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RETURN_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    return_within_ms: int
    heartbeat_ms: int
    def __init__(self, number: _Optional[int] = ..., return_within_ms: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("slot", "gained", "asked", "lost", "whole")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GAINED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    gained: _containers.RepeatedCompositeFieldContainer[TopicLeases]
    asked: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    lost: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    whole: bool
    def __init__(self, slot: _Optional[int] = ..., gained: _Optional[_Iterable[_Union[TopicLeases, _Mapping]]] = ..., asked: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., whole: _Optional[bool] = ...) -> None: ...

class TopicLeases(_message.Message):
    __slots__ = ("topic", "incarnation", "leases")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    leases: _containers.RepeatedCompositeFieldContainer[QueueLease]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., leases: _Optional[_Iterable[_Union[QueueLease, _Mapping]]] = ...) -> None: ...

class QueueLease(_message.Message):
    __slots__ = ("queue_id", "epoch", "frontier", "finished", "failures")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    epoch: int
    frontier: int
    finished: _containers.RepeatedScalarFieldContainer[int]
    failures: int
    def __init__(self, queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., frontier: _Optional[int] = ..., finished: _Optional[_Iterable[int]] = ..., failures: _Optional[int] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("topic", "incarnation", "queue_ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("slot", "error")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    error: _errors_pb2.Error
    def __init__(self, slot: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class CommitLeasesRequest(_message.Message):
    __slots__ = ("group", "member", "session", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    session: int
    topics: _containers.RepeatedCompositeFieldContainer[_commands_pb2.TopicProgress]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., session: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_commands_pb2.TopicProgress, _Mapping]]] = ...) -> None: ...

class CommitLeasesResponse(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[CommitRefusal]
    def __init__(self, refused: _Optional[_Iterable[_Union[CommitRefusal, _Mapping]]] = ...) -> None: ...

class CommitRefusal(_message.Message):
    __slots__ = ("topic", "incarnation", "queue_id", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queue_id: int
    error: _errors_pb2.Error
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class PullQueuesRequest(_message.Message):
    __slots__ = ("queues", "max_messages", "max_bytes", "hold_ms", "group", "by_filter")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BY_FILTER_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueuePull]
    max_messages: int
    max_bytes: int
    hold_ms: int
    group: str
    by_filter: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[QueuePull, _Mapping]]] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., hold_ms: _Optional[int] = ..., group: _Optional[str] = ..., by_filter: _Optional[bool] = ...) -> None: ...

class QueuePull(_message.Message):
    __slots__ = ("topic", "topic_incarnation", "queue_id", "epoch", "offset", "max_messages", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_incarnation: int
    queue_id: int
    epoch: int
    offset: int
    max_messages: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., topic_incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class PullQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[PulledQueue]
    def __init__(self, queues: _Optional[_Iterable[_Union[PulledQueue, _Mapping]]] = ...) -> None: ...

class PulledQueue(_message.Message):
    __slots__ = ("position", "error", "records", "count", "next_offset", "min_offset", "max_offset", "topic_incarnation", "void_count", "filtered_count")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VOID_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    position: int
    error: _errors_pb2.Error
    records: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic_incarnation: int
    void_count: int
    filtered_count: int
    def __init__(self, position: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., records: _Optional[bytes] = ..., count: _Optional[int] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., topic_incarnation: _Optional[int] = ..., void_count: _Optional[int] = ..., filtered_count: _Optional[int] = ...) -> None: ...

class SendBackRequest(_message.Message):
    __slots__ = ("group", "member", "session", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    session: int
    messages: _containers.RepeatedCompositeFieldContainer[FailedMessage]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., session: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[FailedMessage, _Mapping]]] = ...) -> None: ...

class FailedMessage(_message.Message):
    __slots__ = ("topic", "incarnation", "queue_id", "epoch", "offset", "rejected", "failed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queue_id: int
    epoch: int
    offset: int
    rejected: bool
    failed: int
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., rejected: _Optional[bool] = ..., failed: _Optional[int] = ...) -> None: ...

class SendBackResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[SentBack]
    def __init__(self, messages: _Optional[_Iterable[_Union[SentBack, _Mapping]]] = ...) -> None: ...

class SentBack(_message.Message):
    __slots__ = ("error", "failures")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    error: _errors_pb2.Error
    failures: int
    def __init__(self, error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., failures: _Optional[int] = ...) -> None: ...

class GetDeadLettersRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GetDeadLettersResponse(_message.Message):
    __slots__ = ("topic", "incarnation", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queues: _containers.RepeatedCompositeFieldContainer[DeadQueue]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[DeadQueue, _Mapping]]] = ...) -> None: ...

class DeadQueue(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "resent")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    resent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., resent: _Optional[_Iterable[int]] = ...) -> None: ...

class ResendDeadLetterRequest(_message.Message):
    __slots__ = ("group", "incarnation", "queue_id", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    incarnation: int
    queue_id: int
    offset: int
    def __init__(self, group: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ResendDeadLetterResponse(_message.Message):
    __slots__ = ("topic", "resent", "queue_id", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    resent: bool
    queue_id: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., resent: _Optional[bool] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
