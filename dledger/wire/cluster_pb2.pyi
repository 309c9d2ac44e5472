from dledger.wire import errors_pb2 as _errors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("node_id", "state", "match_index", "recently_active", "connected", "address", "older_copy")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    RECENTLY_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OLDER_COPY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    match_index: int
    recently_active: bool
    connected: bool
    address: str
    older_copy: bool
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., match_index: _Optional[int] = ..., recently_active: _Optional[bool] = ..., connected: _Optional[bool] = ..., address: _Optional[str] = ..., older_copy: _Optional[bool] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("broker_group", "node_id", "role", "term", "leader", "last_index", "durable_index", "commit_index", "applied_index", "end_offset", "committed_offset", "committed_digest", "peers", "version", "segment_size_bytes", "data_directory", "serving", "first_index", "apply_stopped", "level", "known_level", "admin_address", "log_damages", "scrub_ended_ms", "divergence", "preferred", "epoch", "last_term", "newer_epoch", "health")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLY_STOPPED_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    KNOWN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_DAMAGES_FIELD_NUMBER: _ClassVar[int]
    SCRUB_ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    NEWER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    role: str
    term: int
    leader: _errors_pb2.NodeAddress
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    end_offset: int
    committed_offset: int
    committed_digest: int
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    version: str
    segment_size_bytes: int
    data_directory: str
    serving: bool
    first_index: int
    apply_stopped: str
    level: int
    known_level: int
    admin_address: str
    log_damages: int
    scrub_ended_ms: int
    divergence: Divergence
    preferred: str
    epoch: GroupEpochName
    last_term: int
    newer_epoch: int
    health: NodeHealth
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., leader: _Optional[_Union[_errors_pb2.NodeAddress, _Mapping]] = ..., last_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., end_offset: _Optional[int] = ..., committed_offset: _Optional[int] = ..., committed_digest: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., version: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., data_directory: _Optional[str] = ..., serving: _Optional[bool] = ..., first_index: _Optional[int] = ..., apply_stopped: _Optional[str] = ..., level: _Optional[int] = ..., known_level: _Optional[int] = ..., admin_address: _Optional[str] = ..., log_damages: _Optional[int] = ..., scrub_ended_ms: _Optional[int] = ..., divergence: _Optional[_Union[Divergence, _Mapping]] = ..., preferred: _Optional[str] = ..., epoch: _Optional[_Union[GroupEpochName, _Mapping]] = ..., last_term: _Optional[int] = ..., newer_epoch: _Optional[int] = ..., health: _Optional[_Union[NodeHealth, _Mapping]] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("found_ms", "compared_index", "own_digest", "peers_digest", "peers", "agreed_index", "differing_index", "own_term", "peers_term", "recoveries")
    FOUND_MS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_INDEX_FIELD_NUMBER: _ClassVar[int]
    OWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    AGREED_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_INDEX_FIELD_NUMBER: _ClassVar[int]
    OWN_TERM_FIELD_NUMBER: _ClassVar[int]
    PEERS_TERM_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    found_ms: int
    compared_index: int
    own_digest: int
    peers_digest: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    agreed_index: int
    differing_index: int
    own_term: int
    peers_term: int
    recoveries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, found_ms: _Optional[int] = ..., compared_index: _Optional[int] = ..., own_digest: _Optional[int] = ..., peers_digest: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ..., agreed_index: _Optional[int] = ..., differing_index: _Optional[int] = ..., own_term: _Optional[int] = ..., peers_term: _Optional[int] = ..., recoveries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class NodeHealth(_message.Message):
    __slots__ = ("disk_id", "members", "log_full", "apply_paused", "short_of_space", "space", "queues_wrong", "contradictions", "last_fsync_ms", "certificate_expires_ms", "suspected_index", "differing", "front_held", "log_behind_ms", "fills", "certificate_begins_ms", "next_certificate_ms", "now_ms")
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LOG_FULL_FIELD_NUMBER: _ClassVar[int]
    APPLY_PAUSED_FIELD_NUMBER: _ClassVar[int]
    SHORT_OF_SPACE_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_WRONG_FIELD_NUMBER: _ClassVar[int]
    CONTRADICTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_FSYNC_MS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_FIELD_NUMBER: _ClassVar[int]
    FRONT_HELD_FIELD_NUMBER: _ClassVar[int]
    LOG_BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_BEGINS_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CERTIFICATE_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    disk_id: bytes
    members: _containers.RepeatedCompositeFieldContainer[MemberHealth]
    log_full: bool
    apply_paused: bool
    short_of_space: bool
    space: SpaceHealth
    queues_wrong: int
    contradictions: int
    last_fsync_ms: float
    certificate_expires_ms: int
    suspected_index: int
    differing: _containers.RepeatedScalarFieldContainer[str]
    front_held: str
    log_behind_ms: float
    fills: _containers.RepeatedCompositeFieldContainer[Fill]
    certificate_begins_ms: int
    next_certificate_ms: int
    now_ms: int
    def __init__(self, disk_id: _Optional[bytes] = ..., members: _Optional[_Iterable[_Union[MemberHealth, _Mapping]]] = ..., log_full: _Optional[bool] = ..., apply_paused: _Optional[bool] = ..., short_of_space: _Optional[bool] = ..., space: _Optional[_Union[SpaceHealth, _Mapping]] = ..., queues_wrong: _Optional[int] = ..., contradictions: _Optional[int] = ..., last_fsync_ms: _Optional[float] = ..., certificate_expires_ms: _Optional[int] = ..., suspected_index: _Optional[int] = ..., differing: _Optional[_Iterable[str]] = ..., front_held: _Optional[str] = ..., log_behind_ms: _Optional[float] = ..., fills: _Optional[_Iterable[_Union[Fill, _Mapping]]] = ..., certificate_begins_ms: _Optional[int] = ..., next_certificate_ms: _Optional[int] = ..., now_ms: _Optional[int] = ...) -> None: ...

class Fill(_message.Message):
    __slots__ = ("what", "used", "limit")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    what: str
    used: int
    limit: int
    def __init__(self, what: _Optional[str] = ..., used: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class SpaceHealth(_message.Message):
    __slots__ = ("free_bytes", "reserve_bytes")
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    reserve_bytes: int
    def __init__(self, free_bytes: _Optional[int] = ..., reserve_bytes: _Optional[int] = ...) -> None: ...

class MemberHealth(_message.Message):
    __slots__ = ("node_id", "votes", "disk_id", "clock_off_ms", "has_clock", "observes", "votes_until_left", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFF_MS_FIELD_NUMBER: _ClassVar[int]
    HAS_CLOCK_FIELD_NUMBER: _ClassVar[int]
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    VOTES_UNTIL_LEFT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    votes: bool
    disk_id: bytes
    clock_off_ms: float
    has_clock: bool
    observes: bool
    votes_until_left: bool
    address: str
    def __init__(self, node_id: _Optional[str] = ..., votes: _Optional[bool] = ..., disk_id: _Optional[bytes] = ..., clock_off_ms: _Optional[float] = ..., has_clock: _Optional[bool] = ..., observes: _Optional[bool] = ..., votes_until_left: _Optional[bool] = ..., address: _Optional[str] = ...) -> None: ...

class WatchLeaderRequest(_message.Message):
    __slots__ = ("broker_group",)
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    def __init__(self, broker_group: _Optional[str] = ...) -> None: ...

class LeaderView(_message.Message):
    __slots__ = ("broker_group", "node_id", "leader", "term", "serving", "members", "epoch")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    leader: _errors_pb2.NodeAddress
    term: int
    serving: bool
    members: _containers.RepeatedCompositeFieldContainer[_errors_pb2.NodeAddress]
    epoch: GroupEpochName
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., leader: _Optional[_Union[_errors_pb2.NodeAddress, _Mapping]] = ..., term: _Optional[int] = ..., serving: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[_errors_pb2.NodeAddress, _Mapping]]] = ..., epoch: _Optional[_Union[GroupEpochName, _Mapping]] = ...) -> None: ...

class GroupEpochName(_message.Message):
    __slots__ = ("number", "recovery_id", "earlier")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ID_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    number: int
    recovery_id: bytes
    earlier: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., recovery_id: _Optional[bytes] = ..., earlier: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: str
    def __init__(self, target: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: _errors_pb2.NodeAddress
    def __init__(self, leader: _Optional[_Union[_errors_pb2.NodeAddress, _Mapping]] = ...) -> None: ...

class ReplaceDiskRequest(_message.Message):
    __slots__ = ("node_id", "disk_id", "held")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    disk_id: bytes
    held: HeldLog
    def __init__(self, node_id: _Optional[str] = ..., disk_id: _Optional[bytes] = ..., held: _Optional[_Union[HeldLog, _Mapping]] = ...) -> None: ...

class HeldLog(_message.Message):
    __slots__ = ("index", "digest", "epoch")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    index: int
    digest: int
    epoch: GroupEpochName
    def __init__(self, index: _Optional[int] = ..., digest: _Optional[int] = ..., epoch: _Optional[_Union[GroupEpochName, _Mapping]] = ...) -> None: ...

class ReplaceDiskResponse(_message.Message):
    __slots__ = ("votes", "observes")
    VOTES_FIELD_NUMBER: _ClassVar[int]
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    votes: bool
    observes: bool
    def __init__(self, votes: _Optional[bool] = ..., observes: _Optional[bool] = ...) -> None: ...

class NewMember(_message.Message):
    __slots__ = ("node_id", "disk_id", "address", "observes", "held")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OBSERVES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    disk_id: bytes
    address: str
    observes: bool
    held: HeldLog
    def __init__(self, node_id: _Optional[str] = ..., disk_id: _Optional[bytes] = ..., address: _Optional[str] = ..., observes: _Optional[bool] = ..., held: _Optional[_Union[HeldLog, _Mapping]] = ...) -> None: ...

class ChangeMembersRequest(_message.Message):
    __slots__ = ("add", "remove", "promote", "demote", "prefer")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    DEMOTE_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[NewMember]
    remove: _containers.RepeatedScalarFieldContainer[str]
    promote: _containers.RepeatedScalarFieldContainer[str]
    demote: _containers.RepeatedScalarFieldContainer[str]
    prefer: str
    def __init__(self, add: _Optional[_Iterable[_Union[NewMember, _Mapping]]] = ..., remove: _Optional[_Iterable[str]] = ..., promote: _Optional[_Iterable[str]] = ..., demote: _Optional[_Iterable[str]] = ..., prefer: _Optional[str] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberStatus(_message.Message):
    __slots__ = ("node_id", "role", "disk_id", "address", "connected", "match_index")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    role: str
    disk_id: bytes
    address: str
    connected: bool
    match_index: int
    def __init__(self, node_id: _Optional[str] = ..., role: _Optional[str] = ..., disk_id: _Optional[bytes] = ..., address: _Optional[str] = ..., connected: _Optional[bool] = ..., match_index: _Optional[int] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("members", "joint", "configuration_index", "committed", "last_index", "preferred")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    JOINT_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[MemberStatus]
    joint: bool
    configuration_index: int
    committed: bool
    last_index: int
    preferred: str
    def __init__(self, members: _Optional[_Iterable[_Union[MemberStatus, _Mapping]]] = ..., joint: _Optional[bool] = ..., configuration_index: _Optional[int] = ..., committed: _Optional[bool] = ..., last_index: _Optional[int] = ..., preferred: _Optional[str] = ...) -> None: ...
