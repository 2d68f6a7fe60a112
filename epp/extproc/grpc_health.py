"""
grpc.health.v1 on a grpc.aio server: the library's servicer, and the List that it leaves out.
"""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.extproc.health import SERVICE_UNKNOWN, Health


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers Check, Watch and List from the one state."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve on a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(  # noqa: N802 - the method's name in the protocol
        self, request: Any, context: Any
    ) -> Any:
        """Return the status of a name; NOT_FOUND for one that nobody registered."""
        status = self._health.statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Yield the status of a name now and after each change."""
        changed = asyncio.Event()
        self._health.watch(changed.set)
        told = None
        try:
            while True:
                changed.clear()
                status = self._health.statuses.get(request.service, SERVICE_UNKNOWN)
                if status != told:
                    told = status
                    yield health_pb2.HealthCheckResponse(status=status)
                await changed.wait()
        finally:
            self._health.unwatch(changed.set)

    async def List(self, _: Any, __: Any) -> Any:  # noqa: N802
        """Return the status of every name."""
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=status)
                for name, status in self._health.statuses.items()
            }
        )
