"""`ConsumerGroups` for callers without an event loop: see `dledger.client.groups`."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from datetime import datetime
from typing import Any, Protocol, TypeVar

from dledger.client.groups import (
    ConsumerGroups,
    GroupDescription,
    Groups,
    Moved,
    Queues,
)
from dledger.client.options import StartFrom

Answer = TypeVar("Answer")


class Call(Protocol):
    """Runs on the client's loop, and waits for it."""

    def __call__(self, work: Coroutine[Any, Any, Answer]) -> Answer: ...


class BlockingConsumerGroups:
    """The consumer groups of a broker group."""

    def __init__(self, groups: ConsumerGroups, call: Call) -> None:
        self._groups = groups
        self._call = call

    def list(self, *, deadline_s: float | None = None) -> Groups:
        """See `ConsumerGroups.list`."""
        return self._call(self._groups.list(deadline_s=deadline_s))

    def describe(self, group: str, *, deadline_s: float | None = None) -> GroupDescription:
        """See `ConsumerGroups.describe`."""
        return self._call(self._groups.describe(group, deadline_s=deadline_s))

    def progress(self, group: str, *, deadline_s: float | None = None) -> Queues:
        """See `ConsumerGroups.progress`."""
        return self._call(self._groups.progress(group, deadline_s=deadline_s))

    def reset(
        self,
        group: str,
        topic: str,
        to: StartFrom | datetime | int,
        *,
        queues: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> Moved:
        """See `ConsumerGroups.reset`."""
        return self._call(
            self._groups.reset(group, topic, to, queues=queues, deadline_s=deadline_s)
        )

    def skip(
        self,
        group: str,
        topic: str,
        count: int | None = None,
        *,
        queues: Collection[int] = (),
        deadline_s: float | None = None,
    ) -> Moved:
        """See `ConsumerGroups.skip`."""
        return self._call(
            self._groups.skip(group, topic, count, queues=queues, deadline_s=deadline_s)
        )

    def clone(self, source: str, target: str, *, deadline_s: float | None = None) -> int:
        """See `ConsumerGroups.clone`."""
        return self._call(self._groups.clone(source, target, deadline_s=deadline_s))
