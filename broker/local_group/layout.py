"""The folder of a local group: `group.json`, one folder a node, a lock.

This owns the files: their shape, reading them with suspicion, replacing them as a whole, and
taking them away again. It starts and signals nothing. A file that doesn't check is an error and
never a guess, since process ids and folders to delete are read from it.

    <dir>/group.json        LocalGroupFile
    <dir>/group.lock        held (flock) while group.json changes
    <dir>/group.secret      what its nodes prove to each other to hold (mode 0600)
    <dir>/<id>/node.toml    the node's configuration
    <dir>/<id>/node.log     what its processes wrote
    <dir>/<id>/data         its data directory
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from broker.config import MAX_MEMBERS, MIB, ConfigError, NodeConfig, StoreConfig, dump_toml
from broker.local_group.errors import (
    GroupFileBroken,
    LocalGroupError,
    NodeUnrecorded,
    NotAGroup,
    OptionsRefused,
)
from broker.local_group.ports import LOOPBACK, PortReservation, reserve_ports
from broker.local_group.process import ProcessIdentity, is_running
from dledger.credentials.errors import CredentialUnusable
from dledger.credentials.files import unfinished
from dledger.credentials.secret import GroupSecret
from dledger.reading.files import opened
from store.files import OsFiles

GROUP_FILE = "group.json"
LOCK_FILE = "group.lock"
SECRET_FILE = "group.secret"
GROUP_NAME = "local"
MAX_HOLDER_BYTES = 256
MAX_GROUP_FILE_BYTES = 1 << 20  # far beyond fifteen nodes with the longest of paths
DEFAULT_NODES = 3
DEFAULT_SEGMENT_SIZE_BYTES = 64 * MIB
METRICS_PORT_DISTANCE = 1000  # with a base port: 7001 serves, 8001 has the metrics

FlushName = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a new group is made with. For a group that exists, None asks for nothing."""

    nodes: int | None = None
    base_port: int | None = None
    segment_size_bytes: int | None = None
    flush: FlushName | None = None


class LocalNode(BaseModel):
    """One node of a local group, as `group.json` describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    address: str
    metrics_address: str
    pid: int | None = Field(default=None, gt=1)
    started: str | None = None
    data_directory: str
    config: str

    @property
    def process(self) -> ProcessIdentity | None:
        """The process that was last started for this node; it may be over."""
        if self.pid is None or self.started is None:
            return None
        return ProcessIdentity(self.pid, self.started)

    @property
    def log_file(self) -> Path:
        """Where the outputs of the node's processes are appended."""
        return Path(self.config).parent / "node.log"

    def is_running(self) -> bool:
        """Whether the node has a process (which may be stopped by a SIGSTOP)."""
        return self.process is not None and is_running(self.process)


class LocalGroupFile(BaseModel):
    """`group.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["dledger-local-group/1"]
    group: str
    base_port: int | None
    segment_size_bytes: int
    flush: FlushName
    nodes: tuple[LocalNode, ...] = Field(min_length=1, max_length=MAX_MEMBERS)

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        if len({node.id for node in self.nodes}) != len(self.nodes):
            raise ValueError("two nodes have the same id")
        return self

    def with_node(self, changed: LocalNode) -> LocalGroupFile:
        """The same with one node changed."""
        nodes = tuple(changed if node.id == changed.id else node for node in self.nodes)
        return self.model_copy(update={"nodes": nodes})


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One program at a time changes the group; what is done under the lock never waits.

    Raises:
        LocalGroupError: the directory can't be written.
    """
    while True:
        try:
            _make_durably(directory)
            descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _cannot_write(directory, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_there(directory / LOCK_FILE, descriptor):
                continue  # it was wiped while this waited, and the next one locks another file
            yield
            return
        finally:
            os.close(descriptor)


def _make_durably(directory: Path) -> None:
    """The directory is there, and so are those around it, also after a power cut.

    Raises:
        OSError: it can't be.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        OsFiles().fsync_directory(folder.parent)
    if not directory.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def check_unlocked(directory: Path, record: LocalGroupFile) -> None:
    """No process has a node's data that isn't the node's own, as far as `record` knows.

    Raises:
        NodeUnrecorded: one has.
        LocalGroupError: that can't be told.
    """
    for node in record.nodes:
        data = directory / node.id / "data"
        if node.is_running():
            continue
        try:
            with opened(str(data / "LOCK")) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it has never run
        except BlockingIOError as error:
            raise NodeUnrecorded(node.id, data, _holder(data / "LOCK")) from error
        except OSError as error:
            raise LocalGroupError(f"can't look whether {data} is in use: {error}") from error


def _holder(lock: Path) -> str:
    with opened(str(lock)) as descriptor:
        return os.pread(descriptor, MAX_HOLDER_BYTES, 0).decode(errors="replace").strip() or "it"


def read_group_file(directory: Path) -> LocalGroupFile:
    """What `group.json` says.

    Raises:
        NotAGroup: it isn't there.
        GroupFileBroken: it can't be read, isn't ours, or points outside of its folder.
    """
    path = directory / GROUP_FILE
    try:
        with opened(str(path)) as descriptor:  # never waits for a pipe's other end
            text = os.pread(descriptor, MAX_GROUP_FILE_BYTES, 0)
    except (FileNotFoundError, NotADirectoryError):
        raise NotAGroup(directory) from None
    except OSError as error:
        raise GroupFileBroken(path, error.strerror or str(error)) from error
    try:
        record = LocalGroupFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise GroupFileBroken(path, reason) from error
    for node in record.nodes:
        if Path(node.config) != directory / node.id / "node.toml":
            raise GroupFileBroken(path, f"{node.config} isn't in {directory / node.id}")
    return record


def write_group_file(directory: Path, record: LocalGroupFile) -> None:
    """Replaces `group.json`: a reader sees the old one or the new one, never half of one.

    Raises:
        LocalGroupError: it can't be written.
    """
    path = directory / GROUP_FILE
    fresh = path.with_suffix(".json.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(record.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())  # else an empty one may be what a power cut leaves
        fresh.replace(path)
        OsFiles().fsync_directory(directory)
    except OSError as error:
        raise _cannot_write(path, error) from error


def plan_ports(options: GroupOptions) -> tuple[tuple[int, ...], PortReservation | None]:
    """A new group's ports: first those that serve, then as many for metrics.

    Picked ports come with their reservation; a base port's are the caller's own affair.

    Raises:
        LocalGroupError: an option makes no sense, or no ports are free.
    """
    count = DEFAULT_NODES if options.nodes is None else options.nodes
    if not 1 <= count <= MAX_MEMBERS:
        raise OptionsRefused(f"a group has 1 to {MAX_MEMBERS} nodes, not {count}")
    first = options.base_port
    if first is None:
        reservation = reserve_ports(2 * count)
        return reservation.ports, reservation
    last = first + count - 1 + METRICS_PORT_DISTANCE
    if first < 1 or last > 65535:
        raise OptionsRefused(f"ports {first} to {last} would be needed; the last is 65535")
    serving = range(first, first + count)
    return (*serving, *(port + METRICS_PORT_DISTANCE for port in serving)), None


def plan_group(directory: Path, options: GroupOptions, ports: Sequence[int]) -> LocalGroupFile:
    """What a new group in `directory` would be; nothing is written yet.

    Raises:
        LocalGroupError: an option makes no sense.
    """
    count = len(ports) // 2
    serving, metrics = ports[:count], ports[count:]
    nodes = tuple(
        LocalNode(
            id=node_id,
            address=f"{LOOPBACK}:{serving[at]}",
            metrics_address=f"{LOOPBACK}:{metrics[at]}",
            data_directory=str(directory / node_id / "data"),
            config=str(directory / node_id / "node.toml"),
        )
        for at, node_id in enumerate(f"n{number}" for number in range(1, count + 1))
    )
    record = LocalGroupFile(
        format="dledger-local-group/1",
        group=GROUP_NAME,
        base_port=options.base_port,
        segment_size_bytes=options.segment_size_bytes or DEFAULT_SEGMENT_SIZE_BYTES,
        flush=options.flush or "sync",
        nodes=nodes,
    )
    for node in nodes:
        # Refuses what a node would refuse at its start.
        _configuration(record, node, directory / SECRET_FILE)
    return record


def lay_out(directory: Path, record: LocalGroupFile) -> None:
    """Writes the files of a new group; nothing runs yet.

    The secret first, and `group.json` last: what was cut short is no group, and is begun again with
    the secret that is there.

    Raises:
        LocalGroupError: a file can't be written, or what is there as a secret is none.
    """
    secret_file = directory / SECRET_FILE
    try:
        if os.path.lexists(secret_file):
            GroupSecret.load(secret_file)
        else:
            GroupSecret.create(secret_file)
    except CredentialUnusable as error:
        raise LocalGroupError(f"can't write {directory}: {error}") from error
    for node in record.nodes:
        _write_configuration(directory / node.id, _configuration(record, node, secret_file))
    write_group_file(directory, record)


def remove_files(directory: Path, record: LocalGroupFile) -> None:
    """Takes away what `lay_out` and the nodes wrote, and nothing else.

    Raises:
        LocalGroupError: something can't be removed.
    """
    try:
        for node in record.nodes:
            folder = directory / node.id
            if folder.is_symlink():
                raise GroupFileBroken(directory / GROUP_FILE, f"{folder} is a link")
            if folder.exists():
                shutil.rmtree(folder)
        (directory / GROUP_FILE).with_suffix(".json.new").unlink(missing_ok=True)
        for file in (*unfinished(directory / SECRET_FILE), directory / SECRET_FILE):
            file.unlink(missing_ok=True)  # groups of before have none
        (directory / GROUP_FILE).unlink()  # after the folders: a wipe that broke off is repeated
        (directory / LOCK_FILE).unlink()
        if not any(directory.iterdir()):
            directory.rmdir()
    except OSError as error:
        raise _cannot_write(directory, error) from error


def _configuration(record: LocalGroupFile, node: LocalNode, secret_file: Path) -> NodeConfig:
    try:
        return NodeConfig(
            broker_group=record.group,
            node_id=node.id,
            data_directory=Path(node.data_directory),
            listen=node.address,
            metrics_listen=node.metrics_address,
            secret_file=secret_file,
            peers={peer.id: peer.address for peer in record.nodes},
            store=StoreConfig(segment_size_bytes=record.segment_size_bytes, flush=record.flush),
        )
    except ValidationError as error:
        mistake = ConfigError.from_validation(Path(node.config), error)
        raise OptionsRefused(str(mistake)) from error


def _write_configuration(folder: Path, config: NodeConfig) -> None:
    try:
        folder.mkdir(exist_ok=True)
        with (folder / "node.toml").open("w", encoding="utf-8") as file:
            file.write(dump_toml(config, folder))
            file.flush()
            os.fsync(file.fileno())  # before `group.json`, which says that it is there
        OsFiles().fsync_directory(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(path: Path, error: OSError) -> LocalGroupError:
    return LocalGroupError(f"can't write {path}: {error.strerror or error}")
