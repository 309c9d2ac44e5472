"""What a member does about messages that the log says have failed (ADR 63): plain rules.

    holders that vanished, or failures        in order               otherwise
    once more than none                       carefully              as ever
    `CAREFUL_AFTER`                           carefully              carefully
    one more than led to care, and            given up               given up
    in order `max_attempts`

*Carefully*: a message is begun only when all before it is finished and committed, over as many
offsets as may have been under way. So who vanishes next had one message in hand, and the log knows
which. *Given up*: it isn't tried, and goes back to the brokers as one that has failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.records.reserved import (
    CAREFUL_AFTER,
    CAREFUL_IN_ORDER,
    GIVEN_UP_AFTER,
    GIVEN_UP_IN_ORDER,
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the log knows of the message at `offset`, where a queue's frontier was: how often it has
    failed, and what follows from that."""

    offset: int
    failures: int
    is_careful: bool = False
    is_given_up: bool = False


def counted_in_order(offset: int, failures: int, max_attempts: int | None) -> Counted:
    """Of a queue in order. Who vanished first may have had another message in hand, so that one
    alone never gives it up."""
    enough = max(max_attempts or failures + 1, GIVEN_UP_IN_ORDER)
    return Counted(offset, failures, failures >= CAREFUL_IN_ORDER, failures >= enough)


def counted_concurrently(offset: int, failures: int) -> Counted:
    """Of any other queue."""
    return Counted(offset, failures, failures >= CAREFUL_AFTER, failures >= GIVEN_UP_AFTER)
