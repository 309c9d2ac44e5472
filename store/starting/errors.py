"""Why a node doesn't start as a member, though what is on its disk can be read.

StartRefused
├── NotAMember          this directory belongs to no group: somebody has to form it
├── RestoreUnfinished   nor does it yet: a backup was being restored into it
├── LogMissing          a member's directory without its log
├── BaseMissing         the log begins later than entry 1, without the state of before
├── BaseUnknown         it is there, and this program is too old for it
├── DiskReplaced        the group's log names another disk for this member
└── OutOfService        the log differs from a majority's, and is kept as it was found
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome
from store.out_of_service import Divergence


class StartRefused(Exception):
    """Root of them; the text says what to do."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class NotAMember(StartRefused):
    """The node waits to be formed, or to be taken in."""

    def __init__(self, directory: str, node_id: str, state: str) -> None:
        what = (
            "was made by the version before: `dledger group init --adopt`, once for the whole group"
            if state == "legacy"
            else f"is no member's. A new group: `dledger group init`. If {node_id} was a member "
            "before, its disk is missing (a mount?); if that disk is lost: "
            f"`dledger group replace {node_id}`"
        )
        super().__init__(f"data directory {directory} is {state} and {what}")
        self.directory = directory
        self.node_id = node_id
        self.state = state


class RestoreUnfinished(StartRefused):
    """What is in the directory is part of a backup, and nobody's log."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"data directory {directory} is unfinished: a backup was being restored into it. Do so "
            "again (`dledger group restore`), which begins anew, or empty the directory"
        )
        self.directory = directory


class LogMissing(StartRefused):
    """What this member promised is in its log; without it it must not promise anything more."""

    def __init__(self, directory: str, node_id: str) -> None:
        super().__init__(
            f"data directory {directory} is a member's, and its log is missing: put it back, or "
            f"empty the directory and run `dledger group replace {node_id}`"
        )
        self.directory = directory
        self.node_id = node_id


class BaseMissing(StartRefused):
    """What stands for the entries that are gone can't be used. Where nobody else holds the log the
    directory has all that is left of it."""

    def __init__(self, file: str, first_index: int, why: str) -> None:
        super().__init__(
            f"the log begins with entry {first_index}, and the state as of before is not in "
            f"{file}: {why}. Put the file back. If this is the group's only member, keep the "
            "directory whatever comes: nobody else has what is in it. Others fill this one again: "
            "start it on an empty directory, and `dledger group replace`"
        )
        self.file = file
        self.first_index = first_index
        self.why = why


class BaseUnknown(StartRefused):
    """What stands for the entries that are gone is whole, and of another program. Every copy of it
    is: emptying the directory would lose what is on it, and nobody could fill it."""

    def __init__(self, file: str, first_index: int, why: str) -> None:
        super().__init__(
            f"the log begins with entry {first_index}, and this program can't read the state as of "
            f"before, {file}: {why}. Nothing is wrong with the disk: install the release that the "
            "other members run, and start the node. Don't empty the directory: peers can't fill it "
            "for this program"
        )
        self.file = file
        self.first_index = first_index
        self.why = why


class DiskReplaced(StartRefused):
    """The group went on with another disk."""

    def __init__(self, directory: str, node_id: str, named: bytes, own: bytes) -> None:
        super().__init__(
            f"data directory {directory} is disk {own.hex()}, and the group's log names "
            f"{named.hex() or 'none'} as {node_id}'s: start the node on that one, or empty this "
            f"directory and run `dledger group replace {node_id}`"
        )
        self.directory = directory
        self.node_id = node_id
        self.named = named
        self.own = own


class OutOfService(StartRefused):
    """The member was found to hold another log than a majority: it takes part in nothing, and its
    disk is kept."""

    def __init__(self, directory: str, node_id: str, divergence: Divergence) -> None:
        remedy = (
            f"`dledger member add {node_id} ADDRESS`"
            if divergence.recoveries
            else f"`dledger group replace {node_id}`"
        )
        super().__init__(
            f"data directory {directory} is out of service: {divergence}. Keep it for whoever "
            f"looks into it, start the node on an empty one, and {remedy}"
        )
        self.directory = directory
        self.node_id = node_id
        self.divergence = divergence
