"""What of a leader's append is new here, and whether it may follow what is.

Pure questions to the core and the log, asked by the driver before the core takes the append: they
change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core import Raft
from dledger.core.errors import Contradiction
from dledger.core.types import AppendRequest, Index
from dledger.ports import H, ReplicatedLog


def held_of(core: Raft, headers: Sequence[H]) -> int:
    """How many of these entries are here already, from the first on."""
    for at, header in enumerate(headers):
        index = Index(header.index)
        if index <= core.commit_index:
            continue
        if index > core.last_index or header.term != core.term_at(index):
            return at
    return len(headers)


def is_to_be_appended(core: Raft, message: AppendRequest, new: Sequence[H]) -> bool:
    """Whether the core is going to want `new`: the entry before them is here."""
    previous = Index(new[0].index - 1)
    if message.term < core.term or previous > core.last_index:
        return False
    return previous > message.prev_index or core.term_at(previous) == message.prev_term


def check_continuity(
    log: ReplicatedLog[H], message: AppendRequest, new: list[H], blob: memoryview
) -> None:
    """The frames lie where this log would put them and carry on its digest.

    Raises:
        Contradiction: the two logs differ below, although they agree on index and term, which
            Raft rules out.
    """
    reason = log.refusal_of(blob, new)
    if reason is not None:
        text = f"{message.sender} sent entry {new[0].index}, which doesn't continue this log"
        raise Contradiction(message.sender, f"{text}: {reason}", Index(new[0].index - 1))
