"""A group of nodes as background processes of one machine, described by `<dir>/group.json`.

For development, tests, the demo, benchmarks and fault injection; a real group's nodes are
started by their machines' service managers (docs/operations.md).
"""

from broker.local_group.errors import (
    GroupDiffers,
    GroupFileBroken,
    GroupStillRuns,
    LocalGroupError,
    NoAnswer,
    NodeDied,
    NodeNotRunning,
    NoSuchNode,
    NotAGroup,
    OtherGroupAnswers,
    PortInUse,
)
from broker.local_group.group import LocalGroup
from broker.local_group.layout import GROUP_FILE, FlushName, GroupOptions, LocalNode
from broker.local_group.status import GroupStatus, NodeView, group_status, probe

__all__ = [
    "GROUP_FILE",
    "FlushName",
    "GroupDiffers",
    "GroupFileBroken",
    "GroupOptions",
    "GroupStatus",
    "GroupStillRuns",
    "LocalGroup",
    "LocalGroupError",
    "LocalNode",
    "NoAnswer",
    "NoSuchNode",
    "NodeDied",
    "NodeNotRunning",
    "NodeView",
    "NotAGroup",
    "OtherGroupAnswers",
    "PortInUse",
    "group_status",
    "probe",
]
