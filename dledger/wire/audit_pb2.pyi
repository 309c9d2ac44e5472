from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RangeProblem(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANGE_PROBLEM_UNSPECIFIED: _ClassVar[RangeProblem]
    SEGMENT_MISSING: _ClassVar[RangeProblem]
    SEGMENT_RETAINED: _ClassVar[RangeProblem]
    SEGMENT_TRUNCATED: _ClassVar[RangeProblem]
    SEGMENT_UNREADABLE: _ClassVar[RangeProblem]
RANGE_PROBLEM_UNSPECIFIED: RangeProblem
SEGMENT_MISSING: RangeProblem
SEGMENT_RETAINED: RangeProblem
SEGMENT_TRUNCATED: RangeProblem
SEGMENT_UNREADABLE: RangeProblem

class SurveyLogRequest(_message.Message):
    __slots__ = ("broker_group",)
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    def __init__(self, broker_group: _Optional[str] = ...) -> None: ...

class LogFile(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class LogSurvey(_message.Message):
    __slots__ = ("broker_group", "node_id", "commitlog", "segment_size_bytes", "committed_offset", "first_index", "files", "checkpoint_readable", "checkpoint_first_offset", "checkpoint_consume_queue_index", "problem", "log_start")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITLOG_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_READABLE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_CONSUME_QUEUE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    commitlog: str
    segment_size_bytes: int
    committed_offset: int
    first_index: int
    files: _containers.RepeatedCompositeFieldContainer[LogFile]
    checkpoint_readable: bool
    checkpoint_first_offset: int
    checkpoint_consume_queue_index: int
    problem: str
    log_start: bytes
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., commitlog: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., committed_offset: _Optional[int] = ..., first_index: _Optional[int] = ..., files: _Optional[_Iterable[_Union[LogFile, _Mapping]]] = ..., checkpoint_readable: _Optional[bool] = ..., checkpoint_first_offset: _Optional[int] = ..., checkpoint_consume_queue_index: _Optional[int] = ..., problem: _Optional[str] = ..., log_start: _Optional[bytes] = ...) -> None: ...

class DigestRangesRequest(_message.Message):
    __slots__ = ("broker_group", "segment_size_bytes", "base", "edges", "bytes_per_second")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    segment_size_bytes: int
    base: int
    edges: _containers.RepeatedScalarFieldContainer[int]
    bytes_per_second: int
    def __init__(self, broker_group: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., base: _Optional[int] = ..., edges: _Optional[_Iterable[int]] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class RangeDigests(_message.Message):
    __slots__ = ("digests", "done", "problem", "readable", "detail")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    done: bool
    problem: RangeProblem
    readable: int
    detail: str
    def __init__(self, digests: _Optional[bytes] = ..., done: _Optional[bool] = ..., problem: _Optional[_Union[RangeProblem, str]] = ..., readable: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class ReadRangeRequest(_message.Message):
    __slots__ = ("broker_group", "segment_size_bytes", "base", "offset", "size", "bytes_per_second")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    segment_size_bytes: int
    base: int
    offset: int
    size: int
    bytes_per_second: int
    def __init__(self, broker_group: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., base: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class ReadRangeResponse(_message.Message):
    __slots__ = ("data", "problem", "detail")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    problem: RangeProblem
    detail: str
    def __init__(self, data: _Optional[bytes] = ..., problem: _Optional[_Union[RangeProblem, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ReadBaseRequest(_message.Message):
    __slots__ = ("broker_group", "at")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    at: int
    def __init__(self, broker_group: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class ReadBaseResponse(_message.Message):
    __slots__ = ("log_start", "size_bytes", "piece", "problem", "detail")
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    log_start: bytes
    size_bytes: int
    piece: bytes
    problem: RangeProblem
    detail: str
    def __init__(self, log_start: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ..., problem: _Optional[_Union[RangeProblem, str]] = ..., detail: _Optional[str] = ...) -> None: ...
