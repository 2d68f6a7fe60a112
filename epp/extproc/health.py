"""
gRPC health: liveness, readiness, the ext_proc service, and the picker as a whole.

Liveness says that the process serves at all; the other names say that the picker can decide: its
endpoints are known and it is not stopping. Names that nobody registered are NOT_FOUND.
"""

from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from epp.extproc.grpc_door import SERVICE

LIVENESS = "liveness"
READINESS_NAMES = ("", "readiness", SERVICE)

_SERVING: int = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING


class _Servicer(health.aio.HealthServicer):  # type: ignore[misc]
    """The library's servicer, and the List that it leaves out."""

    def __init__(self, statuses: Mapping[str, int]) -> None:
        super().__init__()
        self._statuses = statuses

    async def List(  # noqa: N802 - the method's name in the protocol
        self, _: Any, __: Any
    ) -> Any:
        """Return the status of every name."""
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=status)
                for name, status in self._statuses.items()
            }
        )


class Health:
    """One state, served on any number of servers: Check, Watch and List."""

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._servicer = _Servicer(self._statuses)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve grpc.health.v1 on a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Be alive, and not ready yet."""
        await self._set(LIVENESS, _SERVING)
        await self.set_ready(ready=False)

    async def set_ready(self, *, ready: bool) -> None:
        """Tell those who check and those who watch."""
        for name in READINESS_NAMES:
            await self._set(name, _SERVING if ready else _NOT_SERVING)

    async def _set(self, name: str, status: int) -> None:
        self._statuses[name] = status
        await self._servicer.set(name, status)
