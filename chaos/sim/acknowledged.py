"""What each node has acknowledged in its present life: entries by their digests.

An entry that was found on the platter needs no second look; but where a log was cut, another one
has its index, and that one does.
"""

from __future__ import annotations

from contextlib import suppress

from store.commitlog import CommitLog
from store.errors import CorruptionFound


class Acknowledged:
    """Digests by index, ascending, of each node."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, int]] = {}

    def forget(self, name: str) -> None:
        """The node's life is over."""
        self._of.pop(name, None)

    def first_news(self, name: str, log: CommitLog, match_index: int) -> int:
        """Where to begin looking at what is acknowledged up to `match_index`, which is looked at in
        any case."""
        known = self._of.get(name, {})
        return max(min(_last_unchanged(log, known) + 1, match_index), log.first_index)

    def note(self, name: str, index: int, digest: int) -> None:
        """This entry was found."""
        self._of.setdefault(name, {})[index] = digest


def _last_unchanged(log: CommitLog, known: dict[int, int]) -> int:
    """The last index at which the log still has the entry of the digest that is known; those of
    others behind it are forgotten. A digest speaks for everything before it."""
    while known:
        index, digest = next(reversed(known.items()))
        with suppress(CorruptionFound):  # what has rotted is looked at by others
            is_there = index <= log.last_index
            if is_there and (index < log.first_index or log.digest_at(index) == digest):
                return index
        del known[index]
    return 0
