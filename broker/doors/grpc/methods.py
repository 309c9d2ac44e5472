"""Methods from descriptors: what every handler of the door is wrapped in.

Every method of a service in proto/ is registered with a handler of the same name in snake case;
a missing one fails at start, not at the first call. Bytes that are no request, or one that is
longer or holds more than it may (`broker/doors/grpc/sizes.py`), become INVALID_ARGUMENT (gRPC's
default would be INTERNAL with a traceback in the log). A BrokerError becomes a status
(`broker/doors/grpc/errors.py`); anything else is our fault: logged, and told as INTERNAL without
details.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from broker.doors.grpc.errors import Context, abort, malformed_request
from broker.doors.grpc.sizes import MAX_LENGTH, not_worth_parsing, too_many
from broker.errors import BrokerError, ErrorCode
from dledger.sparing import Sparing

log = structlog.get_logger(__name__)

Handler = Callable[[Any, Context], Awaitable[Any]]
# What a caller says of the group's epoch with its metadata, and with which request. Raises
# BrokerError: it isn't served.
Heed = Callable[[Any, Context], None]


class Callers(Protocol):
    """Whom an address serves; see `broker.doors.grpc.callers`."""

    def refusal_of(self, context: Context, /) -> str | None:
        """Why the caller isn't served; None if it is."""
        ...

    def lasts(self, context: Context, end: Callable[[str], None], /) -> None:
        """The call goes on and on: `end` is told why once its caller isn't served any more."""
        ...

    def is_over(self, context: Context, /) -> None:
        """It doesn't go on."""
        ...


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a request that nobody is shown, and says why: its bytes can't be parsed, or aren't
    worth it."""

    why: str


MALFORMED: Final = Malformed("the request's bytes can't be parsed")


def service_handler(
    service: ServiceDescriptor,
    handlers: object,
    left_out: frozenset[str] = frozenset(),
    callers: Callers | None = None,
    heed: Heed | None = None,
) -> grpc.GenericRpcHandler[Any, Any]:
    """Registers `handlers.<method_in_snake_case>` for each method of `service` not left out.

    Args:
        callers: is asked as each call begins, and while a stream goes on; None: everybody is
            served.
        heed: is shown each call before it is answered, unless its bytes are no request: who sends
            those may be anybody.

    Raises:
        AttributeError: a method has no handler.
    """
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        if method.name in left_out:
            continue
        handler: Handler = getattr(handlers, _snake_case(method.name))
        guarded = _guard(handler, callers, heed)
        if callers is not None and (method.client_streaming or method.server_streaming):
            guarded = _while_served(guarded, callers)
        methods[method.name] = _method_handler(method, guarded)
    generic: grpc.GenericRpcHandler[Any, Any] = grpc.method_handlers_generic_handler(
        service.full_name, methods
    )
    return generic


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _method_handler(method: MethodDescriptor, handler: Handler) -> grpc.RpcMethodHandler[Any, Any]:
    deserialize = _deserializer(method)
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(
            handler, request_deserializer=deserialize, response_serializer=_serialize
        )
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(
            handler, request_deserializer=deserialize, response_serializer=_serialize
        )
    return grpc.unary_unary_rpc_method_handler(
        handler, request_deserializer=deserialize, response_serializer=_serialize
    )


def _deserializer(method: MethodDescriptor) -> Callable[[bytes], object]:
    """What a request is of such bytes; of a stream's who reads it counts, as others are on it."""
    parsed = GetMessageClass(method.input_type).FromString
    unparsed = not_worth_parsing(method)
    excess = too_many(method)
    is_stream = method.client_streaming

    def deserialize(data: bytes) -> object:
        if len(data) > MAX_LENGTH and (why := unparsed(data)):
            return Malformed(why)
        try:
            request = parsed(data)
        except DecodeError:
            return MALFORMED
        if not is_stream and (why := excess(request)):
            return Malformed(why)
        return request

    return deserialize


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _guard(handler: Handler, callers: Callers | None, heed: Heed | None) -> Handler:
    sparing = Sparing()

    async def guarded(request: Any, context: Context) -> Any:
        if callers is not None and (reason := callers.refusal_of(context)) is not None:
            if (unreported := sparing.due("refused")) is not None:
                log.warning("caller_refused", reason=reason, unreported=unreported)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        try:
            if isinstance(request, Malformed):
                raise malformed_request(request.why)
            if heed is not None:
                heed(request, context)
            return await handler(request, context)
        except BrokerError as error:
            refusal = error
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise  # the handler has told the caller itself, or the caller has gone
        except Exception as error:
            # The boundary: a caller must get an answer, and we the traceback, once in a while.
            kind = type(error).__name__
            if (unreported := sparing.due((handler.__qualname__, kind))) is not None:
                log.exception("call_failed", kind=kind, unreported=unreported)
            refusal = BrokerError(ErrorCode.INTERNAL, "the node failed to answer; its log says why")
        return await abort(context, refusal)

    return guarded


def _while_served(guarded: Handler, callers: Callers) -> Handler:
    """A stream that ends once its caller isn't served any more: it may have no other end."""

    async def lasting(request: Any, context: Context) -> Any:
        task = asyncio.current_task()
        assert task is not None
        reasons: list[str] = []

        def end(reason: str) -> None:
            reasons.append(reason)
            task.cancel()

        callers.lasts(context, end)
        try:
            return await guarded(request, context)
        except asyncio.CancelledError:
            if not reasons or task.uncancel():
                raise
        finally:
            callers.is_over(context)
        log.warning("caller_refused", reason=reasons[0], unreported=0)
        return await context.abort(grpc.StatusCode.UNAUTHENTICATED, reasons[0])

    return lasting
