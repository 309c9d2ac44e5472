"""Whether a log with gaps can begin behind a peer's start: what is missing is before it, and gone.

Nobody gives back what the group has let go of. But a peer whose log begins behind it tells where,
and gives the state as of there (docs/adr/0043-a-log-that-begins-later.md); and what lies here says
whether this log goes on from there. Pure, but for one frame that is read; it must never find that a
log may be dropped of which an entry may have been counted for a commit: that needs the start to be
committed, which a member that begins there shows, and this log not to hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from dledger.reading.entry import verify_frame
from dledger.reading.log_start import LogStart
from dledger.records.errors import InvalidFrame
from store.gap import Gap, Holes


class Fit(Enum):
    """What a log that begins there is to the one with gaps."""

    CONTINUED = "this log goes on from there"
    BEHIND = "this log has nothing that is behind it, and was counted for anything"
    EARLIER = "begins before what is missing"
    TOO_OLD = "begins with a term that is older than this log's last"
    OTHER = "begins with another log than this one"
    UNNAMED = "doesn't say who is a member there"


def fit_of(
    holes: Holes,
    left: Sequence[Gap],
    start: LogStart,
    segment_size: int,
    read: Callable[[int], bytes],
) -> Fit | Gap:
    """What `start` is to the log; a gap: that entry lies within one of those that are `left`, and
    this is what would be missing behind it.

    Args:
        read: the frame that begins at a physical offset, unjudged; nothing if there is none.
    """
    if not start.configuration_index:
        return Fit.UNNAMED  # nobody would believe what begins there
    if start.index < left[0].first_index:
        return Fit.EARLIER
    if start.index >= holes.last_index:
        return _behind(holes, start)
    place = start.offset(segment_size)
    next_term = _next_term(read(place), start, place)
    if next_term is not None:  # a log whose terms go back is none, and drops none
        return Fit.CONTINUED if start.term <= next_term else Fit.OTHER
    for gap in left:
        if gap.first_index <= start.first_index <= gap.last_index:
            fits = gap.term <= start.term <= gap.behind.term
            fits &= place < gap.behind.physical_offset
            shorter = replace(
                gap,
                start=place,
                first_index=start.first_index,
                term=start.term,
                digest=start.digest,
            )
            return shorter if fits else Fit.OTHER
    own_term = _term_at(holes, start.index)
    # Of one index and term there is one entry: in another term it is one that was never committed,
    # and so is all behind it.
    return _behind(holes, start) if own_term not in (None, start.term) else Fit.OTHER


def _behind(holes: Holes, start: LogStart) -> Fit:
    """A log whose last term is newer may be of a later life of the group (ADR 52), which a peer of
    the one before knows nothing of. Where it is of the same, the next start will do."""
    return Fit.BEHIND if start.term >= holes.terms[-1][1] else Fit.TOO_OLD


def _next_term(frame: bytes, start: LogStart, place: int) -> int | None:
    """Of the entry that goes on from there; None: `frame` isn't that one."""
    try:
        header = verify_frame(frame, 0, start.digest) if frame else None
    except InvalidFrame:
        return None
    if header is None or (header.index, header.physical_offset) != (start.first_index, place):
        return None
    return header.term


def _term_at(holes: Holes, index: int) -> int | None:
    """Of the entry that is intact here; None for one that isn't."""
    if any(gap.first_index <= index <= gap.last_index for gap in holes.gaps):
        return None
    run = bisect_right(holes.terms, index, key=lambda each: each[0]) - 1
    return holes.terms[run][1] if run >= 0 else None
