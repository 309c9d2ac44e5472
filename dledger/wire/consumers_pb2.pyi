from dledger.wire import commands_pb2 as _commands_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListGroupsRequest(_message.Message):
    __slots__ = ("page_token",)
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    def __init__(self, page_token: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "next_page_token")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    next_page_token: str
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("name", "created", "unused_ms", "member_count", "topic_count", "settings", "singles", "singles_in_order")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    UNUSED_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SINGLES_FIELD_NUMBER: _ClassVar[int]
    SINGLES_IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    created: int
    unused_ms: int
    member_count: int
    topic_count: int
    settings: _commands_pb2.GroupSettings
    singles: bool
    singles_in_order: bool
    def __init__(self, name: _Optional[str] = ..., created: _Optional[int] = ..., unused_ms: _Optional[int] = ..., member_count: _Optional[int] = ..., topic_count: _Optional[int] = ..., settings: _Optional[_Union[_commands_pb2.GroupSettings, _Mapping]] = ..., singles: _Optional[bool] = ..., singles_in_order: _Optional[bool] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group", "page_token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    page_token: str
    def __init__(self, group: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "members", "next_page_token")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    group: GroupSummary
    members: _containers.RepeatedCompositeFieldContainer[MemberOfGroup]
    next_page_token: str
    def __init__(self, group: _Optional[_Union[GroupSummary, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberOfGroup, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class MemberOfGroup(_message.Message):
    __slots__ = ("member", "session", "version", "queue_count", "attached", "expires_ms")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    member: str
    session: int
    version: int
    queue_count: int
    attached: bool
    expires_ms: int
    def __init__(self, member: _Optional[str] = ..., session: _Optional[int] = ..., version: _Optional[int] = ..., queue_count: _Optional[int] = ..., attached: _Optional[bool] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class GetGroupProgressRequest(_message.Message):
    __slots__ = ("group", "start")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    group: str
    start: QueuePlace
    def __init__(self, group: _Optional[str] = ..., start: _Optional[_Union[QueuePlace, _Mapping]] = ...) -> None: ...

class QueuePlace(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class GetGroupProgressResponse(_message.Message):
    __slots__ = ("queues", "next")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[ProgressOfQueue]
    next: QueuePlace
    def __init__(self, queues: _Optional[_Iterable[_Union[ProgressOfQueue, _Mapping]]] = ..., next: _Optional[_Union[QueuePlace, _Mapping]] = ...) -> None: ...

class ProgressOfQueue(_message.Message):
    __slots__ = ("topic", "incarnation", "queue_id", "min_offset", "max_offset", "frontier", "finished_count", "finished_runs", "unfinished_count", "session", "epoch", "asked", "oldest_unfinished_ms", "in_hand_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_RUNS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNFINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    IN_HAND_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queue_id: int
    min_offset: int
    max_offset: int
    frontier: int
    finished_count: int
    finished_runs: int
    unfinished_count: int
    session: int
    epoch: int
    asked: bool
    oldest_unfinished_ms: int
    in_hand_count: int
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., frontier: _Optional[int] = ..., finished_count: _Optional[int] = ..., finished_runs: _Optional[int] = ..., unfinished_count: _Optional[int] = ..., session: _Optional[int] = ..., epoch: _Optional[int] = ..., asked: _Optional[bool] = ..., oldest_unfinished_ms: _Optional[int] = ..., in_hand_count: _Optional[int] = ...) -> None: ...

class MoveGroupRequest(_message.Message):
    __slots__ = ("group", "topic", "incarnation", "queue_ids", "start", "offset", "skip", "time_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    incarnation: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    start: _commands_pb2.StartFrom
    offset: int
    skip: int
    time_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ..., start: _Optional[_Union[_commands_pb2.StartFrom, str]] = ..., offset: _Optional[int] = ..., skip: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class MoveGroupResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[MovedQueue]
    def __init__(self, queues: _Optional[_Iterable[_Union[MovedQueue, _Mapping]]] = ...) -> None: ...

class MovedQueue(_message.Message):
    __slots__ = ("queue_id", "before", "offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    before: int
    offset: int
    def __init__(self, queue_id: _Optional[int] = ..., before: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CloneGroupRequest(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class CloneGroupResponse(_message.Message):
    __slots__ = ("topic_count",)
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_count: int
    def __init__(self, topic_count: _Optional[int] = ...) -> None: ...
