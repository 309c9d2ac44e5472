"""The standard health and reflection services, guarded like every other door.

The libraries' own handlers answer a malformed request with a traceback in the log, and hold a
watch of any length of name for anybody; so health is answered here, and reflection's requests are
looked at before the library sees them. Source: gRPC's `doc/health-checking.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from broker.doors.grpc.errors import Context, malformed_request
from broker.doors.grpc.methods import Malformed
from broker.errors import BrokerError, ErrorCode

MAX_WATCHES: Final = 256  # of health; a load balancer has one a service
MAX_REFLECTIONS: Final = 64  # who asks has one stream, for a moment
REFLECTION_IDLE_S: Final = 30.0
MAX_NAME_BYTES: Final = 256

SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthDoor:
    """Handlers of `grpc.health.v1.Health`: this node, and each of its services, is up or isn't."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._statuses = dict.fromkeys(("", *services), NOT_SERVING)
        self._changed = asyncio.Event()
        self._watches = 0

    def say(self, *, is_serving: bool) -> None:
        """Every service is up, or none is any more; watchers learn it."""
        for name in self._statuses:
            self._statuses[name] = SERVING if is_serving else NOT_SERVING
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(_name(request))
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def list(
        self, request: health_pb2.HealthListRequest, context: Context
    ) -> health_pb2.HealthListResponse:
        statuses = {
            name: health_pb2.HealthCheckResponse(status=status)
            for name, status in self._statuses.items()
        }
        return health_pb2.HealthListResponse(statuses=statuses)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        name = _name(request)
        if self._watches >= MAX_WATCHES:
            raise BrokerError(ErrorCode.BUSY, f"{MAX_WATCHES} watches of health are open already")
        self._watches += 1
        try:
            while True:
                changed = self._changed
                status = self._statuses.get(name, SERVICE_UNKNOWN)
                await context.write(health_pb2.HealthCheckResponse(status=status))
                await changed.wait()
        finally:
            self._watches -= 1


def _name(request: health_pb2.HealthCheckRequest) -> str:
    name: str = request.service
    if len(name) > MAX_NAME_BYTES:
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, "the service's name is too long")
    return name


class ReflectionDoor:
    """Handler of `grpc.reflection.v1alpha.ServerReflection`: what grpcurl and its like ask."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._library: Any = reflection.aio.ReflectionServicer(services)  # type: ignore[attr-defined]
        self._streams = 0

    async def server_reflection_info(
        self, requests: AsyncIterator[object], context: Context
    ) -> None:
        if self._streams >= MAX_REFLECTIONS:
            text = f"{MAX_REFLECTIONS} streams of reflection are open already"
            raise BrokerError(ErrorCode.BUSY, text)
        self._streams += 1
        try:
            async for answer in self._library.ServerReflectionInfo(_parsed(requests), context):
                await context.write(answer)
        finally:
            self._streams -= 1


async def _parsed(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    """The stream's questions, until it ends, or asks nothing for so long that others want its
    place."""
    while True:
        try:
            async with asyncio.timeout(REFLECTION_IDLE_S):
                request = await anext(requests)
        except (StopAsyncIteration, TimeoutError):
            return
        if isinstance(request, Malformed):
            raise malformed_request(request.why)
        yield request
