from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    INVALID_ARGUMENT: _ClassVar[ErrorCode]
    MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    RECORD_CORRUPT: _ClassVar[ErrorCode]
    TOPIC_NOT_FOUND: _ClassVar[ErrorCode]
    TOPIC_EXISTS: _ClassVar[ErrorCode]
    QUEUE_NOT_FOUND: _ClassVar[ErrorCode]
    OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    NOT_LEADER: _ClassVar[ErrorCode]
    NOT_READY: _ClassVar[ErrorCode]
    BUSY: _ClassVar[ErrorCode]
    STORAGE_FULL: _ClassVar[ErrorCode]
    OUT_OF_SEQUENCE: _ClassVar[ErrorCode]
    UNKNOWN_PRODUCER: _ClassVar[ErrorCode]
    LEADERSHIP_LOST: _ClassVar[ErrorCode]
    TIMED_OUT: _ClassVar[ErrorCode]
    SHUTTING_DOWN: _ClassVar[ErrorCode]
    WRONG_BROKER_GROUP: _ClassVar[ErrorCode]
    INTERNAL: _ClassVar[ErrorCode]
    MESSAGE_NOT_FOUND: _ClassVar[ErrorCode]
    TRANSFER_FAILED: _ClassVar[ErrorCode]
    LIMIT_REACHED: _ClassVar[ErrorCode]
    PRODUCER_FENCED: _ClassVar[ErrorCode]
    TOPIC_REPLACED: _ClassVar[ErrorCode]
    GROUP_HAS_MEMBERS: _ClassVar[ErrorCode]
    GROUP_DIFFERS: _ClassVar[ErrorCode]
    SESSION_ENDED: _ClassVar[ErrorCode]
    MEMBER_REPLACED: _ClassVar[ErrorCode]
    LEASE_LOST: _ClassVar[ErrorCode]
    STRATEGY_UNKNOWN: _ClassVar[ErrorCode]
    GROUP_NOT_FOUND: _ClassVar[ErrorCode]
    GROUP_EXISTS: _ClassVar[ErrorCode]
    GROUP_STYLED: _ClassVar[ErrorCode]
    RECEIPT_SUPERSEDED: _ClassVar[ErrorCode]
    TOPIC_NOT_WRITABLE: _ClassVar[ErrorCode]
    TOPIC_NOT_READABLE: _ClassVar[ErrorCode]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    DID_NOT_HAPPEN: _ClassVar[Outcome]
    MAY_HAVE_HAPPENED: _ClassVar[Outcome]
ERROR_CODE_UNSPECIFIED: ErrorCode
INVALID_ARGUMENT: ErrorCode
MESSAGE_TOO_LARGE: ErrorCode
RECORD_CORRUPT: ErrorCode
TOPIC_NOT_FOUND: ErrorCode
TOPIC_EXISTS: ErrorCode
QUEUE_NOT_FOUND: ErrorCode
OFFSET_OUT_OF_RANGE: ErrorCode
NOT_LEADER: ErrorCode
NOT_READY: ErrorCode
BUSY: ErrorCode
STORAGE_FULL: ErrorCode
OUT_OF_SEQUENCE: ErrorCode
UNKNOWN_PRODUCER: ErrorCode
LEADERSHIP_LOST: ErrorCode
TIMED_OUT: ErrorCode
SHUTTING_DOWN: ErrorCode
WRONG_BROKER_GROUP: ErrorCode
INTERNAL: ErrorCode
MESSAGE_NOT_FOUND: ErrorCode
TRANSFER_FAILED: ErrorCode
LIMIT_REACHED: ErrorCode
PRODUCER_FENCED: ErrorCode
TOPIC_REPLACED: ErrorCode
GROUP_HAS_MEMBERS: ErrorCode
GROUP_DIFFERS: ErrorCode
SESSION_ENDED: ErrorCode
MEMBER_REPLACED: ErrorCode
LEASE_LOST: ErrorCode
STRATEGY_UNKNOWN: ErrorCode
GROUP_NOT_FOUND: ErrorCode
GROUP_EXISTS: ErrorCode
GROUP_STYLED: ErrorCode
RECEIPT_SUPERSEDED: ErrorCode
TOPIC_NOT_WRITABLE: ErrorCode
TOPIC_NOT_READABLE: ErrorCode
OUTCOME_UNSPECIFIED: Outcome
DID_NOT_HAPPEN: Outcome
MAY_HAVE_HAPPENED: Outcome

class NodeAddress(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retriable", "outcome", "leader", "term", "valid")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    retriable: bool
    outcome: Outcome
    leader: NodeAddress
    term: int
    valid: OffsetRange
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., leader: _Optional[_Union[NodeAddress, _Mapping]] = ..., term: _Optional[int] = ..., valid: _Optional[_Union[OffsetRange, _Mapping]] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("min_offset", "max_offset")
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    min_offset: int
    max_offset: int
    def __init__(self, min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...
