"""What gRPC complains about by itself, where a process has more than one event loop."""

from __future__ import annotations

from collections.abc import Iterable
from logging import LogRecord


def is_grpcs_own(message: str, error: BaseException | None) -> bool:
    """grpc.aio has one poller for all event loops of a process. It wakes also those that tests have
    closed since, and one that finds nothing to read, because another was faster, says so; a program
    has one loop. None of ours is called in there: futures are completed, and wake tasks later."""
    is_closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    is_empty = error is None or isinstance(error, BlockingIOError)
    return (is_closed or is_empty) and "PollerCompletionQueue._handle_events" in message


def without_grpcs_own(records: Iterable[LogRecord]) -> list[LogRecord]:
    """What somebody else said."""
    return [
        each
        for each in records
        if not is_grpcs_own(each.getMessage(), each.exc_info[1] if each.exc_info else None)
    ]
