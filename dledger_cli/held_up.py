"""What keeps a change of members from being done, where a command has waited for it in vain.

It is said on standard error, beside the exit code; nodes are asked how they are, and nothing is
changed. Named is only what ends by itself, a disk that is given room; all else is the doctor's.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.local_group import group_status
from dledger.terminal.outcome import complain, run
from dledger.terminal.tls import chosen_material


def tell_what_holds_up(addresses: Sequence[str]) -> None:
    """A line for each node whose disk is full, or where to look."""
    found = run(group_status(addresses, chosen_material()))
    for node in found.nodes:
        if node.is_full:
            complain(f"the disk of {node.id} is full: give it room, and it goes on by itself")
    if not any(node.is_full for node in found.nodes):
        complain("`dledger group doctor` says what holds it up")
