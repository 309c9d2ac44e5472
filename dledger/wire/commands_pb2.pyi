from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("create_topic", "delete_topic", "commit_offsets", "raise_level", "register_producer", "forget_producers", "move_log_start", "retain_topic", "move_queue_starts", "settle_units")
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RAISE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    REGISTER_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MOVE_LOG_START_FIELD_NUMBER: _ClassVar[int]
    RETAIN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    MOVE_QUEUE_STARTS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_UNITS_FIELD_NUMBER: _ClassVar[int]
    create_topic: CreateTopicCommand
    delete_topic: DeleteTopicCommand
    commit_offsets: CommitOffsetsCommand
    raise_level: RaiseLevelCommand
    register_producer: RegisterProducerCommand
    forget_producers: ForgetProducersCommand
    move_log_start: MoveLogStartCommand
    retain_topic: RetainTopicCommand
    move_queue_starts: MoveQueueStartsCommand
    settle_units: SettleUnitsCommand
    def __init__(self, create_topic: _Optional[_Union[CreateTopicCommand, _Mapping]] = ..., delete_topic: _Optional[_Union[DeleteTopicCommand, _Mapping]] = ..., commit_offsets: _Optional[_Union[CommitOffsetsCommand, _Mapping]] = ..., raise_level: _Optional[_Union[RaiseLevelCommand, _Mapping]] = ..., register_producer: _Optional[_Union[RegisterProducerCommand, _Mapping]] = ..., forget_producers: _Optional[_Union[ForgetProducersCommand, _Mapping]] = ..., move_log_start: _Optional[_Union[MoveLogStartCommand, _Mapping]] = ..., retain_topic: _Optional[_Union[RetainTopicCommand, _Mapping]] = ..., move_queue_starts: _Optional[_Union[MoveQueueStartsCommand, _Mapping]] = ..., settle_units: _Optional[_Union[SettleUnitsCommand, _Mapping]] = ...) -> None: ...

class SettleUnitsCommand(_message.Message):
    __slots__ = ("through", "refused")
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    through: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedUnit]
    def __init__(self, through: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedUnit, _Mapping]]] = ...) -> None: ...

class RefusedUnit(_message.Message):
    __slots__ = ("index", "unit")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    index: int
    unit: int
    def __init__(self, index: _Optional[int] = ..., unit: _Optional[int] = ...) -> None: ...

class RetainTopicCommand(_message.Message):
    __slots__ = ("name", "incarnation", "retention_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    retention_ms: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., retention_ms: _Optional[int] = ...) -> None: ...

class MoveQueueStartsCommand(_message.Message):
    __slots__ = ("name", "incarnation", "starts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    starts: _containers.RepeatedCompositeFieldContainer[QueueStart]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[QueueStart, _Mapping]]] = ...) -> None: ...

class QueueStart(_message.Message):
    __slots__ = ("queue_id", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class MoveLogStartCommand(_message.Message):
    __slots__ = ("first_index",)
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    def __init__(self, first_index: _Optional[int] = ...) -> None: ...

class RaiseLevelCommand(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class CreateTopicCommand(_message.Message):
    __slots__ = ("name", "queue_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ...) -> None: ...

class DeleteTopicCommand(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class CommittedOffset(_message.Message):
    __slots__ = ("queue_id", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitOffsetsCommand(_message.Message):
    __slots__ = ("group", "topic", "offsets", "reset", "topic_incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    offsets: _containers.RepeatedCompositeFieldContainer[CommittedOffset]
    reset: bool
    topic_incarnation: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[CommittedOffset, _Mapping]]] = ..., reset: _Optional[bool] = ..., topic_incarnation: _Optional[int] = ...) -> None: ...

class RegisterProducerCommand(_message.Message):
    __slots__ = ("token", "name", "previous")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    name: str
    previous: bytes
    def __init__(self, token: _Optional[bytes] = ..., name: _Optional[str] = ..., previous: _Optional[bytes] = ...) -> None: ...

class ForgetProducersCommand(_message.Message):
    __slots__ = ("producer_ids",)
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    producer_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, producer_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...
