"""What in the log is no message: of topics that have been deleted, and of units that were refused.

A name may be given again, so a message is of a deleted topic if its entry lies between the one that
created that topic and the one that deleted it. Whether a creation took effect the log doesn't say:
another topic may have had the name, or there was no room. The deletion does, which names the entry
that created what it ends. Which units were refused the log says itself, a little later; nothing
behind the first of which it hasn't is read yet (ADR 54). This reads the headers of the whole log,
once, and the commands in it; it goes on from where it was. Judged by the log alone and not by the
folders of ConsumeQueues, which are derived and may be gone for other reasons. Only drivers need it:
commands are protobuf, which executors may do without.

Damage ends what can be followed, as a command may be in it, and so does a segment that doesn't go
on from the one before. Who reads messages sees none of that where each entry is intact by itself,
and nothing of what lies before the place at which it begins. So whoever reads asks first whether
the log was followed that far (`check_to`). A log that uses a level of formats and commands that
this program doesn't know isn't followed at all (`dledger.reading.levels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from google.protobuf.message import DecodeError

from dledger.level import KNOWN_LEVEL
from dledger.reading.chunks import LogRange
from dledger.reading.commands import Known, followed_frames, follows
from dledger.reading.compound import commands_in
from dledger.reading.decode import Ended, LeftOut
from dledger.reading.entry import EntryHeader
from dledger.reading.errors import EntryDamaged, LogOfLaterLevel
from dledger.reading.levels import level_at_start, level_behind
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.wire.commands_pb2 import Command, SettleUnitsCommand


class Lifetimes:
    """The topics that ended in the log, as far as it was followed.

    Args:
        start: the physical offset where the log begins.
    """

    def __init__(self, start: int) -> None:
        self._known = Known(start)
        self._damage: EntryDamaged | None = None  # behind which nothing is known
        self._is_whole = start == 0
        self._living: dict[str, range] = {}  # from the first creation to the last, since an end
        self._first: dict[str, int] = {}  # the first creation of each name
        self._ended: dict[tuple[str, int], int] = {}  # by name and creation, the deletion
        self._known_to_end: set[str] = set()  # names: nobody has one from before what was followed
        self._refused: set[tuple[int, int]] = set()
        self._unsettled: list[tuple[int, int]] = []  # index and place of entries with records
        self._gone = 0  # the last entry of which it is known that the log begins behind it
        self._level: int | None = None  # in use behind what was followed, if anybody says it

    @property
    def ended(self) -> Ended:
        return tuple((name, created, at) for (name, created), at in self._ended.items())

    @property
    def names(self) -> frozenset[str]:
        """Of the topics that were created or ended in what was followed; a creation that had no
        effect counts, too."""
        return frozenset({*self._living, *(name for name, _ in self._ended)})

    @property
    def first_made(self) -> Mapping[str, int]:
        """By name, the first entry of what was followed that created a topic of it, or would
        have."""
        return dict(self._first)

    @property
    def made_anew(self) -> Ended:
        """Of those that ended, the ones whose names others were given later, in the log's order.
        Created by 0: whichever had the name where the log begins."""
        latest = {name: created.start for name, created in self._living.items()}
        for name, created in self._ended:
            latest[name] = max(created, latest.get(name, 0))
        found = (topic for topic in self.ended if latest[topic[0]] > topic[2])
        return tuple(sorted(found, key=lambda topic: topic[2]))

    def ended_since(self, index: int) -> frozenset[str]:
        """The topics that may have been deleted behind that entry: those that were, and those of
        which none lives at the end of what was followed. Whoever follows a log for long knows it
        only of entries that the log still has."""
        return frozenset(
            name for (name, _), at in self._ended.items() if at > index or name not in self._living
        )

    def follow(self, log: Survey) -> None:
        """What is committed now is taken into account, as far as no damage is in the way.

        Raises:
            LogDamaged: a segment of it is missing.
            LogOfLaterLevel: what is in it this program doesn't know.
        """
        if log.retained_from > self._known.at:
            self._go_on_at(log.retained_from)
        start, size = log.start, log.segment_size or 0
        if start is not None and size and start.offset(size) <= log.retained_from:
            self._forget_to(start.index)
        is_at_start = self._known == Known(log.retained_from)  # and nothing was read
        if is_at_start:
            self._level = level_at_start(log)
        self._check_level(log)
        if start is not None and is_at_start and start.offset(size) == log.retained_from:
            self._known.index, self._known.digest = start.index, start.digest
        for part in log_ranges(log, self._known.at, max(log.settled, self._known.at)):
            if self._damage is not None and part.start > self._known.at:
                if not follows(part, self._known):
                    return
                self._known.at = part.start  # It was no entry that was damaged, but a filler.
            self._damage = None
            try:
                self._follow_part(part)
            except InvalidFrame as error:
                place, wanted = self._known.at - part.base, f"{error.field} {error.expected}"
                wanted = f"intact entries from there on, with {wanted}"
                self._damage = EntryDamaged(part.path, place, wanted, error.found)
            self._check_level(log)

    def _check_level(self, log: Survey) -> None:
        """Raises: LogOfLaterLevel: what follows this program doesn't know."""
        if self._level is not None and self._level > KNOWN_LEVEL:
            raise LogOfLaterLevel(log.commitlog, self._level, KNOWN_LEVEL)

    def check_to(self, end: int) -> None:
        """What lies before the physical offset `end` is one log, as far as it was followed, and all
        in it that tells which messages are none was read.

        Raises:
            LogDamaged: damage lies before that, or a segment that isn't of this log.
        """
        if self._damage is not None and self._known.at < end:
            raise self._damage

    def left_out(self, *, includes_deleted: bool = False) -> LeftOut:
        """What is no message, as far as the log was followed."""
        return LeftOut(() if includes_deleted else self.ended, frozenset(self._refused))

    def cut(self, log: Survey) -> Survey:
        """The log up to where it says of every unit whether it was refused (ADR 54): all of it but
        for a moment.

        Raises:
            LogDamaged: what would say so may be in what is damaged.
        """
        if not self._unsettled or self._unsettled[0][1] >= log.settled:
            return log
        if self._damage is not None:
            raise self._damage
        return replace(log, settled=min(log.settled, self._unsettled[0][1]))

    def readable(self, log: Survey, *, includes_deleted: bool = False) -> tuple[Survey, LeftOut]:
        """See `readable`, of a log that was followed."""
        log = self.cut(log)
        self.check_to(log.settled)
        return log, self.left_out(includes_deleted=includes_deleted)

    def _go_on_at(self, start: int) -> None:
        """The log begins here by now, and what was before was never read."""
        self._known, self._damage, self._is_whole = Known(start), None, False
        self._unsettled = [each for each in self._unsettled if each[1] >= start]
        self._first.clear()
        self._living.clear()  # They may have ended there, and others may have their names.
        self._known_to_end.clear()

    def _forget_to(self, index: int) -> None:
        """The log begins behind that entry: what is known of messages before it is of no use any
        more, and of a stream of years it would be most of what is given with each batch."""
        if index <= self._gone:
            return
        self._gone = index
        self._ended = {topic: at for topic, at in self._ended.items() if at > index}
        self._first = {name: at for name, at in self._first.items() if at > index}
        self._known_to_end &= {name for name, _ in self._ended}
        self._refused = {each for each in self._refused if each[0] > index}

    def _follow_part(self, part: LogRange) -> None:
        """Raises: InvalidFrame: it is damaged."""
        for header, frame in followed_frames(part, self._known):
            if header.is_compound and header.record_count:
                self._unsettled.append((header.index, header.physical_offset))
            self._apply_all(header, frame)

    def _apply_all(self, header: EntryHeader, frame: bytes) -> None:
        """The commands of an entry, which is void on every node, with all that is in it, if any of
        it can't be read."""
        try:
            for body in commands_in(header, frame):
                self._apply(header, body)
        except InvalidFrame:
            self._unsettled = [u for u in self._unsettled if u[0] != header.index]

    def _settle(self, said: SettleUnitsCommand) -> None:
        self._unsettled = [each for each in self._unsettled if each[0] > said.through]
        self._refused.update((each.index, each.unit) for each in said.refused)

    def _apply(self, header: EntryHeader, body: bytes) -> None:
        """As every node does; a command that was void changes nothing."""
        index = header.index
        try:
            command = Command.FromString(body)
        except DecodeError:
            return
        match command.WhichOneof("body"):
            case "create_topic":
                self._create(command.create_topic.name, index)
            case "make_topic":
                self._create(command.make_topic.name, index)
            case "delete_topic":
                self._delete(command.delete_topic.name, command.delete_topic.incarnation, index)
            case "raise_level" if not header.is_compound:  # no unit holds one
                self._level = level_behind(self._level, command.raise_level.level)
            case "settle_units":
                self._settle(command.settle_units)

    def _create(self, name: str, index: int) -> None:
        """Any of those since the name's last end may be the one that took effect."""
        self._first.setdefault(name, index)
        before = self._living.get(name)
        self._living[name] = range(before.start if before else index, index + 1)

    def _delete(self, name: str, meant: int, index: int) -> None:
        """It ends the topic that is meant, if that lives. Leaders name what they saw living, so a
        number that lies among the creations is the one that took effect.

        Args:
            meant: the entry that created it; 0: an older release's, of whichever has the name.
        """
        created = self._living.get(name, range(index, index))
        if meant:
            # A topic from before the log that is kept is known by its end alone.
            is_older = not self._is_whole and meant < created.start
            ends = meant in created or (is_older and (name, meant) not in self._ended)
        else:
            is_known = self._is_whole or name in self._known_to_end
            ends = bool(created) or not is_known
            meant = created.start if is_known else 0
        if ends:
            self._living.pop(name, None)
            self._ended[name, meant] = index
            self._known_to_end.add(name)


def followed(log: Survey) -> Lifetimes:
    """The whole log, followed.

    Raises:
        LogDamaged: a segment is missing.
        LogOfLaterLevel: what is in it this program doesn't know.
    """
    lifetimes = Lifetimes(log.retained_from)
    lifetimes.follow(log)
    return lifetimes


def readable(log: Survey, *, includes_deleted: bool = False) -> tuple[Survey, LeftOut]:
    """The log as far as its messages can be told from what is none, and what is none in it; for
    those that read all of it.

    Args:
        includes_deleted: messages of topics that have been deleted by now are wanted, too.

    Raises:
        LogDamaged: a segment is missing, or isn't of this log, or what would tell them apart is
            damaged.
        LogOfLaterLevel: this program doesn't know what would.
    """
    return followed(log).readable(log, includes_deleted=includes_deleted)
