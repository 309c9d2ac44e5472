"""How fake nodes refuse: errors as a node tells them, with what they say of the outcome."""

from __future__ import annotations

from dledger.wire import errors_pb2 as epb

REFUSED: dict[epb.ErrorCode, tuple[bool, epb.Outcome]] = {
    epb.NOT_LEADER: (True, epb.DID_NOT_HAPPEN),
    epb.NOT_READY: (True, epb.DID_NOT_HAPPEN),
    epb.BUSY: (True, epb.DID_NOT_HAPPEN),
    epb.STORAGE_FULL: (True, epb.DID_NOT_HAPPEN),
    epb.SHUTTING_DOWN: (True, epb.DID_NOT_HAPPEN),
    epb.QUEUES_CHANGED: (True, epb.DID_NOT_HAPPEN),
    epb.OUT_OF_SEQUENCE: (True, epb.DID_NOT_HAPPEN),
    epb.UNKNOWN_PRODUCER: (False, epb.MAY_HAVE_HAPPENED),
    epb.LEADERSHIP_LOST: (True, epb.MAY_HAVE_HAPPENED),
    epb.TIMED_OUT: (True, epb.MAY_HAVE_HAPPENED),
    epb.INTERNAL: (False, epb.MAY_HAVE_HAPPENED),
}


def wire_error(code: epb.ErrorCode, message: str = "") -> epb.Error:
    """An error as a node tells it; codes that aren't listed are definitive refusals."""
    retriable, outcome = REFUSED.get(code, (False, epb.DID_NOT_HAPPEN))
    name = epb.ErrorCode.Name(code)
    return epb.Error(code=code, message=message or name, retriable=retriable, outcome=outcome)


class Refusal(Exception):
    """Ends a call with an error."""

    def __init__(self, error: epb.Error) -> None:
        super().__init__(error.message)
        self.error = error
