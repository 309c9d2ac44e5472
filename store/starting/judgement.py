"""What can be said of one member's directory: values, their order, and nothing that reads.

    effect     what a start does about it
    refused    it ends; the node takes part in nothing
    mended     it puts it right from what is there, and goes on
    ignored    it doesn't look at it, or passes it over

A judgement is small enough to travel. Of each kind and effect `MAX_FINDINGS` are kept and the
others counted, so that what is found often doesn't hide what is found once: strays, say, a
snapshot that can't be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_FINDINGS: Final = 100  # of each kind and effect


class Effect(StrEnum):
    """See the module. The gravest is first."""

    REFUSED = "refused"
    MENDED = "mended"
    IGNORED = "ignored"


class Kind(StrEnum):
    """What is wrong, or worth knowing."""

    UNREADABLE = "can't be read"
    NOT_A_FILE = "no regular file"
    IDENTITY_MISSING = "identity missing"
    IDENTITY_DAMAGED = "identity damaged"
    IDENTITY_OTHER = "made for something else"
    FOUNDING_DAMAGED = "founding damaged"
    NOT_A_MEMBER = "no member's"
    RESTORE_UNFINISHED = "restore unfinished"
    OUT_OF_SERVICE = "out of service"
    LOG_MISSING = "log missing"
    LOG_DAMAGED = "log damaged"
    SEGMENT_MISSING = "segment missing"
    HARD_STATE_DAMAGED = "term and vote damaged"
    HARD_STATE_MISSING = "term and vote missing"
    HARD_STATE_OLDER = "old term and vote"
    DISK_REPLACED = "the log names another disk"
    BASE_MISSING = "state before the log's start missing"
    BASE_UNKNOWN = "state before the log's start of a newer program"
    START_DAMAGED = "log start damaged"
    BOOT_DAMAGED = "boot number damaged"
    BOOT_MISSING = "boot number missing"
    INTENT_DAMAGED = "truncation intent damaged"
    CHECKPOINT_MISSING = "checkpoint missing"
    CHECKPOINT_DAMAGED = "checkpoint damaged"
    CUT_UNFINISHED = "cut not finished"
    TAIL_TORN = "tail torn"
    SEGMENT_SHORT = "last segment short"
    QUEUES_AHEAD = "consume queues ahead of the log"
    QUEUES_DAMAGED = "consume queues damaged"
    SNAPSHOT_UNUSABLE = "snapshot of state not usable"
    SNAPSHOT_AHEAD = "snapshot of state ahead of the checkpoint"
    UNFINISHED = "unfinished file"
    STRAY = "stray"
    LINKED = "shared with another name"


@dataclass(frozen=True, slots=True)
class DirectoryFinding:
    """One of them. `file` is relative to the directory, empty where it is about all of it; bytes of
    a name that are no UTF-8 are written out."""

    kind: Kind
    effect: Effect
    file: str
    detail: str


@dataclass(frozen=True, slots=True)
class FileId:
    """A regular file, by name and by what the disk calls it."""

    file: str
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """What the directory says of itself; what can't be read is None, and the log's figures are as a
    start would find them. Offsets in bytes. `derived_index`: the ConsumeQueues are taken to hold
    the units of all entries up to it. `stopped_cleanly`: no node runs on it or died on it."""

    broker_group: str | None = None
    node_id: str | None = None
    segment_size_bytes: int | None = None
    disk_id: str | None = None
    state: str | None = None
    term: int | None = None
    vote: str | None = None
    boot_number: int | None = None
    first_index: int | None = None
    last_index: int | None = None
    last_term: int | None = None
    end_offset: int | None = None
    watermark: int | None = None
    derived_index: int | None = None
    stopped_cleanly: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a node would start on the directory, and what is to be said of it, the gravest first.

    `starts`: nothing that a start reads is refused. `refusal`: the words in which it would be.
    `findings_left_out`: of each effect, those beyond `MAX_FINDINGS` of a kind. `files`: what lies
    there.
    """

    path: str
    starts: bool
    refusal: str
    findings: tuple[DirectoryFinding, ...]
    findings_left_out: tuple[tuple[Effect, int], ...]
    facts: DirectoryFacts
    files: tuple[FileId, ...]

    def of(self, effect: Effect) -> tuple[DirectoryFinding, ...]:
        """The findings of one effect that were kept."""
        return tuple(each for each in self.findings if each.effect is effect)


class Findings:
    """Gathers findings within their bounds; one of a kind and file is kept once, as it was first
    told: what a start refuses is asked before what merely lies there."""

    def __init__(self) -> None:
        self._kept: dict[Effect, dict[tuple[Kind, str], DirectoryFinding]] = {
            effect: {} for effect in Effect
        }
        self._count: Counter[tuple[Effect, Kind]] = Counter()
        self._left_out = dict.fromkeys(Effect, 0)

    def add(self, kind: Kind, effect: Effect, file: str, detail: str) -> None:
        """It was found."""
        kept = self._kept[effect]
        if any((kind, file) in each for each in self._kept.values()):
            return
        if self._count[effect, kind] < MAX_FINDINGS:
            self._count[effect, kind] += 1
            kept[kind, file] = DirectoryFinding(kind, effect, file, detail)
        else:
            self._left_out[effect] += 1

    def found(self) -> tuple[DirectoryFinding, ...]:
        """All that were kept, the gravest first, in the order in which they were found."""
        return tuple(each for effect in Effect for each in self._kept[effect].values())

    def left_out(self) -> tuple[tuple[Effect, int], ...]:
        """How many of each effect there were beyond that; none are not named."""
        return tuple((effect, count) for effect, count in self._left_out.items() if count)


def shared_files(judgements: Iterable[Judgement]) -> list[tuple[FileId, Sequence[str]]]:
    """The files that lie in several directories at once, by what the disk calls them: a hard link,
    or a directory that is a link, makes one copy out of two.

    Returns:
        The file under its first name, and the paths of all directories that have it.
    """
    places: dict[tuple[int, int], tuple[FileId, list[str]]] = {}
    for judgement in judgements:
        for file in judgement.files:
            _, paths = places.setdefault((file.device, file.inode), (file, []))
            if judgement.path not in paths:
                paths.append(judgement.path)
    return [(file, tuple(paths)) for file, paths in places.values() if len(paths) > 1]
