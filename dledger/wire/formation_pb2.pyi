from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Founding(_message.Message):
    __slots__ = ("broker_group", "segment_size_bytes", "time_ms", "configuration", "adopted")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    segment_size_bytes: int
    time_ms: int
    configuration: bytes
    adopted: bool
    def __init__(self, broker_group: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., time_ms: _Optional[int] = ..., configuration: _Optional[bytes] = ..., adopted: _Optional[bool] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberDescription(_message.Message):
    __slots__ = ("broker_group", "node_id", "segment_size_bytes", "disk_id", "born_ms", "state", "founding", "last_index", "last_term", "peers", "known_level")
    class PeersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    BORN_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    segment_size_bytes: int
    disk_id: bytes
    born_ms: int
    state: str
    founding: Founding
    last_index: int
    last_term: int
    peers: _containers.ScalarMap[str, str]
    known_level: int
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., disk_id: _Optional[bytes] = ..., born_ms: _Optional[int] = ..., state: _Optional[str] = ..., founding: _Optional[_Union[Founding, _Mapping]] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., peers: _Optional[_Mapping[str, str]] = ..., known_level: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("founding",)
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    founding: Founding
    def __init__(self, founding: _Optional[_Union[Founding, _Mapping]] = ...) -> None: ...

class PrepareResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("founding",)
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    founding: str
    def __init__(self, founding: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("disk_id",)
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    disk_id: bytes
    def __init__(self, disk_id: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
