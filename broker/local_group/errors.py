"""Why something can't be done with a local group.

LocalGroupError
├── OptionsRefused     a new group can't be made with them
├── NotAGroup          the directory holds no group
├── GroupFileBroken    group.json can't be read, or isn't ours
├── OtherGroupAnswers  at a node's address a node of another group answers
├── GroupDiffers       a group was asked for that isn't the one that is there
├── GroupStillRuns     processes that must be over, and aren't
├── NodeUnrecorded     a node runs that group.json doesn't know of
├── PortInUse          a node couldn't listen (retriable)
├── NodeDied           a node ended at its start; carries the end of its log
├── NodeNotRunning     a signal for a node without a process
├── NoSuchNode         neither a role nor a node of the group
└── NoAnswer           no node, or no leader, answered in time (retriable;
                       what was asked for may have happened)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dledger.outcome import ExitCode, Outcome
from dledger.wire.cluster_pb2 import NodeStatus


class LocalGroupError(Exception):
    """Root of the errors of local groups; its text is fit for the terminal as it is."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class OptionsRefused(LocalGroupError):
    exit_code = ExitCode.USAGE


class NotAGroup(LocalGroupError):
    exit_code = ExitCode.USAGE

    def __init__(self, directory: Path) -> None:
        super().__init__(f"there is no group in {directory} (make one with: dledger group up)")
        self.directory = directory


class GroupFileBroken(LocalGroupError):
    """Nothing is signalled or deleted on the word of such a file."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file} doesn't describe a local group: {reason}")
        self.file = file
        self.reason = reason


class OtherGroupAnswers(LocalGroupError):
    """What is meant for the one group isn't asked of the other."""

    exit_code = ExitCode.USAGE

    def __init__(self, directory: Path, node_id: str, address: str, answer: NodeStatus) -> None:
        super().__init__(
            f"{address} is answered by {answer.node_id} of broker group {answer.broker_group} on "
            f"{answer.data_directory}, not by {node_id} of the group in {directory}: name the "
            "group that runs with --dir or --bootstrap, or stop it and start this one "
            "(dledger group up)"
        )
        self.node_id = node_id
        self.address = address


class GroupDiffers(LocalGroupError):
    pass


class NodeUnrecorded(LocalGroupError):
    """Whoever started it was killed before it wrote that down. It isn't signalled: no file says
    that it is ours."""

    def __init__(self, node_id: str, data: Path, holder: str) -> None:
        super().__init__(
            f"{node_id} runs, as a process that group.json doesn't know of: {holder} has {data} "
            "locked. End it, and ask again"
        )
        self.node_id = node_id
        self.holder = holder


class GroupStillRuns(LocalGroupError):
    def __init__(self, node_ids: Sequence[str]) -> None:
        super().__init__(f"still running: {', '.join(node_ids)}")
        self.node_ids = tuple(node_ids)


class PortInUse(LocalGroupError):
    retriable = True

    def __init__(self, node_id: str, address: str, reason: str = "the port is in use") -> None:
        super().__init__(f"{node_id} can't listen on {address}: {reason}")
        self.node_id = node_id
        self.address = address
        self.reason = reason


class NodeDied(LocalGroupError):
    def __init__(self, node_id: str, log: Path, tail: Sequence[str]) -> None:
        lines = "".join(f"\n  {line}" for line in tail) or " nothing"
        super().__init__(f"{node_id} ended at its start; {log} says:{lines}")
        self.node_id = node_id
        self.log = log
        self.tail = tuple(tail)


class NodeNotRunning(LocalGroupError):
    def __init__(self, node_id: str) -> None:
        super().__init__(f"{node_id} isn't running")
        self.node_id = node_id


class NoSuchNode(LocalGroupError):
    exit_code = ExitCode.USAGE

    def __init__(self, who: str, node_ids: Sequence[str]) -> None:
        super().__init__(f"no node {who!r} here; there are {', '.join(node_ids)}")
        self.who = who


class NoAnswer(LocalGroupError):
    retriable = True
    outcome = Outcome.MAY_HAVE_HAPPENED
    exit_code = ExitCode.UNREACHABLE
