from dledger.wire import commands_pb2 as _commands_pb2
from dledger.wire import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Settlement(_message.Message):
    __slots__ = ("queue_id", "handout", "base", "mask", "what", "hidden_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOUT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    handout: int
    base: int
    mask: int
    what: _commands_pb2.Settling
    hidden_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., handout: _Optional[int] = ..., base: _Optional[int] = ..., mask: _Optional[int] = ..., what: _Optional[_Union[_commands_pb2.Settling, str]] = ..., hidden_ms: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "topic", "topic_incarnation", "fifo", "attempt_id", "again", "max_messages", "max_bytes", "hold_ms", "hidden_ms", "start", "start_time_ms", "settled", "max_attempts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    topic_incarnation: int
    fifo: bool
    attempt_id: bytes
    again: bool
    max_messages: int
    max_bytes: int
    hold_ms: int
    hidden_ms: int
    start: _commands_pb2.StartFrom
    start_time_ms: int
    settled: _containers.RepeatedCompositeFieldContainer[Settlement]
    max_attempts: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., topic_incarnation: _Optional[int] = ..., fifo: _Optional[bool] = ..., attempt_id: _Optional[bytes] = ..., again: _Optional[bool] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., hold_ms: _Optional[int] = ..., hidden_ms: _Optional[int] = ..., start: _Optional[_Union[_commands_pb2.StartFrom, str]] = ..., start_time_ms: _Optional[int] = ..., settled: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("handed", "unsettled", "topic_incarnation", "held_ms")
    HANDED_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    handed: _containers.RepeatedCompositeFieldContainer[HandedOut]
    unsettled: _containers.RepeatedCompositeFieldContainer[Unsettled]
    topic_incarnation: int
    held_ms: int
    def __init__(self, handed: _Optional[_Iterable[_Union[HandedOut, _Mapping]]] = ..., unsettled: _Optional[_Iterable[_Union[Unsettled, _Mapping]]] = ..., topic_incarnation: _Optional[int] = ..., held_ms: _Optional[int] = ...) -> None: ...

class HandedOut(_message.Message):
    __slots__ = ("queue_id", "handout", "attempt", "count", "records")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    handout: int
    attempt: int
    count: int
    records: bytes
    def __init__(self, queue_id: _Optional[int] = ..., handout: _Optional[int] = ..., attempt: _Optional[int] = ..., count: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class Unsettled(_message.Message):
    __slots__ = ("position", "error", "mask")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    position: int
    error: _errors_pb2.Error
    mask: int
    def __init__(self, position: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., mask: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("group", "topic", "topic_incarnation", "settled")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    topic_incarnation: int
    settled: _containers.RepeatedCompositeFieldContainer[Settlement]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., topic_incarnation: _Optional[int] = ..., settled: _Optional[_Iterable[_Union[Settlement, _Mapping]]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("unsettled",)
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    unsettled: _containers.RepeatedCompositeFieldContainer[Unsettled]
    def __init__(self, unsettled: _Optional[_Iterable[_Union[Unsettled, _Mapping]]] = ...) -> None: ...
