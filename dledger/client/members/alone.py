"""The one message that is all a member is at work on: which, and when it begins. Pure (ADR 63).

    nobody     the next one is doubted       waits: nothing else is handed out, of any queue
    waits      nothing else is in hand       the next commit says that it is begun
    waits      that commit went through      begun: it is handed out
    begun      it was finished, or failed    over: the next commit says that it isn't begun any more
    over       that commit went through      nobody
    any        its lease is over             nobody, once no handler is at work on it

A message that the log has in doubt may kill the process that has it. So the log is told when it is
tried, and it is tried alone: had anything else been in hand, of any queue, it might be blamed for
what another one did, and in the end be given up untried.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.client.members.process_queue import Held, ProcessQueue


class Alone:
    """Of one member.

    Args:
        others_run: whether a handler is at work on anything but of that queue.
    """

    def __init__(self, others_run: Callable[[ProcessQueue], bool]) -> None:
        self._others_run = others_run
        self._queue: ProcessQueue | None = None

    @property
    def queue(self) -> ProcessQueue | None:
        """Whose message is tried by itself; None: any may be handed out."""
        if self._queue is not None and not self._is_there(self._queue):
            self._queue = None
        return self._queue

    def _is_there(self, queue: ProcessQueue) -> bool:
        if queue.at_work or queue.state is Held.GONE:
            return bool(queue.at_work)
        return queue.is_begun or (queue.state is Held.HELD and queue.is_doubted)

    def begin(self, queue: ProcessQueue) -> None:
        """Its turn has come."""
        self._queue = queue

    def begins(self, queue: ProcessQueue) -> bool:
        """What the log is to know: whether the queue's next message is begun, or is at work."""
        if queue is not self._queue:
            return False
        if queue.at_work:
            return queue.is_begun
        return queue.state is Held.HELD and queue.is_doubted and not self._others_run(queue)

    @property
    def wants_commit(self) -> bool:
        """Whether the log doesn't know it yet."""
        queue = self.queue
        return queue is not None and self.begins(queue) != queue.is_begun

    @property
    def may_begin(self) -> bool:
        """Whether nothing else is in hand, and the log knows."""
        queue = self.queue
        return queue is not None and queue.is_begun and self.begins(queue)
