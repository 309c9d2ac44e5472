"""The epoch of the group as clients are told it, and what they tell of a newer one (ADR 52).

A client that was served by the group after a recovery by force tells it with every call. A node of
before that hears of it serves nobody from then on: it can't know what is acknowledged there. That
is one client's word, so it is kept in memory only, and ends with the process, or once this node's
own log has come to that epoch.

    open ──told of a newer epoch──▶ shut ──its own log names that one──▶ open
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from broker.errors import BrokerError, ErrorCode
from dledger.core.group_epoch import (
    MAX_RECOVERIES,
    RECOVERY_ID_BYTES,
    Lineage,
    Standing,
    is_lineage,
    standing_of,
)

WHAT_TO_DO: Final = (
    "if the group was recovered by force without this node, stop it for good; if this group was "
    "restored from a backup, a client of the one before is left: stop that, and start the node "
    "again"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EpochName:
    """How clients know an epoch: how many recoveries led to it, and the last one's id. The first
    epoch has neither. `earlier`: the ids of those before, as far as they were told: without them
    nobody can say whether one that is later comes from one's own."""

    number: int = 0
    recovery_id: bytes = b""
    earlier: Lineage = field(default=(), compare=False)

    @classmethod
    def of(cls, recoveries: Lineage) -> EpochName:
        """The name of that epoch."""
        return cls(len(recoveries), recoveries[-1], recoveries[:-1]) if recoveries else FIRST


FIRST: Final = EpochName()


class EpochFence:
    """Whether a newer epoch was told of than this node's own.

    Args:
        own: the recoveries that this node's configuration names, as of now.
        on_shut: is called when a newer one is told of.
    """

    def __init__(self, own: Callable[[], Lineage], on_shut: Callable[[], None]) -> None:
        self._own = own
        self._on_shut = on_shut
        self._newest = FIRST

    @property
    def name(self) -> EpochName:
        """This node's own epoch."""
        return EpochName.of(self._own())

    @property
    def is_shut(self) -> bool:
        """Whether nobody may be served."""
        return self._newest.number > len(self._own())

    @property
    def told_number(self) -> int:
        """The newest epoch that a client told of."""
        return self._newest.number

    def heard(self, told: EpochName) -> None:
        """A caller was served in the epoch `told`.

        Raises:
            BrokerError: WRONG_BROKER_GROUP: it is none that this node's own comes from, or that
                can come from this one.
        """
        own = self._own()
        if not 0 < told.number <= MAX_RECOVERIES or len(told.recovery_id) != RECOVERY_ID_BYTES:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "no group has such an epoch")
        if told.earlier and (
            len(told.earlier) != told.number - 1
            or not is_lineage((*told.earlier, told.recovery_id))
        ):
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, "no group has been in such epochs")
        if _is_other(told, own):
            text = (
                f"the caller knows another epoch {told.number} of the group than this node: they "
                "were one, and are two groups since one was recovered by force, or restored from a "
                "backup. Start clients of the other one anew"
            )
            raise BrokerError(ErrorCode.WRONG_BROKER_GROUP, text)
        if told.number <= len(own):
            return
        if told.number > self._newest.number:
            self._newest = told
            log.critical(
                "newer_epoch_heard_of",
                own=len(own),
                told=told.number,
                recovery_id=told.recovery_id.hex(),
                what_to_do=WHAT_TO_DO,
            )
            self._on_shut()


def _is_other(told: EpochName, own: Lineage) -> bool:
    """Whether neither is the other's past. Of a longer list of which only the last id is told that
    can't be said: it is taken for a newer one, as the worse of the two."""
    lineage = (*told.earlier, told.recovery_id)
    if len(lineage) == told.number:
        return standing_of(lineage, own) is Standing.OTHER
    return told.number <= len(own) and own[told.number - 1] != told.recovery_id
