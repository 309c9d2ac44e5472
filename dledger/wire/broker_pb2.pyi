from dledger.wire import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendBatch(_message.Message):
    __slots__ = ("topic", "queue_id", "base_sequence", "count", "records", "topic_incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    base_sequence: int
    count: int
    records: bytes
    topic_incarnation: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., base_sequence: _Optional[int] = ..., count: _Optional[int] = ..., records: _Optional[bytes] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("producer_id", "batches")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    batches: _containers.RepeatedCompositeFieldContainer[SendBatch]
    def __init__(self, producer_id: _Optional[bytes] = ..., batches: _Optional[_Iterable[_Union[SendBatch, _Mapping]]] = ...) -> None: ...

class SendResult(_message.Message):
    __slots__ = ("error", "base_queue_offset", "base_physical_offset", "store_time_ms", "store_host", "duplicate", "place_forgotten")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    error: _errors_pb2.Error
    base_queue_offset: int
    base_physical_offset: int
    store_time_ms: int
    store_host: bytes
    duplicate: bool
    place_forgotten: bool
    def __init__(self, error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., base_queue_offset: _Optional[int] = ..., base_physical_offset: _Optional[int] = ..., store_time_ms: _Optional[int] = ..., store_host: _Optional[bytes] = ..., duplicate: _Optional[bool] = ..., place_forgotten: _Optional[bool] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SendResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SendResult, _Mapping]]] = ...) -> None: ...

class RegisterProducerRequest(_message.Message):
    __slots__ = ("token", "name", "previous")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    name: str
    previous: bytes
    def __init__(self, token: _Optional[bytes] = ..., name: _Optional[str] = ..., previous: _Optional[bytes] = ...) -> None: ...

class RegisterProducerResponse(_message.Message):
    __slots__ = ("producer_id", "origin", "next_sequences")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    origin: bytes
    next_sequences: _containers.RepeatedCompositeFieldContainer[NextSequence]
    def __init__(self, producer_id: _Optional[bytes] = ..., origin: _Optional[bytes] = ..., next_sequences: _Optional[_Iterable[_Union[NextSequence, _Mapping]]] = ...) -> None: ...

class NextSequence(_message.Message):
    __slots__ = ("topic", "queue_id", "sequence", "topic_incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    sequence: int
    topic_incarnation: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., sequence: _Optional[int] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "max_messages", "max_bytes", "hold_ms", "topic_incarnation", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    max_bytes: int
    hold_ms: int
    topic_incarnation: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., hold_ms: _Optional[int] = ..., topic_incarnation: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("records", "count", "next_offset", "min_offset", "max_offset", "topic_incarnation", "void_count", "filtered_count")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VOID_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    topic_incarnation: int
    void_count: int
    filtered_count: int
    def __init__(self, records: _Optional[bytes] = ..., count: _Optional[int] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., topic_incarnation: _Optional[int] = ..., void_count: _Optional[int] = ..., filtered_count: _Optional[int] = ...) -> None: ...

class GetQueueOffsetsRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "topic_incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    topic_incarnation: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class GetQueueOffsetsResponse(_message.Message):
    __slots__ = ("min_offset", "max_offset")
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    min_offset: int
    max_offset: int
    def __init__(self, min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class GetOffsetByTimeRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "time_ms", "topic_incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    time_ms: int
    topic_incarnation: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., time_ms: _Optional[int] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class GetOffsetByTimeResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("message_id", "position")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    position: QueuePosition
    def __init__(self, message_id: _Optional[str] = ..., position: _Optional[_Union[QueuePosition, _Mapping]] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "topic_incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    topic_incarnation: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class GetMessageResponse(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "queue_count", "created_time_ms", "incarnation", "retention_ms", "permission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    created_time_ms: int
    incarnation: int
    retention_ms: int
    permission: int
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., created_time_ms: _Optional[int] = ..., incarnation: _Optional[int] = ..., retention_ms: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "queue_count", "if_not_exists", "retention_ms", "permission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    if_not_exists: bool
    retention_ms: int
    permission: int
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., if_not_exists: _Optional[bool] = ..., retention_ms: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class RetainTopicRequest(_message.Message):
    __slots__ = ("name", "incarnation", "retention_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    retention_ms: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., retention_ms: _Optional[int] = ...) -> None: ...

class RetainTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class PermitTopicRequest(_message.Message):
    __slots__ = ("name", "incarnation", "permission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    permission: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class PermitTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ...) -> None: ...

class MeasureTopicRequest(_message.Message):
    __slots__ = ("name", "incarnation", "first_queue")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    first_queue: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., first_queue: _Optional[int] = ...) -> None: ...

class MeasuredQueue(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_stored_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_stored_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_stored_ms: _Optional[int] = ...) -> None: ...

class MeasureTopicResponse(_message.Message):
    __slots__ = ("topic", "queues", "next_queue")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    queues: _containers.RepeatedCompositeFieldContainer[MeasuredQueue]
    next_queue: int
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[MeasuredQueue, _Mapping]]] = ..., next_queue: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("page_token", "page_size")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    page_size: int
    def __init__(self, page_token: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next_page_token: str
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("name", "incarnation", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class QueueDescription(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "queues", "groups", "next_page_token")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    queues: _containers.RepeatedCompositeFieldContainer[QueueDescription]
    groups: _containers.RepeatedCompositeFieldContainer[GroupProgress]
    next_page_token: str
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueDescription, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupProgress, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GroupProgress(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("queue_id", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "offsets", "reset", "topic_incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    reset: bool
    topic_incarnation: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., reset: _Optional[bool] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class FetchOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "topic_incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    topic_incarnation: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class FetchOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...
