"""What gRPC complains about by itself, where a process has more than one event loop."""

from __future__ import annotations


def is_grpcs_own(message: str, error: BaseException | None) -> bool:
    """grpc.aio has one poller for all event loops of a process, and wakes also those that tests
    have closed since; a program has one loop."""
    is_closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return is_closed and "PollerCompletionQueue._handle_events" in message
