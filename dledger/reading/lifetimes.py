"""Which topics have been deleted, and from which entry to which each of them was there.

A name may be given again, so a message is of a deleted topic if its entry lies between the one that
created that topic and the one that deleted it. This reads the headers of the whole log, once, and
the commands in it; it goes on from where it was. Judged by the log alone and not by the folders of
ConsumeQueues, which are derived and may be gone for other reasons. Only drivers need it: commands
are protobuf, which executors may do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from dledger.reading.chunks import LogRange
from dledger.reading.decode import Ended
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind, parse_header, verify_frame
from dledger.reading.files import opened, read_at
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.wire.commands_pb2 import Command

_WINDOW_BYTES: Final = 1 << 20


class Lifetimes:
    """The topics that ended in the log, as far as it was followed.

    Args:
        start: the physical offset where the log begins.
    """

    def __init__(self, start: int) -> None:
        self._at = start
        self._is_whole = start == 0
        self._living: dict[str, int] = {}  # the index of the entry that created it
        self._ended: list[tuple[str, int, int]] = []

    @property
    def ended(self) -> Ended:
        return tuple(self._ended)

    def follow(self, log: Survey) -> None:
        """What is committed now is taken into account.

        Raises:
            LogDamaged: a segment of it is missing. Damage within one is passed over here: whoever
                reads its messages finds it.
        """
        for part in log_ranges(log, self._at, max(log.settled, self._at)):
            for header, body in _commands(part):
                self._apply(header.index, body)
        self._at = max(log.settled, self._at)

    def _apply(self, index: int, body: bytes) -> None:
        """As every node does; a command that was void changes nothing."""
        try:
            command = Command.FromString(body)
        except DecodeError:
            return
        match command.WhichOneof("body"):
            case "create_topic":
                self._living.setdefault(command.create_topic.name, index)
            case "delete_topic":
                self._delete(command.delete_topic.name, command.delete_topic.incarnation, index)

    def _delete(self, name: str, meant: int, index: int) -> None:
        if name not in self._living and self._is_whole:
            return
        # A topic from before the log that is kept is known by its end alone.
        created = self._living.get(name, meant)
        if not meant or meant == created:
            self._living.pop(name, None)
            self._ended.append((name, created, index))


def ended_topics(log: Survey) -> Ended:
    """Those that have been deleted by now.

    Raises:
        LogDamaged: a segment is missing.
    """
    lifetimes = Lifetimes(log.retained_from)
    lifetimes.follow(log)
    return lifetimes.ended


def _commands(part: LogRange) -> Iterator[tuple[EntryHeader, bytes]]:
    """The commands of a range, intact ones."""
    with opened(part.path) as descriptor:
        at = part.start - part.base
        window, window_at = b"", 0
        while at + HEADER_SIZE <= part.end - part.base:
            if not window_at <= at <= window_at + len(window) - HEADER_SIZE:
                window, window_at = read_at(descriptor, _WINDOW_BYTES, at), at
            try:
                header = parse_header(window, at - window_at)
                if header.kind == EntryKind.COMMAND:
                    frame = read_at(descriptor, header.total_size, at)
                    verify_frame(frame, 0, None)
                    yield header, frame[HEADER_SIZE:]
            except InvalidFrame:  # A filler, or damage.
                return
            at += header.total_size
