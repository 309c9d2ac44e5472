from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CampaignReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAMPAIGN_REASON_TIMEOUT: _ClassVar[CampaignReason]
    CAMPAIGN_REASON_TRANSFER: _ClassVar[CampaignReason]

class EntriesStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRIES_STATUS_UNSPECIFIED: _ClassVar[EntriesStatus]
    ENTRIES_STATUS_GIVEN: _ClassVar[EntriesStatus]
    ENTRIES_STATUS_NOT_YET: _ClassVar[EntriesStatus]
    ENTRIES_STATUS_ROTTEN: _ClassVar[EntriesStatus]

class SnapshotStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_STATUS_UNSPECIFIED: _ClassVar[SnapshotStatus]
    SNAPSHOT_STATUS_GIVEN: _ClassVar[SnapshotStatus]
    SNAPSHOT_STATUS_GONE: _ClassVar[SnapshotStatus]
CAMPAIGN_REASON_TIMEOUT: CampaignReason
CAMPAIGN_REASON_TRANSFER: CampaignReason
ENTRIES_STATUS_UNSPECIFIED: EntriesStatus
ENTRIES_STATUS_GIVEN: EntriesStatus
ENTRIES_STATUS_NOT_YET: EntriesStatus
ENTRIES_STATUS_ROTTEN: EntriesStatus
SNAPSHOT_STATUS_UNSPECIFIED: SnapshotStatus
SNAPSHOT_STATUS_GIVEN: SnapshotStatus
SNAPSHOT_STATUS_GONE: SnapshotStatus

class Hello(_message.Message):
    __slots__ = ("protocol_version", "broker_group", "node_id", "to_node_id", "segment_size_bytes", "disk_id", "boot_number", "boot_nonce", "configuration_term", "configuration_index", "level", "begun_term", "begun_vote", "begun_index", "acknowledges_unsynced", "gives_entries", "compares_digests", "tells_log_start", "recoveries", "recoveries_checksum")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BOOT_NONCE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_TERM_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    BEGUN_TERM_FIELD_NUMBER: _ClassVar[int]
    BEGUN_VOTE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_UNSYNCED_FIELD_NUMBER: _ClassVar[int]
    GIVES_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPARES_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TELLS_LOG_START_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    broker_group: str
    node_id: str
    to_node_id: str
    segment_size_bytes: int
    disk_id: bytes
    boot_number: int
    boot_nonce: int
    configuration_term: int
    configuration_index: int
    level: int
    begun_term: int
    begun_vote: str
    begun_index: int
    acknowledges_unsynced: bool
    gives_entries: bool
    compares_digests: bool
    tells_log_start: bool
    recoveries: _containers.RepeatedScalarFieldContainer[bytes]
    recoveries_checksum: int
    def __init__(self, protocol_version: _Optional[int] = ..., broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., segment_size_bytes: _Optional[int] = ..., disk_id: _Optional[bytes] = ..., boot_number: _Optional[int] = ..., boot_nonce: _Optional[int] = ..., configuration_term: _Optional[int] = ..., configuration_index: _Optional[int] = ..., level: _Optional[int] = ..., begun_term: _Optional[int] = ..., begun_vote: _Optional[str] = ..., begun_index: _Optional[int] = ..., acknowledges_unsynced: _Optional[bool] = ..., gives_entries: _Optional[bool] = ..., compares_digests: _Optional[bool] = ..., tells_log_start: _Optional[bool] = ..., recoveries: _Optional[_Iterable[bytes]] = ..., recoveries_checksum: _Optional[int] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("term", "hello", "pre_vote_request", "pre_vote_response", "vote_request", "vote_response", "append_request", "append_response", "heartbeat_request", "heartbeat_response", "timeout_now", "keep_alive", "entries_request", "entries_response", "digest_request", "digest_response", "snapshot_offer", "snapshot_request", "snapshot_response", "log_start_request", "log_start_response", "secret_proof", "certificate_proof", "checksum")
    TERM_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    APPEND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_OFFER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOG_START_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SECRET_PROOF_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_PROOF_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    term: int
    hello: Hello
    pre_vote_request: PreVoteRequest
    pre_vote_response: PreVoteResponse
    vote_request: VoteRequest
    vote_response: VoteResponse
    append_request: AppendRequest
    append_response: AppendResponse
    heartbeat_request: HeartbeatRequest
    heartbeat_response: HeartbeatResponse
    timeout_now: TimeoutNow
    keep_alive: KeepAlive
    entries_request: EntriesRequest
    entries_response: EntriesResponse
    digest_request: DigestRequest
    digest_response: DigestResponse
    snapshot_offer: SnapshotOffer
    snapshot_request: SnapshotRequest
    snapshot_response: SnapshotResponse
    log_start_request: LogStartRequest
    log_start_response: LogStartResponse
    secret_proof: SecretProof
    certificate_proof: CertificateProof
    checksum: int
    def __init__(self, term: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., pre_vote_request: _Optional[_Union[PreVoteRequest, _Mapping]] = ..., pre_vote_response: _Optional[_Union[PreVoteResponse, _Mapping]] = ..., vote_request: _Optional[_Union[VoteRequest, _Mapping]] = ..., vote_response: _Optional[_Union[VoteResponse, _Mapping]] = ..., append_request: _Optional[_Union[AppendRequest, _Mapping]] = ..., append_response: _Optional[_Union[AppendResponse, _Mapping]] = ..., heartbeat_request: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., heartbeat_response: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., keep_alive: _Optional[_Union[KeepAlive, _Mapping]] = ..., entries_request: _Optional[_Union[EntriesRequest, _Mapping]] = ..., entries_response: _Optional[_Union[EntriesResponse, _Mapping]] = ..., digest_request: _Optional[_Union[DigestRequest, _Mapping]] = ..., digest_response: _Optional[_Union[DigestResponse, _Mapping]] = ..., snapshot_offer: _Optional[_Union[SnapshotOffer, _Mapping]] = ..., snapshot_request: _Optional[_Union[SnapshotRequest, _Mapping]] = ..., snapshot_response: _Optional[_Union[SnapshotResponse, _Mapping]] = ..., log_start_request: _Optional[_Union[LogStartRequest, _Mapping]] = ..., log_start_response: _Optional[_Union[LogStartResponse, _Mapping]] = ..., secret_proof: _Optional[_Union[SecretProof, _Mapping]] = ..., certificate_proof: _Optional[_Union[CertificateProof, _Mapping]] = ..., checksum: _Optional[int] = ...) -> None: ...

class PreVoteRequest(_message.Message):
    __slots__ = ("last_index", "last_term")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class PreVoteResponse(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    def __init__(self, granted: _Optional[bool] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("last_index", "last_term", "reason")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    reason: CampaignReason
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., reason: _Optional[_Union[CampaignReason, str]] = ...) -> None: ...

class VoteResponse(_message.Message):
    __slots__ = ("granted", "wall_ms")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    wall_ms: int
    def __init__(self, granted: _Optional[bool] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("prev_index", "prev_term", "commit_index", "frames", "frames_size")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_SIZE_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    commit_index: int
    frames: bytes
    frames_size: int
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., commit_index: _Optional[int] = ..., frames: _Optional[bytes] = ..., frames_size: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("accepted", "match_index", "rejected_prev_index", "conflict_term", "conflict_first_index", "last_index")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TERM_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    match_index: int
    rejected_prev_index: int
    conflict_term: int
    conflict_first_index: int
    last_index: int
    def __init__(self, accepted: _Optional[bool] = ..., match_index: _Optional[int] = ..., rejected_prev_index: _Optional[int] = ..., conflict_term: _Optional[int] = ..., conflict_first_index: _Optional[int] = ..., last_index: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("commit_index", "read_context", "digest_index", "digest")
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    READ_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    commit_index: int
    read_context: int
    digest_index: int
    digest: int
    def __init__(self, commit_index: _Optional[int] = ..., read_context: _Optional[int] = ..., digest_index: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("read_context", "last_index", "is_short_of_space", "wall_ms", "disk_free_bytes", "disk_total_bytes", "disk_checksum")
    READ_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_SHORT_OF_SPACE_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    read_context: int
    last_index: int
    is_short_of_space: bool
    wall_ms: int
    disk_free_bytes: int
    disk_total_bytes: int
    disk_checksum: int
    def __init__(self, read_context: _Optional[int] = ..., last_index: _Optional[int] = ..., is_short_of_space: _Optional[bool] = ..., wall_ms: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_total_bytes: _Optional[int] = ..., disk_checksum: _Optional[int] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KeepAlive(_message.Message):
    __slots__ = ("held_index", "settled_index")
    HELD_INDEX_FIELD_NUMBER: _ClassVar[int]
    SETTLED_INDEX_FIELD_NUMBER: _ClassVar[int]
    held_index: int
    settled_index: int
    def __init__(self, held_index: _Optional[int] = ..., settled_index: _Optional[int] = ...) -> None: ...

class EntriesRequest(_message.Message):
    __slots__ = ("number", "first_index", "last_index", "last_term")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    number: int
    first_index: int
    last_index: int
    last_term: int
    def __init__(self, number: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class EntriesResponse(_message.Message):
    __slots__ = ("number", "status", "frames", "frames_size")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_SIZE_FIELD_NUMBER: _ClassVar[int]
    number: int
    status: EntriesStatus
    frames: bytes
    frames_size: int
    def __init__(self, number: _Optional[int] = ..., status: _Optional[_Union[EntriesStatus, str]] = ..., frames: _Optional[bytes] = ..., frames_size: _Optional[int] = ...) -> None: ...

class DigestRequest(_message.Message):
    __slots__ = ("number", "index", "entry_term", "digest", "only_looks_again", "looks_again_checksum")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TERM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ONLY_LOOKS_AGAIN_FIELD_NUMBER: _ClassVar[int]
    LOOKS_AGAIN_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    entry_term: int
    digest: int
    only_looks_again: bool
    looks_again_checksum: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., entry_term: _Optional[int] = ..., digest: _Optional[int] = ..., only_looks_again: _Optional[bool] = ..., looks_again_checksum: _Optional[int] = ...) -> None: ...

class DigestResponse(_message.Message):
    __slots__ = ("number", "index", "entry_term", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TERM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    entry_term: int
    digest: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., entry_term: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class SnapshotOffer(_message.Message):
    __slots__ = ("index", "index_term", "digest", "end_offset", "append_time_ms", "configuration_index", "configuration_term", "configuration")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_TERM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_TERM_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    index_term: int
    digest: int
    end_offset: int
    append_time_ms: int
    configuration_index: int
    configuration_term: int
    configuration: bytes
    def __init__(self, index: _Optional[int] = ..., index_term: _Optional[int] = ..., digest: _Optional[int] = ..., end_offset: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., configuration_index: _Optional[int] = ..., configuration_term: _Optional[int] = ..., configuration: _Optional[bytes] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("number", "index", "at")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    number: int
    index: int
    at: int
    def __init__(self, number: _Optional[int] = ..., index: _Optional[int] = ..., at: _Optional[int] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("number", "status", "size_bytes", "piece", "piece_crc")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    PIECE_CRC_FIELD_NUMBER: _ClassVar[int]
    number: int
    status: SnapshotStatus
    size_bytes: int
    piece: bytes
    piece_crc: int
    def __init__(self, number: _Optional[int] = ..., status: _Optional[_Union[SnapshotStatus, str]] = ..., size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ..., piece_crc: _Optional[int] = ...) -> None: ...

class LogStartRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LogStartResponse(_message.Message):
    __slots__ = ("number", "log_start")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    number: int
    log_start: bytes
    def __init__(self, number: _Optional[int] = ..., log_start: _Optional[bytes] = ...) -> None: ...

class SecretProof(_message.Message):
    __slots__ = ("broker_group", "node_id", "to_node_id", "nonce", "mac")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    to_node_id: str
    nonce: bytes
    mac: bytes
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., nonce: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class CertificateProof(_message.Message):
    __slots__ = ("broker_group", "node_id", "to_node_id", "handshake")
    BROKER_GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    broker_group: str
    node_id: str
    to_node_id: str
    handshake: bytes
    def __init__(self, broker_group: _Optional[str] = ..., node_id: _Optional[str] = ..., to_node_id: _Optional[str] = ..., handshake: _Optional[bytes] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("voters", "voters_outgoing", "learners", "members", "observers", "preferred", "epoch")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_OUTGOING_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[str]
    voters_outgoing: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    observers: _containers.RepeatedScalarFieldContainer[str]
    preferred: str
    epoch: GroupEpoch
    def __init__(self, voters: _Optional[_Iterable[str]] = ..., voters_outgoing: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., observers: _Optional[_Iterable[str]] = ..., preferred: _Optional[str] = ..., epoch: _Optional[_Union[GroupEpoch, _Mapping]] = ...) -> None: ...

class GroupEpoch(_message.Message):
    __slots__ = ("recoveries", "last")
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    recoveries: _containers.RepeatedScalarFieldContainer[bytes]
    last: Recovery
    def __init__(self, recoveries: _Optional[_Iterable[bytes]] = ..., last: _Optional[_Union[Recovery, _Mapping]] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("survivor", "time_ms", "term", "index", "committed_index", "given_up")
    SURVIVOR_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_INDEX_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    survivor: str
    time_ms: int
    term: int
    index: int
    committed_index: int
    given_up: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, survivor: _Optional[str] = ..., time_ms: _Optional[int] = ..., term: _Optional[int] = ..., index: _Optional[int] = ..., committed_index: _Optional[int] = ..., given_up: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "disk_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DISK_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    disk_id: bytes
    address: str
    def __init__(self, node_id: _Optional[str] = ..., disk_id: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...
