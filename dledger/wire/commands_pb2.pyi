from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartFrom(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_FIRST: _ClassVar[StartFrom]
    START_LAST: _ClassVar[StartFrom]
    START_TIME: _ClassVar[StartFrom]

class Settling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTLING_FINISHED: _ClassVar[Settling]
    SETTLING_RETURNED: _ClassVar[Settling]
    SETTLING_EXTENDED: _ClassVar[Settling]
START_FIRST: StartFrom
START_LAST: StartFrom
START_TIME: StartFrom
SETTLING_FINISHED: Settling
SETTLING_RETURNED: Settling
SETTLING_EXTENDED: Settling

class Command(_message.Message):
    __slots__ = ("create_topic", "delete_topic", "commit_offsets", "raise_level", "register_producer", "forget_producers", "move_log_start", "retain_topic", "move_queue_starts", "join_group", "end_sessions", "grant_leases", "commit_leases", "forget_groups", "settle_units", "move_group", "clone_group", "deliver", "bury", "send_back", "fire_delayed", "resend", "fail_message", "update_topic", "permit_topic", "make_topic")
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RAISE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    REGISTER_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MOVE_LOG_START_FIELD_NUMBER: _ClassVar[int]
    RETAIN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    MOVE_QUEUE_STARTS_FIELD_NUMBER: _ClassVar[int]
    JOIN_GROUP_FIELD_NUMBER: _ClassVar[int]
    END_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    GRANT_LEASES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LEASES_FIELD_NUMBER: _ClassVar[int]
    FORGET_GROUPS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_UNITS_FIELD_NUMBER: _ClassVar[int]
    MOVE_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLONE_GROUP_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    BURY_FIELD_NUMBER: _ClassVar[int]
    SEND_BACK_FIELD_NUMBER: _ClassVar[int]
    FIRE_DELAYED_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    FAIL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    PERMIT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAKE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    create_topic: CreateTopicCommand
    delete_topic: DeleteTopicCommand
    commit_offsets: CommitOffsetsCommand
    raise_level: RaiseLevelCommand
    register_producer: RegisterProducerCommand
    forget_producers: ForgetProducersCommand
    move_log_start: MoveLogStartCommand
    retain_topic: RetainTopicCommand
    move_queue_starts: MoveQueueStartsCommand
    join_group: JoinGroupCommand
    end_sessions: EndSessionsCommand
    grant_leases: GrantLeasesCommand
    commit_leases: CommitLeasesCommand
    forget_groups: ForgetGroupsCommand
    settle_units: SettleUnitsCommand
    move_group: MoveGroupCommand
    clone_group: CloneGroupCommand
    deliver: DeliverCommand
    bury: BuryCommand
    send_back: SendBackCommand
    fire_delayed: FireDelayedCommand
    resend: ResendCommand
    fail_message: FailMessageCommand
    update_topic: UpdateTopicCommand
    permit_topic: PermitTopicCommand
    make_topic: MakeTopicCommand
    def __init__(self, create_topic: _Optional[_Union[CreateTopicCommand, _Mapping]] = ..., delete_topic: _Optional[_Union[DeleteTopicCommand, _Mapping]] = ..., commit_offsets: _Optional[_Union[CommitOffsetsCommand, _Mapping]] = ..., raise_level: _Optional[_Union[RaiseLevelCommand, _Mapping]] = ..., register_producer: _Optional[_Union[RegisterProducerCommand, _Mapping]] = ..., forget_producers: _Optional[_Union[ForgetProducersCommand, _Mapping]] = ..., move_log_start: _Optional[_Union[MoveLogStartCommand, _Mapping]] = ..., retain_topic: _Optional[_Union[RetainTopicCommand, _Mapping]] = ..., move_queue_starts: _Optional[_Union[MoveQueueStartsCommand, _Mapping]] = ..., join_group: _Optional[_Union[JoinGroupCommand, _Mapping]] = ..., end_sessions: _Optional[_Union[EndSessionsCommand, _Mapping]] = ..., grant_leases: _Optional[_Union[GrantLeasesCommand, _Mapping]] = ..., commit_leases: _Optional[_Union[CommitLeasesCommand, _Mapping]] = ..., forget_groups: _Optional[_Union[ForgetGroupsCommand, _Mapping]] = ..., settle_units: _Optional[_Union[SettleUnitsCommand, _Mapping]] = ..., move_group: _Optional[_Union[MoveGroupCommand, _Mapping]] = ..., clone_group: _Optional[_Union[CloneGroupCommand, _Mapping]] = ..., deliver: _Optional[_Union[DeliverCommand, _Mapping]] = ..., bury: _Optional[_Union[BuryCommand, _Mapping]] = ..., send_back: _Optional[_Union[SendBackCommand, _Mapping]] = ..., fire_delayed: _Optional[_Union[FireDelayedCommand, _Mapping]] = ..., resend: _Optional[_Union[ResendCommand, _Mapping]] = ..., fail_message: _Optional[_Union[FailMessageCommand, _Mapping]] = ..., update_topic: _Optional[_Union[UpdateTopicCommand, _Mapping]] = ..., permit_topic: _Optional[_Union[PermitTopicCommand, _Mapping]] = ..., make_topic: _Optional[_Union[MakeTopicCommand, _Mapping]] = ...) -> None: ...

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

class PermitTopicCommand(_message.Message):
    __slots__ = ("name", "incarnation", "permission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    permission: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class MakeTopicCommand(_message.Message):
    __slots__ = ("name", "queue_count", "retention_ms", "permission")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_count: int
    retention_ms: int
    permission: int
    def __init__(self, name: _Optional[str] = ..., queue_count: _Optional[int] = ..., retention_ms: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class MoveQueueStartsCommand(_message.Message):
    __slots__ = ("name", "incarnation", "starts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    starts: _containers.RepeatedCompositeFieldContainer[QueueStart]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., starts: _Optional[_Iterable[_Union[QueueStart, _Mapping]]] = ...) -> None: ...

class UpdateTopicCommand(_message.Message):
    __slots__ = ("name", "incarnation", "read_queues", "write_queues", "drop")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    read_queues: int
    write_queues: int
    drop: bool
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., drop: _Optional[bool] = ...) -> None: ...

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

class GroupSettings(_message.Message):
    __slots__ = ("version", "broadcast", "orderly", "strategy", "start", "start_time_ms", "topics", "filters", "max_attempts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    broadcast: bool
    orderly: bool
    strategy: str
    start: StartFrom
    start_time_ms: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    filters: TagFilters
    max_attempts: int
    def __init__(self, version: _Optional[int] = ..., broadcast: _Optional[bool] = ..., orderly: _Optional[bool] = ..., strategy: _Optional[str] = ..., start: _Optional[_Union[StartFrom, str]] = ..., start_time_ms: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., filters: _Optional[_Union[TagFilters, _Mapping]] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class TagFilters(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TagFilter]
    def __init__(self, topics: _Optional[_Iterable[_Union[TagFilter, _Mapping]]] = ...) -> None: ...

class TagFilter(_message.Message):
    __slots__ = ("topic", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueChoice(_message.Message):
    __slots__ = ("topic", "queue_ids")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class JoinGroupCommand(_message.Message):
    __slots__ = ("group", "member", "token", "settings", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    member: str
    token: bytes
    settings: GroupSettings
    queues: _containers.RepeatedCompositeFieldContainer[QueueChoice]
    def __init__(self, group: _Optional[str] = ..., member: _Optional[str] = ..., token: _Optional[bytes] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueChoice, _Mapping]]] = ...) -> None: ...

class EndSessionsCommand(_message.Message):
    __slots__ = ("sessions", "vanished")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    VANISHED_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[int]
    vanished: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sessions: _Optional[_Iterable[int]] = ..., vanished: _Optional[_Iterable[int]] = ...) -> None: ...

class GrantLeasesCommand(_message.Message):
    __slots__ = ("group", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topics: _containers.RepeatedCompositeFieldContainer[TopicGrants]
    def __init__(self, group: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[TopicGrants, _Mapping]]] = ...) -> None: ...

class TopicGrants(_message.Message):
    __slots__ = ("topic", "incarnation", "first_start", "starts", "grants")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_START_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    first_start: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    grants: _containers.RepeatedCompositeFieldContainer[QueueGrant]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., first_start: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., grants: _Optional[_Iterable[_Union[QueueGrant, _Mapping]]] = ...) -> None: ...

class QueueGrant(_message.Message):
    __slots__ = ("queue_id", "session", "former_epoch")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FORMER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    session: int
    former_epoch: int
    def __init__(self, queue_id: _Optional[int] = ..., session: _Optional[int] = ..., former_epoch: _Optional[int] = ...) -> None: ...

class QueueProgress(_message.Message):
    __slots__ = ("queue_id", "epoch", "frontier", "finished", "release", "begun")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    epoch: int
    frontier: int
    finished: _containers.RepeatedScalarFieldContainer[int]
    release: bool
    begun: bool
    def __init__(self, queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., frontier: _Optional[int] = ..., finished: _Optional[_Iterable[int]] = ..., release: _Optional[bool] = ..., begun: _Optional[bool] = ...) -> None: ...

class TopicProgress(_message.Message):
    __slots__ = ("topic", "incarnation", "queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueProgress]
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueProgress, _Mapping]]] = ...) -> None: ...

class CommitLeasesCommand(_message.Message):
    __slots__ = ("group", "session", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    session: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicProgress]
    def __init__(self, group: _Optional[str] = ..., session: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicProgress, _Mapping]]] = ...) -> None: ...

class ForgetGroupsCommand(_message.Message):
    __slots__ = ("groups", "unused_ms")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNUSED_MS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    unused_ms: int
    def __init__(self, groups: _Optional[_Iterable[str]] = ..., unused_ms: _Optional[int] = ...) -> None: ...

class MoveGroupCommand(_message.Message):
    __slots__ = ("group", "topic", "incarnation", "queues", "forward")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    incarnation: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueStart]
    forward: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueStart, _Mapping]]] = ..., forward: _Optional[bool] = ...) -> None: ...

class CloneGroupCommand(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class DeliverCommand(_message.Message):
    __slots__ = ("group", "topic", "incarnation", "fifo", "first_start", "starts", "settled", "given")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    FIRST_START_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    incarnation: int
    fifo: bool
    first_start: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    settled: _containers.RepeatedCompositeFieldContainer[SettledMessages]
    given: _containers.RepeatedCompositeFieldContainer[GivenMessages]
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., fifo: _Optional[bool] = ..., first_start: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., settled: _Optional[_Iterable[_Union[SettledMessages, _Mapping]]] = ..., given: _Optional[_Iterable[_Union[GivenMessages, _Mapping]]] = ...) -> None: ...

class SettledMessages(_message.Message):
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
    what: Settling
    hidden_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., handout: _Optional[int] = ..., base: _Optional[int] = ..., mask: _Optional[int] = ..., what: _Optional[_Union[Settling, str]] = ..., hidden_ms: _Optional[int] = ...) -> None: ...

class GivenMessages(_message.Message):
    __slots__ = ("queue_id", "former", "base", "mask", "attempt_id", "hidden_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    former: int
    base: int
    mask: int
    attempt_id: bytes
    hidden_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., former: _Optional[int] = ..., base: _Optional[int] = ..., mask: _Optional[int] = ..., attempt_id: _Optional[bytes] = ..., hidden_ms: _Optional[int] = ...) -> None: ...

class SendBackCommand(_message.Message):
    __slots__ = ("group", "session", "topic", "incarnation", "queue_id", "epoch", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    session: int
    topic: str
    incarnation: int
    queue_id: int
    epoch: int
    offset: int
    def __init__(self, group: _Optional[str] = ..., session: _Optional[int] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class FireDelayedCommand(_message.Message):
    __slots__ = ("incarnation", "queue_id", "first", "end", "due_ms")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    queue_id: int
    first: int
    end: int
    due_ms: int
    def __init__(self, incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., due_ms: _Optional[int] = ...) -> None: ...

class ResendCommand(_message.Message):
    __slots__ = ("topic", "incarnation", "queue_id", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    incarnation: int
    queue_id: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class FailMessageCommand(_message.Message):
    __slots__ = ("group", "session", "topic", "incarnation", "queue_id", "epoch", "offset", "failures")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    group: str
    session: int
    topic: str
    incarnation: int
    queue_id: int
    epoch: int
    offset: int
    failures: int
    def __init__(self, group: _Optional[str] = ..., session: _Optional[int] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., failures: _Optional[int] = ...) -> None: ...

class BuryCommand(_message.Message):
    __slots__ = ("group", "topic", "incarnation", "queue_id", "handout", "base", "mask", "attempts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDOUT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    incarnation: int
    queue_id: int
    handout: int
    base: int
    mask: int
    attempts: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., incarnation: _Optional[int] = ..., queue_id: _Optional[int] = ..., handout: _Optional[int] = ..., base: _Optional[int] = ..., mask: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...
