"""What a doctor can find, the gravest first, and what to do about each.

The order of `Kind` is the order of gravity. Each names the part of `docs/operations.md` that says
more (*Runbook*, by the kind's value); a test holds that there is one for each and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from dledger.outcome import ExitCode

RUNBOOK: Final = "docs/operations.md"


class Gravity(Enum):
    """What a finding means for the group."""

    CRITICAL = "critical"  # data is in danger, or nothing is served
    DEGRADED = "degraded"  # it serves, and stands one more failure worse than it should
    NOTICE = "notice"  # nothing suffers yet


class Kind(StrEnum):
    """See the module."""

    TWO_LEADERS = "two leaders"
    OUT_OF_SERVICE = "out of service"
    GIVEN_UP = "given up"
    NEWER_EPOCH = "newer epoch heard of"
    REPLICAS_DIFFER = "replicas differ"
    IMPOSSIBLE = "figures that can't be"
    SAME_ID = "two nodes of one id"
    NO_MAJORITY = "no majority answers"
    NO_LEADER = "no leader serves"
    OLDER_COPY = "older copy of a disk"
    OTHER_DISK = "another disk than the log names"
    OTHER_GROUP = "a node of another group"
    NO_MARGIN = "no member to spare"
    UNREACHABLE = "member unreachable"
    UNFORMED = "no member yet"
    LOG_ROTTEN = "log being repaired"
    APPLY_STOPPED = "applying has stopped"
    DISK_FULL = "disk full"
    CERTIFICATE_EXPIRED = "certificate expired"
    CERTIFICATE_EARLY = "certificate not valid yet"
    NOT_VOTING = "member being taken in"
    BEHIND = "member behind"
    DEAF = "members that don't hear each other"
    QUEUES_WRONG = "queues being mended"
    DISK_SLOW = "disk slow"
    CLOCK_OFF = "clock off"
    LOG_TIME_OFF = "log time off"
    GONE = "no member any more"
    ADDRESSES_DIFFER = "addresses differ"
    CERTIFICATE_EXPIRES = "certificate expires"
    CERTIFICATE_WAITS = "new certificate not shown"
    DISK_NEARLY_FULL = "disk nearly full"
    FRONT_HELD = "front of the log held"
    LEVEL_BELOW = "level below what is installed"
    BOUND_NEAR = "bound nearly reached"

    @property
    def gravity(self) -> Gravity:
        return _GRAVITY[self]

    @property
    def remedy(self) -> str:
        """What to do about it, in a line; `{member}` stands for whom it is about."""
        return _REMEDIES[self]

    @property
    def runbook(self) -> str:
        """The part of the operator's page about it."""
        return f"{RUNBOOK}#{self.value.replace(chr(39), '').replace(' ', '-')}"


_CRITICAL: Final = frozenset(
    {
        *(Kind.TWO_LEADERS, Kind.OUT_OF_SERVICE, Kind.REPLICAS_DIFFER),
        *(Kind.IMPOSSIBLE, Kind.SAME_ID, Kind.GIVEN_UP, Kind.NEWER_EPOCH),
        *(Kind.NO_MAJORITY, Kind.NO_LEADER),
        *(Kind.OLDER_COPY, Kind.OTHER_DISK, Kind.OTHER_GROUP),
    }
)
_NOTICES: Final = frozenset(
    {
        *(Kind.QUEUES_WRONG, Kind.DISK_SLOW, Kind.CLOCK_OFF, Kind.GONE, Kind.ADDRESSES_DIFFER),
        *(Kind.CERTIFICATE_EXPIRES, Kind.DISK_NEARLY_FULL, Kind.FRONT_HELD, Kind.LEVEL_BELOW),
        *(Kind.LOG_TIME_OFF, Kind.BOUND_NEAR, Kind.CERTIFICATE_WAITS),
    }
)
_GRAVITY: Final = {
    kind: Gravity.CRITICAL
    if kind in _CRITICAL
    else Gravity.NOTICE
    if kind in _NOTICES
    else Gravity.DEGRADED
    for kind in Kind
}
_REMEDIES: Final = {
    Kind.TWO_LEADERS: "stop producers, keep the data directories of all nodes, then `dledger audit "
    "replicas`",
    Kind.IMPOSSIBLE: "keep {member}'s data directory and log, stop it, and report it",
    Kind.SAME_ID: "stop the one whose disk isn't {member}'s, and give it an id of its own",
    Kind.OUT_OF_SERVICE: "`dledger audit replicas` shows what differs; then stop {member}, keep "
    "its directory elsewhere, start it on an empty one and `dledger group replace {member}`",
    Kind.GIVEN_UP: "stop {member}, keep its directory elsewhere if anybody is to look into it, "
    "start it on an empty one, and `dledger member add {member} ADDRESS`",
    Kind.NEWER_EPOCH: "if the group was recovered by force without {member}, stop it for good; if "
    "this group was restored from a backup, a client of the one before is left: stop that, and "
    "start {member} again",
    Kind.REPLICAS_DIFFER: "keep the data directories of all nodes, then `dledger audit replicas`",
    Kind.NO_MAJORITY: "start members that are down, or mend the network between them",
    Kind.NO_LEADER: "mend what else is said here, if anything is; else wait a few seconds, then "
    "look at the nodes' logs for why nobody is elected",
    Kind.OLDER_COPY: "stop {member}, empty its directory, start it and "
    "`dledger group replace {member}`",
    Kind.OTHER_DISK: "mount the disk that {member} had, or stop it, empty its directory, start it "
    "and `dledger group replace {member}`",
    Kind.OTHER_GROUP: "correct the address, or the node's configuration",
    Kind.NO_MARGIN: "mend what is said of the members below first, and stop none meanwhile",
    Kind.UNREACHABLE: "start {member}; if it runs, mend the network, or name certificates that it "
    "believes (--tls-ca and its like), and see its log for `node_failed` and `peer_refused`",
    Kind.UNFORMED: "mount its disk; if that is lost, `dledger group replace {member}`; a new "
    "member: `dledger member add`; a new group: `dledger group init`",
    Kind.LOG_ROTTEN: "wait; if it goes on, start the members that are down, who may have the "
    "bytes; replace {member}'s disk before it rots further",
    Kind.APPLY_STOPPED: "install the version of the others on {member} and start it",
    Kind.DISK_FULL: "give {member}'s disk room; it goes on by itself",
    Kind.CERTIFICATE_EXPIRED: "give {member} a new certificate: the files are read again when "
    "they change",
    Kind.CERTIFICATE_EARLY: "put {member}'s clock right (NTP, chrony), or that of the machine "
    "where certificates are signed, and sign it anew there",
    Kind.NOT_VOTING: "wait; if it goes on, repeat the `dledger group replace` or `dledger member "
    "add` that began it, or give it up: `dledger member remove {member}`",
    Kind.BEHIND: "look at {member}'s disk, network and processor",
    Kind.DEAF: "mend the network between them, or their certificates, secrets and addresses",
    Kind.QUEUES_WRONG: "wait; replace {member}'s disk before it rots further",
    Kind.DISK_SLOW: "look at what else uses {member}'s disk, and at the disk itself",
    Kind.CLOCK_OFF: "put {member}'s clock right (NTP, chrony)",
    Kind.LOG_TIME_OFF: "wait; behind, `dledger group transfer` ends it, and all that is hidden may "
    "be due at once",
    Kind.GONE: "stop {member}, and empty its directory",
    Kind.ADDRESSES_DIFFER: "correct `[peers]` of {member} and restart it; if it is the log that is "
    "wrong, `dledger member add` with the right address",
    Kind.CERTIFICATE_EXPIRES: "give {member} a new certificate: the files are read again when "
    "they change",
    Kind.CERTIFICATE_WAITS: "put {member}'s clock right (NTP, chrony), or that of the machine "
    "where certificates are signed, and sign it anew there; it is shown once it is valid",
    Kind.DISK_NEARLY_FULL: "give {member}'s disk room, or remove from it what isn't ours",
    Kind.FRONT_HELD: "see what it says: give {member}'s disk room, or mend the archive command",
    Kind.LEVEL_BELOW: "upgrade {member} when it suits",
    Kind.BOUND_NEAR: "delete topics that nobody uses, those of failed messages of groups that are "
    "gone among them, and see the runbook for what else there is",
}


# Of who answers and takes no part, who is needed for a majority; and of who was given up and is
# wanted on an empty disk.
ALL_ARE_UNFORMED: Final = (
    "see *no member yet* below: mount their disks; if the group is new, `dledger group init`"
)
SOME_ARE_IDLE: Final = (
    "mend what is said of those that answer and take no part; start members that are down, or mend "
    "the network between them"
)
BACK_ON_ANOTHER_DISK: Final = (
    "stop {member}, keep its directory elsewhere if anybody is to look into it, start it on an "
    "empty one, and `dledger group replace {member}`"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `member`: whose; empty where it is the group's. `instead`: what to
    do where that isn't what it is for the kind."""

    kind: Kind
    member: str
    detail: str
    instead: str = ""

    @property
    def remedy(self) -> str:
        return (self.instead or self.kind.remedy).format(member=self.member)


def exit_code_of(findings: tuple[Finding, ...]) -> ExitCode:
    """0: nothing was found. 3: nothing is served, as far as could be learned. 1: all else."""
    if any(finding.kind in (Kind.NO_MAJORITY, Kind.NO_LEADER) for finding in findings):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED if findings else ExitCode.DONE
