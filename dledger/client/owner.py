"""The event loop, its thread and the process that a client's parts belong to.

Nothing in the client is safe to touch from another thread; in another loop of the same one, as of a
second `asyncio.run`, nobody does what is accepted, and who waits does so for ever; and a forked
child has neither the event loop's thread nor connections of its own. Each mistake used to go
unnoticed until messages were missing. This owns the comparisons that tell them; the one of threads
must stay cheap, as it is made for each message.
"""

from __future__ import annotations

import asyncio
import os
from threading import get_ident
from typing import Final
from weakref import WeakSet

from dledger.client.errors import Forked, Subject, WrongThread

_FORKED: Final = -1  # no thread has this id


class Owner:
    """Made in the thread that owns, and in the loop, if one runs there; `thread` is what
    `get_ident()` says there."""

    __slots__ = ("__weakref__", "loop", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.loop = asyncio._get_running_loop()
        _OWNERS.add(self)

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked off the owner's."""
        return self.thread == _FORKED

    def check(self, subject: Subject = Subject.REQUEST) -> None:
        """Returns in the owner's thread, in its loop or where none runs: what needs one there says
        so itself.

        Raises:
            WrongThread, Forked: it is called anywhere else.
        """
        if get_ident() == self.thread:
            running = asyncio._get_running_loop()
            if running is None or self.loop is None or running is self.loop:
                return
            text = "this belongs to another event loop: connect in this one"
            raise WrongThread(text, subject=subject)
        if self.is_of_another_process:
            raise Forked(
                "the client was connected before this process was forked: connect in the child",
                subject=subject,
            )
        raise WrongThread(
            "this belongs to the event loop of another thread: use "
            "loop.call_soon_threadsafe, or dledger.client.blocking",
            subject=subject,
        )


_OWNERS: Final[WeakSet[Owner]] = WeakSet()


def _disown() -> None:
    """In a forked child: what it has inherited is its parent's."""
    for owner in _OWNERS:
        owner.thread = _FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)
