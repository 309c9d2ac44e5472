"""The configuration of one node: a TOML file in, frozen and checked values out.

This owns every key a node can be configured with, its type, its bounds, its default and the
rules between keys. A mistake is told with file, key, what was found and what is allowed, before
the node touches its data or a socket. It must never guess: an unknown key, a string where a
number belongs or a time that isn't a whole number of ticks is refused, because a safety setting
that was silently ignored is found out in the worst hour.

PreVote and CheckQuorum can't be switched off, and the bounds of the replicated state (how long a
producer is remembered, how many) are constants of `broker.state`: replicas that decided them
differently would diverge. Source: the seeds' defaults; etcd's `--heartbeat-interval` rules.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NoReturn, Self, get_args

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from dledger.addresses import is_ipv6, is_loopback, split_address
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.naming import NAME_RULE, is_name
from dledger.outcome import ExitCode

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MAX_BYTES = 1 << 62  # of anything: it travels in statuses, in 64 bits

MAX_MEMBERS = 15
RECORD_SLACK_BYTES = MIB  # what a segment must hold beside the largest body: headers, properties
PAGE_BYTES = 4096
MAX_FILE_BYTES = MIB  # of a configuration: a device or a pipe without an end is not read for ever
MAX_SHOWN = 400  # characters of what is told of a wrong value
EVERY_HOST = "0.0.0.0"  # listens on all of the machine's, and can be dialed from nowhere else


class ConfigError(Exception):
    """A configuration file can't be used. `key` is empty when the file as a whole is wrong."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, file: Path, key: str, found: str, expected: str) -> None:
        place = f"{file}: {_one_line(key)}" if key else f"{file}"
        super().__init__(f"{place}: found {found}, expected {expected}")
        self.file = file
        self.key = key
        self.found = found
        self.expected = expected

    @classmethod
    def from_validation(cls, file: Path, error: ValidationError) -> ConfigError:
        """The first of the mistakes that a validation of `NodeConfig` found, and how many more."""
        details = error.errors(include_url=False)
        first, more = details[0], len(details) - 1
        expected = _expected(first)
        if more:
            expected += f" (and {more} more mistake{'s' if more > 1 else ''})"
        return cls(file, _key(first), _found(first), expected)


def refuse(expected: str, *, key: str = "", found: object = None) -> NoReturn:
    """Fails the validation that is under way; `key` overrides the place where it happened."""
    context = {"expected": expected, "key": key, "found": found}
    raise PydanticCustomError("refused", "expected {expected}", context)


def _checked_address(address: str) -> str:
    try:
        host, _ = split_address(address)
        # A record's STOREHOST has four bytes for the host, so IPv6 literals have no place in it.
        if not is_ipv6(host):
            return address
    except ValueError:
        pass
    refuse("host:port, a host name or IPv4 address and a port of 1 to 65535")


def _checked_name(name: str) -> str:
    if not is_name(name):
        refuse(NAME_RULE)
    return name


def _checked_path(path: Path) -> Path:
    # The system's calls end a path at a NUL byte; one that is empty is the folder it is taken from.
    if path == Path() or "\0" in str(path):
        refuse("a path that names something and holds no NUL byte")
    return path


def _checked_range(pair: tuple[int, int]) -> tuple[int, int]:
    if not 0 < pair[0] < pair[1] <= 60_000:
        refuse("two whole numbers of milliseconds, 0 < first < second <= 60000")
    return pair


Name = Annotated[str, AfterValidator(_checked_name)]
Address = Annotated[str, AfterValidator(_checked_address)]
# TOML has no paths, only strings.
FilePath = Annotated[Path, Field(strict=False), AfterValidator(_checked_path)]
# TOML has no tuples, only lists; the numbers inside stay strict.
Range = Annotated[tuple[StrictInt, StrictInt], Field(strict=False), AfterValidator(_checked_range)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class RaftConfig(_Section):
    """`[raft]`: times in milliseconds, whole numbers of ticks; bounds of replication."""

    tick_ms: int = Field(default=10, ge=1, le=100)
    election_timeout_ms: Range = (150, 300)
    heartbeat_ms: int = Field(default=50, ge=1)
    suspicion_delay_ms: Range = (10, 40)  # from a leader's broken stream to the PreVote
    transfer_timeout_ms: int = Field(default=300, ge=1, le=60_000)
    max_append_bytes: int = Field(default=MIB, ge=4 * KIB, le=8 * MIB)  # one append message
    max_append_entries: int = Field(default=1_024, ge=1, le=4_096)  # in it
    max_inflight_appends: int = Field(default=32, ge=1, le=1024)  # per peer
    max_uncommitted_bytes: int = Field(default=64 * MIB, ge=MIB, le=GIB)

    @model_validator(mode="after")
    def _times_fit_together(self) -> Self:
        times = {
            "election_timeout_ms": self.election_timeout_ms,
            "heartbeat_ms": (self.heartbeat_ms,),
            "suspicion_delay_ms": self.suspicion_delay_ms,
            "transfer_timeout_ms": (self.transfer_timeout_ms,),
        }
        for key, values in times.items():
            if any(value % self.tick_ms for value in values):
                found = list(values) if len(values) > 1 else values[0]
                refuse(f"whole ticks of raft.tick_ms = {self.tick_ms}", key=key, found=found)
        shortest = self.election_timeout_ms[0]
        if self.heartbeat_ms * 2 >= shortest:
            refuse(
                f"less than half of the shortest election timeout ({shortest})",
                key="heartbeat_ms",
                found=self.heartbeat_ms,
            )
        return self


class StoreConfig(_Section):
    """`[store]`: how the CommitLog is laid out and made durable."""

    segment_size_bytes: int = Field(default=GIB, ge=2 * MIB, le=2 * GIB, multiple_of=PAGE_BYTES)
    flush: Literal["sync", "async"] = "sync"
    async_flush_interval_ms: int = Field(default=500, ge=1, le=60_000)
    async_flush_pages: int = Field(default=4, ge=0, le=1 << 20)  # of 4 KiB
    warm_up: bool = False
    mlock: bool = False
    write_buffer_bytes: int = Field(default=0, ge=0, le=GIB)
    reserve_bytes: int = Field(default=64 * MIB, ge=0, le=MAX_BYTES)
    scrub_percent: float = Field(default=3.0, ge=0, le=100)  # of a processor; 0: none

    @model_validator(mode="after")
    def _buffer_is_admitted(self) -> Self:
        if self.write_buffer_bytes and self.flush != "async":
            # A buffer in process memory under flush = "sync" would lose what was acknowledged.
            refuse(
                '0, or store.flush = "async"',
                key="write_buffer_bytes",
                found=self.write_buffer_bytes,
            )
        return self


class RetentionConfig(_Section):
    """`[retention]`: what the leader lets go of the log's front, in whole segments; 0: nothing for
    that reason. The same on every member, as each may lead."""

    age_hours: int = Field(default=72, ge=0, le=24 * 36_500)
    bytes: int = Field(default=0, ge=0, le=MAX_BYTES)
    disk_percent: int = Field(default=0, ge=0, le=99)  # of a voter's disk, from which on
    archive: list[str] = []  # program and arguments, given each segment before it goes
    archive_hold_hours: int = Field(default=24, ge=0, le=24 * 365)  # while that fails

    @field_validator("archive")
    @classmethod
    def _is_a_command(cls, archive: list[str]) -> list[str]:
        if archive and not archive[0]:
            refuse("a program and its arguments", found=archive)
        if any("\0" in each for each in archive):
            refuse("arguments without NUL", found=archive)
        return archive


class BrokerConfig(_Section):
    """`[broker]`: bounds of what clients may ask for."""

    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=KIB, le=MAX_MESSAGE_BYTES)
    long_poll_default_ms: int = Field(default=15_000, ge=0)
    long_poll_max_ms: int = Field(default=20_000, ge=0, le=120_000)
    max_held_pulls: int = Field(default=10_000, ge=1, le=1_000_000)
    group_unused_hours: int = Field(default=168, ge=1, le=876_000)  # of lived time; then forgotten
    idle_connection_ms: int = Field(default=60_000, ge=1_000, le=3_600_000)  # without a call
    audit_bytes_per_s: int = Field(default=100 * MIB, ge=MIB, le=100 * GIB)  # all calls together

    @model_validator(mode="after")
    def _default_is_within_maximum(self) -> Self:
        if self.long_poll_default_ms > self.long_poll_max_ms:
            refuse(
                f"at most broker.long_poll_max_ms = {self.long_poll_max_ms}",
                key="long_poll_default_ms",
                found=self.long_poll_default_ms,
            )
        return self


class TlsConfig(_Section):
    """`[tls]`: PEM files; read again when they change. See `dledger.credentials.tls`."""

    ca: FilePath
    certificate: FilePath
    key: FilePath
    revoked: FilePath | None = None  # SHA-256 fingerprints of certificates no longer believed
    client_certificates: Literal["none", "required"] = "none"  # at `listen` and `admin_listen`


class LogConfig(_Section):
    """`[log]`: the node's own log of events, to standard error or to `file`."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"  # auto: console on a terminal
    file: FilePath | None = None


class NodeConfig(_Section):
    """Everything one node needs to know before it starts."""

    broker_group: Name
    node_id: Name
    data_directory: FilePath
    listen: Address
    advertise: Address | None = None  # the address in peers, where `listen` is another one
    metrics_listen: Address | None = None
    peer_listen: Address | None = None  # where peers dial, apart from `listen`
    admin_listen: Address | None = None  # audits and administration, apart from `listen`
    insecure: bool = False  # listens beyond loopback without TLS
    secret_file: FilePath | None = None  # what peers prove to hold
    peers: dict[Name, Address] = Field(min_length=1, max_length=MAX_MEMBERS)
    dial: dict[Name, Address] = Field(default_factory=dict)  # instead of the address in peers
    raft: RaftConfig = RaftConfig()
    store: StoreConfig = StoreConfig()
    retention: RetentionConfig = RetentionConfig()
    broker: BrokerConfig = BrokerConfig()
    log: LogConfig = LogConfig()
    tls: TlsConfig | None = None

    @property
    def doors(self) -> dict[str, str]:
        """The addresses that gRPC listens at, by their keys."""
        named = {
            "listen": self.listen,
            "peer_listen": self.peer_listen,
            "admin_listen": self.admin_listen,
        }
        return {key: address for key, address in named.items() if address is not None}

    @property
    def admin_address(self) -> str | None:
        """Where others reach `admin_listen`; None: nowhere, or where the clients are."""
        if self.admin_listen is None:
            return None
        known_as = self.peers[self.node_id]
        if is_loopback(self.admin_listen) and not is_loopback(known_as):
            return None  # on another machine that address is another node's, or nobody's
        host, port = split_address(self.admin_listen)
        if host == EVERY_HOST:  # as `advertise` stands for such a `listen`
            host, _ = split_address(known_as)
        return f"{host}:{port}"

    @property
    def are_peers_named(self) -> bool:
        """Whether who dials as a peer shows a certificate: gRPC asks for none or from everybody
        at an address."""
        tls = self.tls
        return tls is not None and (
            self.peer_listen is not None or tls.client_certificates == "required"
        )

    @model_validator(mode="before")
    @classmethod
    def _no_old_name(cls, document: object) -> object:
        # Alone, and not as an unknown key beside a missing one: it is one mistake.
        if isinstance(document, dict) and "group" in document:
            expected = "broker_group, as this key is called now"
            refuse(expected, key="group", found=document["group"])
        return document

    @model_validator(mode="after")
    def _node_is_a_member(self) -> Self:
        ours = self.peers.get(self.node_id)
        if ours is None:
            refuse(f"one of peers: {', '.join(self.peers)}", key="node_id", found=self.node_id)
        known_as, key = self.listen, "listen"
        if self.advertise is not None:
            known_as, key = self.advertise, "advertise"
        if ours != known_as:
            refuse(f"peers.{self.node_id}, which is {ours}", key=key, found=known_as)
        if len(set(self.peers.values())) != len(self.peers):
            refuse("a different address for each member", key="peers", found=dict(self.peers))
        taken: dict[str, str] = {}
        doors = self.doors
        if self.metrics_listen is not None:
            doors["metrics_listen"] = self.metrics_listen
        for key, address in doors.items():
            if address in taken:
                refuse(f"an address other than {taken[address]}", key=key, found=address)
            taken[address] = key
        return self

    @model_validator(mode="after")
    def _strangers_are_kept_out(self) -> Self:
        if self.tls is None:
            for key, address in self.doors.items():
                if not self.insecure and not is_loopback(address):
                    refuse(
                        "an address of loopback, or [tls], or insecure = true",
                        key=key,
                        found=address,
                    )
        elif self.insecure:
            refuse("false beside [tls], which is not", key="insecure", found=True)
        elif not self.are_peers_named and self.secret_file is None:
            # Otherwise whoever can make a TLS connection could speak as a peer.
            expected = 'client_certificates = "required", or a peer_listen, or a secret_file'
            refuse(expected, key="tls.client_certificates", found="none")
        return self

    @model_validator(mode="after")
    def _only_peers_are_dialed(self) -> Self:
        for name in self.dial:
            if name == self.node_id or name not in self.peers:
                others = ", ".join(peer for peer in self.peers if peer != self.node_id)
                refuse(f"one of the other peers: {others}", key="dial", found=name)
        return self

    @model_validator(mode="after")
    def _largest_message_fits_a_segment(self) -> Self:
        # An entry never spans two segments, so the largest message, alone in its entry, must
        # fit one: its body, and a mebibyte for properties, headers and the filler.
        needed = self.broker.max_message_bytes + RECORD_SLACK_BYTES
        if self.store.segment_size_bytes < needed:
            refuse(
                f"at least broker.max_message_bytes + 1 MiB = {needed}",
                key="store.segment_size_bytes",
                found=self.store.segment_size_bytes,
            )
        return self


def load_config(path: Path) -> NodeConfig:
    """The configuration in the TOML file `path`; its relative paths are taken from its folder.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or holds a mistake; the first one.
    """
    document = _document(path)
    try:
        config = NodeConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigError.from_validation(path, error) from None
    return _anchored(config, path)


def _document(path: Path) -> dict[str, object]:
    """The file as TOML has it."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(path, "", "more", f"at most {MAX_FILE_BYTES} bytes")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(path, "", reason, "a readable file") from error
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        raise ConfigError(path, "", found, "UTF-8 text") from error
    except ValueError as error:  # Beside TOML's own: numbers of thousands of digits, odd times.
        raise ConfigError(path, "", _one_line(str(error)), "TOML") from error
    except RecursionError as error:
        raise ConfigError(path, "", "values nested too deep", "TOML") from error


def _without_waiting(path: str, flags: int) -> int:
    """Opens it, but for a pipe, whose other end may never come."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a pipe", path)
    return descriptor


def dump_toml(config: NodeConfig, folder: Path) -> str:
    """The text of a file in `folder` that `load_config` reads back as `config`."""
    document = config.model_dump(mode="json", exclude_none=True)
    document["data_directory"] = _relative(config.data_directory, folder)
    if config.log.file is not None:
        document["log"]["file"] = _relative(config.log.file, folder)
    if config.secret_file is not None:
        document["secret_file"] = _relative(config.secret_file, folder)
    for key, path in config.tls or ():
        if isinstance(path, Path):
            document["tls"][key] = _relative(path, folder)
    return tomli_w.dumps({key: value for key, value in document.items() if value != {}})


def _anchored(config: NodeConfig, file: Path) -> NodeConfig:
    """With its paths made absolute.

    Raises:
        ConfigError: the node would write beside, above or over its own configuration, where it
            may take another's files for its own.
    """
    file = Path(os.path.normpath(file.absolute()))
    log = config.log
    if (given := log.file) is not None:
        log = log.model_copy(update={"file": file.parent / given})
        if file.is_relative_to(os.path.normpath(file.parent / given)):
            found = json.dumps(str(given))
            raise ConfigError(file, "log.file", found, "a file other than this one")
    given_files = {"secret_file": config.secret_file}
    anchored: dict[str, object] = {
        key: file.parent / path for key, path in given_files.items() if path is not None
    }
    if config.tls is not None:
        files = {key: file.parent / path for key, path in config.tls if isinstance(path, Path)}
        anchored["tls"] = config.tls.model_copy(update=files)
    data_directory = Path(os.path.normpath(file.parent / config.data_directory))
    if file.is_relative_to(data_directory):
        found = json.dumps(str(config.data_directory))
        expected = "a folder of its own, which this file isn't in"
        raise ConfigError(file, "data_directory", found, expected)
    return config.model_copy(update={"data_directory": data_directory, "log": log, **anchored})


def _relative(path: Path, folder: Path) -> str:
    """Within `folder`: relative to it, so that the folder can be moved as a whole."""
    folder = folder.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


# --- Telling a mistake ------------------------------------------------------------------------

_TYPES = {
    "int_type": "a whole number",
    "string_type": "a string",
    "bool_type": "true or false",
    "path_type": "a path as a string",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list of two whole numbers",
}


def _key(detail: ErrorDetails) -> str:
    place = [str(part) for part in detail["loc"] if part != "[key]"]
    if _is_short_pair(detail):
        place.pop()
    named = detail.get("ctx", {}).get("key")
    return ".".join([*place, named] if named else place)


def _found(detail: ErrorDetails) -> str:
    if detail["type"] == "missing" and not _is_short_pair(detail):
        return "nothing"
    if detail["type"] == "extra_forbidden":
        return "an unknown key"
    if detail.get("ctx", {}).get("key"):
        return _shown(detail["ctx"]["found"])
    return _shown(detail["input"])


def _shown(value: object) -> str:
    """The value as JSON, on one line and not endless."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "values nested too deep"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _one_line(text: str) -> str:
    """What a file's author wrote as a key, without what would move a terminal's cursor."""
    return text if text.isprintable() else json.dumps(text)


def _expected(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    match kind:
        case "missing":
            return _TYPES["tuple_type"] if _is_short_pair(detail) else "this key"
        case "extra_forbidden":
            return _known_keys(detail)
        case "greater_than_equal":
            return f"at least {context['ge']}"
        case "less_than_equal":
            return f"at most {context['le']}"
        case "multiple_of":
            return f"a multiple of {context['multiple_of']}"
        case "too_short" | "too_long":
            if detail["loc"] == ("peers",):
                return f"1 to {MAX_MEMBERS} members"
            return _TYPES["tuple_type"]
        case "refused" | "literal_error":
            return str(context["expected"])
    return _TYPES.get(kind, detail["msg"])


def _is_short_pair(detail: ErrorDetails) -> bool:
    """A list of one where two numbers belong: its second item is what is missing."""
    return detail["type"] == "missing" and isinstance(detail["loc"][-1], int)


def _known_keys(detail: ErrorDetails) -> str:
    """The keys of the section where an unknown one stood, the likeliest first."""
    model: type[BaseModel] = NodeConfig
    for part in detail["loc"][:-1]:
        annotation = NodeConfig.model_fields[str(part)].annotation
        for section in (annotation, *get_args(annotation)):
            if isinstance(section, type) and issubclass(section, BaseModel):
                model = section
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
    return f"{close[0]}?" if close else f"one of {', '.join(known)}"
