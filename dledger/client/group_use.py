"""Keeps a consumer group in use that nobody has joined: a commit of what it has is use (ADR 55).

Brokers forget a group for which nobody has committed for long, with its offsets. Whoever reads an
idle topic, or one that may not be read just now, has nothing new to commit for as long as that
lasts, and would begin anew behind it.

This owns when the log last heard that the group is in use, and the offsets that were committed
here, or begun from. It must never commit what the brokers never had, nor take the place of what
they have by now: somebody may have set offsets back. And of queues that others read it says
nothing: a commit forgets what they have finished behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final, Protocol

from dledger.client.errors import ClientError

AGAIN_S: Final = 900.0  # a quarter of the least that brokers may be told to wait: an hour

_log = logging.getLogger("dledger.client")


class Commits(Protocol):
    """The client, as far as it is asked for a consumer group's offsets."""

    async def fetch_offsets(
        self, group: str, topic: str, /, *, incarnation: int
    ) -> dict[int, int]: ...
    async def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        /,
        *,
        incarnation: int,
        deadline_s: float | None = None,
    ) -> dict[int, int]: ...


class GroupUse:
    """A consumer group's in one topic."""

    def __init__(self, commits: Commits, group: str, topic: str) -> None:
        self._commits = commits
        self._group = group
        self._topic = topic
        self._had: dict[int, int] = {}
        self._used_at_s = asyncio.get_running_loop().time()
        self._told = ""

    async def fetched(self, incarnation: int) -> dict[int, int]:
        """What the group has committed in the topic, by queue."""
        about = self._group, self._topic
        offsets = await self._commits.fetch_offsets(*about, incarnation=incarnation)
        self._had |= offsets
        return offsets

    def on_committed(self, offsets: Mapping[int, int]) -> None:
        """They have taken these."""
        self._had |= offsets
        self._used_at_s = asyncio.get_running_loop().time()

    async def renew(self, queues: Collection[int], incarnation: int) -> None:
        """The log has heard lately that the group is in use, if it has offsets in these queues.
        What fails is told once, and done again by the next call."""
        asked_s = asyncio.get_running_loop().time()
        own = {each: at for each, at in self._had.items() if each in queues}
        if not own or asked_s - self._used_at_s < AGAIN_S:
            return
        about = self._group, self._topic
        try:
            there = await self._commits.fetch_offsets(*about, incarnation=incarnation)
            # Of a queue that the brokers know 0 moves nothing, whatever has been set meanwhile.
            use = {each: 0 for each in sorted(own) if each in there}
            wanted = dict(islice(use.items(), 1)) | {
                q: at for q, at in own.items() if q not in there
            }
            await self._commits.commit_offsets(*about, wanted, incarnation=incarnation)
        except ClientError as error:
            if error.code != self._told:
                _log.warning("group %s: keeping it in use: %s", self._group, error.message)
            self._told = error.code
            if not error.retriable:  # as of a group that has members: they keep it
                self._used_at_s = asked_s
        else:
            self._used_at_s, self._told = asked_s, ""
