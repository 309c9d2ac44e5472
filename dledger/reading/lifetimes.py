"""What in the log is no message: of topics that have been deleted, and of units that were refused.

A name may be given again, so a message is of a deleted topic if its entry lies between the one that
created that topic and the one that deleted it. Which units were refused the log says itself, a
little later; nothing behind the first of which it hasn't is read yet (ADR 54). This reads the
headers of the whole log, once, and the commands in it; it goes on from where it was. Judged by the
log alone and not by the folders of ConsumeQueues, which are derived and may be gone for other
reasons. Only drivers need it: commands are protobuf, which executors may do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from dledger.reading.chunks import LogRange
from dledger.reading.compound import commands_in
from dledger.reading.decode import Ended, LeftOut
from dledger.reading.entry import HEADER_SIZE, EntryHeader, EntryKind, parse_header, verify_frame
from dledger.reading.files import opened, read_at
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.wire.commands_pb2 import Command, SettleUnitsCommand

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
        self._refused: set[tuple[int, int]] = set()
        self._unsettled: list[tuple[int, int]] = []  # index and place of entries with records

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
            for header, frame in command_frames(part):
                if header.is_compound and header.record_count:
                    self._unsettled.append((header.index, header.physical_offset))
                try:
                    for body in commands_in(header, frame):
                        self._apply(header.index, body)
                except InvalidFrame:  # Void on every node, with all that is in it.
                    self._unsettled = [u for u in self._unsettled if u[0] != header.index]
        self._at = max(log.settled, self._at)

    def left_out(self, *, includes_deleted: bool = False) -> LeftOut:
        """What is no message, as far as the log was followed."""
        return LeftOut(() if includes_deleted else self.ended, frozenset(self._refused))

    def cut(self, log: Survey) -> Survey:
        """The log up to where it says of every unit whether it was refused (ADR 54): all of it but
        for a moment."""
        if not self._unsettled:
            return log
        return replace(log, settled=min(log.settled, self._unsettled[0][1]))

    def _settle(self, said: SettleUnitsCommand) -> None:
        self._unsettled = [each for each in self._unsettled if each[0] > said.through]
        self._refused.update((each.index, each.unit) for each in said.refused)

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
            case "settle_units":
                self._settle(command.settle_units)

    def _delete(self, name: str, meant: int, index: int) -> None:
        if name not in self._living and self._is_whole:
            return
        # A topic from before the log that is kept is known by its end alone.
        created = self._living.get(name, meant)
        if not meant or meant == created:
            self._living.pop(name, None)
            self._ended.append((name, created, index))


def readable(log: Survey, *, includes_deleted: bool = False) -> tuple[Survey, LeftOut]:
    """The log as far as its messages can be told from what is none, and what is none in it.

    Args:
        includes_deleted: messages of topics that have been deleted by now are wanted, too.

    Raises:
        LogDamaged: a segment is missing.
    """
    lifetimes = Lifetimes(log.retained_from)
    lifetimes.follow(log)
    return lifetimes.cut(log), lifetimes.left_out(includes_deleted=includes_deleted)


def command_frames(part: LogRange) -> Iterator[tuple[EntryHeader, bytes]]:
    """The entries of a range that hold commands or units, intact ones."""
    with opened(part.path) as descriptor:
        at = part.start - part.base
        window, window_at = b"", 0
        while at + HEADER_SIZE <= part.end - part.base:
            if not window_at <= at <= window_at + len(window) - HEADER_SIZE:
                window, window_at = read_at(descriptor, _WINDOW_BYTES, at), at
            try:
                header = parse_header(window, at - window_at)
                if header.kind == EntryKind.COMMAND or header.is_compound:
                    frame = read_at(descriptor, header.total_size, at)
                    verify_frame(frame, 0, None)
                    yield header, frame
            except InvalidFrame:  # A filler, or damage.
                return
            at += header.total_size
