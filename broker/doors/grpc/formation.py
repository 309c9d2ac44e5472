"""`dledger.v1.Formation` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import BrokerError, ErrorCode
from broker.forming.errors import FormationRefused
from broker.forming.member import Member
from broker.forming.wire import plain_founding, wire_description
from dledger.wire import formation_pb2 as fpb
from store.errors import StorageFull, StoreError
from store.files import FULL_ERRNOS


class FormationDoor:
    """Handlers of `dledger.v1.Formation`.

    Args:
        member: what is asked.
        changed: told when it may have become a member.
        failed: told that its disk can't be relied on any more.
    """

    def __init__(
        self,
        member: Member,
        changed: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._member = member
        self._changed = changed
        self._failed = failed

    async def describe(
        self, request: fpb.DescribeRequest, context: object
    ) -> fpb.MemberDescription:
        return wire_description(self._member.describe())

    # What these write takes the loop's time: nobody else is served by one who is no member, and a
    # member writes nothing here.

    async def prepare(self, request: fpb.PrepareRequest, context: object) -> fpb.PrepareResponse:
        self._done(lambda: self._member.prepare(plain_founding(request.founding)))
        return fpb.PrepareResponse()

    async def commit(self, request: fpb.CommitRequest, context: object) -> fpb.CommitResponse:
        self._done(lambda: self._member.commit(request.founding))
        self._changed()
        return fpb.CommitResponse()

    async def join(self, request: fpb.JoinRequest, context: object) -> fpb.JoinResponse:
        self._done(lambda: self._member.join(request.disk_id))
        self._changed()
        return fpb.JoinResponse()

    def _done(self, step: Callable[[], None]) -> None:
        try:
            step()
        except FormationRefused as error:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, str(error)) from error
        except (StoreError, OSError) as error:
            if isinstance(error, StorageFull) or _is_full(error):
                # A step either has happened or hasn't, and may be asked for again.
                where = self._member.describe().node_id
                text = f"no space at {where}: {error}; give its disk room, and ask again"
                raise BrokerError(ErrorCode.STORAGE_FULL, text) from error
            self._failed(error)  # never again on this disk without a look at it (ADR 8)
            raise


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in FULL_ERRNOS
