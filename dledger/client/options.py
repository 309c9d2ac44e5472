"""Options of the client, its producers and its consumers: values, defaults, bounds.

Every bound that the client keeps (time, count, bytes) is named here, beside the reason for its
default. An impossible value fails where it is written, not at the first call.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from math import inf
from pathlib import Path
from typing import Final

from dledger.client.arguments import flag, milliseconds, text
from dledger.client.errors import CodecMissing, InvalidArgument
from dledger.client.hooks import Around, Stamp, checked_hook, checked_on_revoke
from dledger.client.results import RevokedQueues
from dledger.credentials.tls import TlsFiles
from dledger.limits import MESSAGE_LENGTHS
from dledger.records import errors as records
from dledger.records.compression import LEVELS, Codec, check_installed
from dledger.records.reserved import MOST_ATTEMPTS

MAX_SENT_BATCHES: Final = 5  # per queue; the brokers remember that many for deduplication
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{0,255}")  # of a producer
# Source: RocketMQ's messageDelayLevel, from 10 s on.
RETRY_DELAYS_S: Final = (10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
MAX_REQUEST_BYTES: Final = 8 << 20  # of records in one Send; nodes accept 16 MiB

# A node's process that is stopped, or a host that is gone, answers nothing: without keepalive
# pings only the kernel would notice, after a quarter of an hour. `min_reconnect_backoff_ms` is
# gRPC's limit for one connection attempt, not its pace; 50 ms as a limit would keep a client
# off a loaded or distant node for ever. The pace is `initial` to `max`.
CHANNEL_OPTIONS: Final = (
    *MESSAGE_LENGTHS,
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # retries are ours: gRPC's would hide what may have happened
)


class StartFrom(Enum):
    """Where a consumer begins."""

    FIRST = "first"  # the oldest message that is kept
    LAST = "last"  # only what arrives from now on
    COMMITTED = "committed"  # the consumer group's; FIRST for a queue without one


class WhenGone(Enum):
    """What a consumer does when the next message of a queue has gone: whoever reads more slowly
    than the brokers let go of, or comes back after longer than they keep."""

    RAISE = "raise"  # OffsetOutOfRange; nothing is passed over
    FIRST = "first"  # goes on with the oldest message that is kept
    LAST = "last"  # goes on with what arrives from now on


class AllQueues(Enum):
    """The type of `ALL`."""

    ALL = "all"


ALL: Final = AllQueues.ALL  # every queue that the topic has when the reading begins


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client finds its broker group and how long it tries.

    Attributes:
        deadline_s: total time for one call, retries included, unless the call says otherwise.
        status_timeout_s: how long `status()` waits for each node.
        presume_after_s: without word from a serving leader, a leader known by hearsay is tried
            after this long; matters only where WatchLeader is not to be had.
        tls: the authority that the nodes' certificates are believed of, and the certificate that
            is shown where nodes ask for one; None: connections in the clear.
    """

    deadline_s: float = 10.0
    status_timeout_s: float = 1.0
    presume_after_s: float = 0.25
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "deadline_s", "status_timeout_s", "presume_after_s")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer gathers, bounds and retries.

    Attributes:
        linger_ms: while something is in flight, a message waits for an answer, and so long at most
            (or a quarter of its own deadline); with nothing in flight it doesn't wait. Less than
            answers take makes more requests of less each, which cost all sides processor time; it
            is worth it where brokers are far away and have time.
        batch_bytes: a queue's gather is sent when it reaches this size, 1 KiB to 3 MiB.
        max_inflight_requests: Send calls under way at once, 1 to 64.
        max_buffered_messages: accepted and not yet settled; past it `send` raises BufferFull. A
            blocking producer has as many again, but 10,000 at most, on their way to it, and then
            `send` waits.
        max_buffered_bytes: the same in bytes of body; one message is always accepted. On their way
            to a blocking producer is a quarter as much again, and one message.
        delivery_timeout_ms: a batch that is not settled this long after its first message was
            accepted fails, and so does everything behind it in its queue.
        request_timeout_ms: a Send call without an answer is retried after this long. A leader
            that hangs is noticed sooner, by the election of the next one.
        close_timeout_ms: how long `close` waits for what is buffered.
        name: the producer's, 1 to 255 of A-Z a-z 0-9 _ % -. Its numbers survive its process
            (`Producer.register`), and a second producer of the name ends the first one
            (ProducerFenced). Empty: none.
        compression: "zstd", "lz4" or "zlib"; None: bodies are sent as they are. A body is sent
            compressed only if that makes it smaller.
        compression_level: 1 to 22, 0 to 16 or 1 to 9; None: the codec's usual one, 3, 0 or 6.
        compress_above_bytes: smaller bodies, and those of this size, are sent as they are.
        stamp: is called with each message's properties before it is sent, and may add to them; see
            `dledger.client.hooks`.
    """

    linger_ms: float = 20.0
    batch_bytes: int = 256 << 10
    max_inflight_requests: int = 4
    max_buffered_messages: int = 100_000
    max_buffered_bytes: int = 64 << 20
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 15_000
    close_timeout_ms: int = 30_000
    name: str = ""
    compression: str | None = None
    compression_level: int | None = None
    compress_above_bytes: int = 4 << 10
    stamp: Stamp | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME_PATTERN.fullmatch(self.name):
            raise InvalidArgument(
                f"producer name {str(self.name)[:300]!r}: 1 to 255 characters of A-Z a-z 0-9 _ % -"
            )
        if not _is_number(self.linger_ms) or not 0 <= self.linger_ms < inf:
            raise InvalidArgument(f"linger_ms is {self.linger_ms!r}; wanted: 0 or more, and an end")
        _check_finite(self, "delivery_timeout_ms", "request_timeout_ms", "close_timeout_ms")
        _check_counts(self, "max_buffered_messages", "max_buffered_bytes")
        _check_range("batch_bytes", self.batch_bytes, 1 << 10, 3 << 20)
        _check_range("max_inflight_requests", self.max_inflight_requests, 1, 64)
        _check_range("compress_above_bytes", self.compress_above_bytes, 0, 1 << 32)
        _check_compression(self.compression, self.compression_level)
        checked_hook("stamp", self.stamp)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer fetches ahead.

    Attributes:
        prefetch_bytes: records held for the application over all queues, about; each queue
            has at most two answers waiting or under way.
        pull_bytes: the most that one Pull asks for; lowered so that all queues together keep
            to `prefetch_bytes`, though not below 16 KiB.
        hold_ms: how long the leader holds a Pull for which there is nothing, up to 20,000.
        deadline_s: a queue that can't be read for this long ends the iteration with an error. A
            member waits for a topic that isn't to be read now.
        when_gone: what happens when the next message has gone. What is passed over by that is in
            `skipped`, and covered by commits like what was read.
        around: makes a context manager for each message that a loop is given, entered before and
            left when the work on it is over; see `dledger.client.hooks`.
        commit_every_s: of a group's member: what is finished is committed so often, and when a
            queue goes to another member, and when the consumer is closed. None: by `commit` alone.
        member: of a group's member: its name, another one for each; empty: one is made up.
        on_revoke: of a group's member: is called, and awaited, before queues go to another member,
            once what the loop has of them is finished, or 2.4 s after they were asked for; of lost
            ones, afterwards.
        version: of a group's member: of what all members agree on, its tags among that.
    """

    prefetch_bytes: int = 32 << 20
    pull_bytes: int = 1 << 20
    hold_ms: int = 20_000
    deadline_s: float = 60.0
    when_gone: WhenGone = WhenGone.RAISE
    around: Around | None = None
    commit_every_s: float | None = None
    member: str = ""
    on_revoke: Callable[[RevokedQueues], Awaitable[None] | None] | None = None
    version: int = 0

    def __post_init__(self) -> None:
        checked_hook("around", self.around)
        if self.on_revoke is not None:
            checked_on_revoke(self.on_revoke)
        _check_range("version", self.version, 0, (1 << 32) - 1)
        _check_positive(self, "deadline_s")
        _check_counts(self, "prefetch_bytes")
        _check_member(self.member)
        if self.commit_every_s is not None:
            _check_finite(self, "commit_every_s")
        if not isinstance(self.when_gone, WhenGone):
            raise InvalidArgument(f"when_gone is {self.when_gone!r}, no WhenGone")
        _check_range("pull_bytes", self.pull_bytes, 1, 8 << 20)
        _check_range("hold_ms", self.hold_ms, 0, 20_000)


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How a member of a consumer group works. What says *all* is the group's: members that name
    something else are refused, unless with a higher `version`.

    Attributes:
        member: its name, another one for each member, 1 to 255 bytes; empty: one is made up. Who
            joins under the name of a member replaces it.
        version: of the settings that are for all.
        in_order: for all: one message of a queue at a time, and one that fails holds up its queue.
            Otherwise messages of one key are handled one after the other, others side by side.
        broadcast: for all: every member is given every message.
        offsets_file: where a broadcast member keeps how far it is; needed there, and only there.
        strategy: for all: how queues are shared out, STICKY, AVG, AVG_BY_CIRCLE, CONSISTENT_HASH,
            CONFIG (each member names its queues) or what the brokers have besides.
        start: for all: where the group starts in topics that are older than it: FIRST, LAST, or
            the first message stored at or after a time.
        handlers: so many run at once, of each kind: coroutines, and functions on threads.
        handler_timeout_s: a coroutine that takes longer is cancelled, and has failed. A function
            can't be ended: it is told of, and its thread stays with it, and its message for as
            long as the queue is this member's: asked for, it goes after 2.4 s (in order 24).
        commit_every_s: how often what is finished is committed.
        drain_s: how long `run`, when it ends, waits for handlers that are at work.
        queue_messages: of one queue in memory, in handlers or on their way to one.
        queue_bytes: the same in bytes, about.
        queue_span: how far a queue is read beyond its first message that isn't finished.
        pull_bytes: the most that one pull asks for.
        hold_ms: how long the leader holds a pull for which there is nothing, up to 20,000.
        retry_delays_s: before each further attempt at a message that can't be sent back to the
            brokers: of a broadcast group, or while they can't take it; the last one goes on.
        suspend_s: the same with `in_order`, where the queue waits.
        max_attempts: so often a message is tried before it is a dead letter, by all members
            together; None: 16 times, and with `in_order` for ever. All members name the same.
        when_gone: what happens when the next message of a queue has gone.
        around: makes a context manager around each handler's call; see `dledger.client.hooks`.
    """

    member: str = ""
    version: int = 0
    in_order: bool = False
    broadcast: bool = False
    offsets_file: str | Path | None = None
    strategy: str = "STICKY"
    start: StartFrom | datetime = StartFrom.FIRST
    handlers: int = 16
    handler_timeout_s: float = 900.0
    commit_every_s: float = 0.25
    drain_s: float = 30.0
    queue_messages: int = 1_000
    queue_bytes: int = 100 << 20
    queue_span: int = 2_000
    pull_bytes: int = 1 << 20
    hold_ms: int = 20_000
    retry_delays_s: Sequence[float] = RETRY_DELAYS_S
    suspend_s: float = 1.0
    max_attempts: int | None = None
    when_gone: WhenGone = WhenGone.RAISE
    around: Around | None = None

    def __post_init__(self) -> None:
        checked_hook("around", self.around)
        _check_finite(self, "handler_timeout_s", "commit_every_s", "suspend_s")
        _check_counts(self, "queue_messages", "queue_bytes", "queue_span")
        _check_range("version", self.version, 0, (1 << 32) - 1)
        _check_range("handlers", self.handlers, 1, 1_024)
        _check_range("pull_bytes", self.pull_bytes, 1, 8 << 20)
        _check_range("hold_ms", self.hold_ms, 0, 20_000)
        if not isinstance(self.when_gone, WhenGone):
            raise InvalidArgument(f"when_gone is {self.when_gone!r}, no WhenGone")
        if not _is_number(self.drain_s) or not 0 <= self.drain_s < inf:
            raise InvalidArgument(f"drain_s is {self.drain_s!r}; wanted: seconds, 0 or more")
        _check_member(self.member)
        flag("in_order", self.in_order)
        flag("broadcast", self.broadcast)
        text("strategy", self.strategy)
        if self.max_attempts is not None:
            _check_range("max_attempts", self.max_attempts, 1, MOST_ATTEMPTS)
            if self.broadcast:
                raise InvalidArgument("a broadcast group has no dead letters: no max_attempts")
        delays = self.retry_delays_s
        is_list = isinstance(delays, Sequence) and len(delays) > 0
        if not is_list or not all(_is_number(each) and 0 <= each < inf for each in delays):
            raise InvalidArgument(f"retry_delays_s is {delays!r}; wanted: numbers of seconds")
        if self.broadcast != (self.offsets_file is not None):
            raise InvalidArgument("a broadcast member needs an offsets_file, others have none")
        check_group_start(self.start)


def check_group_start(start: object) -> None:
    """Returns if a group can start there.

    Raises:
        InvalidArgument: otherwise.
    """
    if isinstance(start, datetime):
        milliseconds("start", start)
    elif start not in (StartFrom.FIRST, StartFrom.LAST):
        raise InvalidArgument(
            f"start is {start!r}; wanted: FIRST, LAST or a time, for topics that the group has "
            "never read"
        )


def _check_compression(name: object, level: int | None) -> None:
    names = [codec.name.lower() for codec in Codec]
    if name is None:
        if level is not None:
            raise InvalidArgument("compression_level is given, and compression isn't")
        return
    if name not in names:
        raise InvalidArgument(f"compression is {name!r}; wanted: {', '.join(names)}, or None")
    codec = Codec[str(name).upper()]
    if level is not None:
        _check_range("compression_level", level, LEVELS[codec][0], LEVELS[codec][-1])
    try:
        check_installed(codec)
    except records.CodecMissing as error:
        raise CodecMissing(f"compression {name!r}: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_positive(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not _is_number(value) or not value > 0:
            raise InvalidArgument(f"{name} is {value!r}, not above 0")


def _check_finite(options: object, *names: str) -> None:
    """What isn't a caller's own deadline, which may be never, has an end."""
    _check_positive(options, *names)
    for name in names:
        if getattr(options, name) == inf:
            raise InvalidArgument(f"{name} is infinite; wanted: a time with an end")


def _check_counts(options: object, *names: str) -> None:
    _check_finite(options, *names)
    for name in names:
        if not isinstance(value := getattr(options, name), int):
            raise InvalidArgument(f"{name} is {value!r}; wanted: a whole number")


def _check_member(name: object) -> None:
    """A member's name can be told to the brokers, which every member of the client is joined by."""
    if not isinstance(name, str) or len(text("member", name).encode()) > 255:
        raise InvalidArgument(f"member {str(name)[:300]!r}: 1 to 255 bytes of text")


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}, outside of {low} to {high}")
