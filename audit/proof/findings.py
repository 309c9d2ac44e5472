"""What an audit can find, and what that says of a replica. Values and their order only.

    verdict      said of a replica when                                               exit code
    identical    every byte of the scope was compared with another's and equal            0
    incomplete   it lacks bytes (missing, cut off, put back from an old copy, deleted     3
                 by retention), or they couldn't be compared; what was, is equal.
                 Absent is not divergent.
    misplaced    intact entries lie where others belong: files were swapped or renamed    1
    bit rot      its own CRC says that its bytes changed                                  1
    divergence   its CRCs are good and another replica's too, and the bytes differ: a     1
                 violation of Raft's safety

Damage is told by a replica's own checksums and never by a vote: two rotten replicas do not
outvote a good one. Which of several intact contents is right is said beside the verdict, where it
can be known (ADR 32).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dledger.outcome import ExitCode


class Verdict(StrEnum):
    """See the module."""

    IDENTICAL = "identical"
    INCOMPLETE = "incomplete"
    MISPLACED = "misplaced"
    BIT_ROT = "bit rot"
    DIVERGENCE = "divergence"


class Cause(StrEnum):
    """What exactly was found."""

    BAD_CRC = "bad crc"
    STRAY_FILLER = "stray bytes in a filler"
    WRONG_PLACE = "entries of another place"
    DIFFERENT_BYTES = "different bytes with good crcs"
    DIGEST_BROKEN = "running digest does not continue"
    NO_LEADERS = "an entry that no leader writes there"
    RECORDS_LIE = "records with wrong sizes or stamps in an intact entry"
    POSITION_DIGEST = "digest differs from what the node says"
    OLD_COPY = "zeros below what it calls durable"
    MISSING_SEGMENT = "segment missing"
    TRUNCATED_SEGMENT = "segment cut short"
    UNREADABLE_SEGMENT = "segment can't be read"
    SHORTER = "ends before what is committed"
    RETAINED_LATER = "begins later, by retention"
    OVERTAKEN = "its log begins behind what was to be audited by now"
    START_UNKNOWN = "no readable start note"
    START_DIFFERS = "begins behind another entry than is there"
    UNREADABLE_REPLICA = "directory can't be read"
    UNREACHABLE_NODE = "node doesn't answer"
    EMPTY_REPLICA = "holds no log"
    ALONE = "nobody to be compared with"
    ANOTHER_EPOCH = "another epoch of the group, which was recovered by force without it"
    NOT_COMMITTED = "entries that it doesn't know to have committed"
    NOT_LOCATED = "blocks that differ and were not looked into"
    WOULD_NOT_START = "a node would not start on it"
    SHARED_FILE = "files that are another replica's too"
    SAME_DISK = "copies of one member's disk"
    CHECKPOINT_LOST = "no readable checkpoint"
    LOG_LACKS = "consume queue units of entries that the log lacks"
    QUEUE_SIZE = "consume queue file of another size"
    QUEUE_MISSING = "consume queue units missing"
    QUEUE_WRONG = "consume queue unit wrong"
    QUEUE_EXTRA = "consume queue units beyond the log"
    QUEUE_UNREADABLE = "consume queue can't be read"


VERDICT_OF: Final[dict[Cause, Verdict]] = {
    Cause.BAD_CRC: Verdict.BIT_ROT,
    Cause.STRAY_FILLER: Verdict.BIT_ROT,
    Cause.WRONG_PLACE: Verdict.MISPLACED,
    Cause.DIFFERENT_BYTES: Verdict.DIVERGENCE,
    Cause.DIGEST_BROKEN: Verdict.DIVERGENCE,
    Cause.NO_LEADERS: Verdict.DIVERGENCE,
    Cause.RECORDS_LIE: Verdict.DIVERGENCE,
    Cause.POSITION_DIGEST: Verdict.DIVERGENCE,
    Cause.OLD_COPY: Verdict.INCOMPLETE,
    Cause.MISSING_SEGMENT: Verdict.INCOMPLETE,
    Cause.TRUNCATED_SEGMENT: Verdict.INCOMPLETE,
    Cause.UNREADABLE_SEGMENT: Verdict.INCOMPLETE,
    Cause.SHORTER: Verdict.INCOMPLETE,
    Cause.RETAINED_LATER: Verdict.INCOMPLETE,
    Cause.OVERTAKEN: Verdict.INCOMPLETE,
    Cause.START_UNKNOWN: Verdict.INCOMPLETE,
    Cause.START_DIFFERS: Verdict.DIVERGENCE,
    Cause.UNREADABLE_REPLICA: Verdict.INCOMPLETE,
    Cause.UNREACHABLE_NODE: Verdict.INCOMPLETE,
    Cause.EMPTY_REPLICA: Verdict.INCOMPLETE,
    Cause.ALONE: Verdict.INCOMPLETE,
    Cause.ANOTHER_EPOCH: Verdict.INCOMPLETE,
    Cause.NOT_COMMITTED: Verdict.INCOMPLETE,
    Cause.NOT_LOCATED: Verdict.INCOMPLETE,
    Cause.WOULD_NOT_START: Verdict.INCOMPLETE,
    Cause.SHARED_FILE: Verdict.INCOMPLETE,
    Cause.SAME_DISK: Verdict.INCOMPLETE,
    Cause.CHECKPOINT_LOST: Verdict.INCOMPLETE,
    Cause.LOG_LACKS: Verdict.INCOMPLETE,
    Cause.QUEUE_SIZE: Verdict.INCOMPLETE,
    Cause.QUEUE_MISSING: Verdict.INCOMPLETE,
    Cause.QUEUE_WRONG: Verdict.BIT_ROT,
    Cause.QUEUE_EXTRA: Verdict.BIT_ROT,
    Cause.QUEUE_UNREADABLE: Verdict.INCOMPLETE,
}

OF_A_QUEUE: Final = frozenset(
    {
        *(Cause.QUEUE_SIZE, Cause.QUEUE_MISSING, Cause.QUEUE_WRONG, Cause.QUEUE_EXTRA),
        Cause.QUEUE_UNREADABLE,
    }
)
_SEVERITY: Final = list(Verdict)


@dataclass(frozen=True, slots=True)
class EntryView:
    """An entry as one replica has it. `kind` as `audit.proof.scan.ItemKind`; `absent` if none
    begins there. Index, term and queue offset are as its bytes say."""

    replica: str
    kind: str
    crc_valid: bool
    index: int | None = None
    term: int | None = None
    topic: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `replicas` have it; `[start, end)` are physical offsets (both 0 where the fault
    has no place in the log); `views` show the first divergent entry, which begins at
    `entry_offset`, on every replica that was asked.

    Where several were put together, `count` says how many, `ranges` where: ascending and apart,
    empty for one that is all of `[start, end)`. `right` are the replicas that are known to hold
    what was committed, `right_by` says how that is known."""

    cause: Cause
    replicas: tuple[str, ...]
    start: int
    end: int
    segment: int | None = None
    entry_offset: int | None = None
    views: tuple[EntryView, ...] = ()
    file: str = ""
    detail: str = ""
    count: int = 1
    ranges: tuple[tuple[int, int], ...] = ()
    right: tuple[str, ...] = ()
    right_by: str = ""

    @property
    def verdict(self) -> Verdict:
        return VERDICT_OF[self.cause]

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The ranges that it is about; none if it has no place in the log."""
        if self.ranges or self.start == self.end:
            return self.ranges
        return ((self.start, self.end),)

    @property
    def size(self) -> int:
        """Bytes of the ranges."""
        return sum(end - start for start, end in self.places)


def gravity(verdict: Verdict) -> int:
    """Larger for a graver one."""
    return _SEVERITY.index(verdict)


def by_gravity(finding: Finding) -> tuple[int, int]:
    """Sorts the gravest verdict first, then by place."""
    return -gravity(finding.verdict), finding.start


def worst(verdicts: list[Verdict]) -> Verdict:
    """The gravest of them; identical if there are none."""
    return max(verdicts, key=gravity, default=Verdict.IDENTICAL)


def exit_code(verdicts: list[Verdict]) -> ExitCode:
    """What a command that found these ends with."""
    match worst(verdicts):
        case Verdict.IDENTICAL:
            return ExitCode.CONSISTENT
        case Verdict.INCOMPLETE:
            return ExitCode.INCOMPLETE
        case _:
            return ExitCode.INCONSISTENT
