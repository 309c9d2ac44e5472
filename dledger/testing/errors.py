"""What can go wrong with a group under test.

GroupFailed   the program `dledger` could not do what the test asked for, or the group was closed
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import Outcome


class GroupFailed(Exception):
    """The program `dledger` could not do what the test asked for. The text is its own; after a
    start that failed, the end of each node's log is below it. A group that was closed, a fake one
    too, does nothing any more."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.MAY_HAVE_HAPPENED
