"""
gRPC health: liveness, readiness, the ext_proc service, and the picker as a whole.

Liveness says that the process serves at all; the other names say that the picker can decide: its
endpoints are known and it is not stopping. Names that nobody registered are unknown.
"""

from collections.abc import Callable, Mapping

from grpc_health.v1 import health_pb2

from epp.extproc.messages import SERVICE

LIVENESS = "liveness"
READINESS_NAMES = ("", "readiness", SERVICE)
SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_SERVING: int = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """One state, served by any number of servers; alive from the start, ready when told."""

    def __init__(self) -> None:
        self._statuses = dict.fromkeys(READINESS_NAMES, _NOT_SERVING) | {LIVENESS: _SERVING}
        self._watchers: set[Callable[[], None]] = set()

    @property
    def statuses(self) -> Mapping[str, int]:
        """The status of every name."""
        return self._statuses

    def set_ready(self, *, ready: bool) -> None:
        """Tell those who check and those who watch."""
        self._statuses.update(dict.fromkeys(READINESS_NAMES, _SERVING if ready else _NOT_SERVING))
        for watcher in list(self._watchers):
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this after each change, until `unwatch`."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Call this no more."""
        self._watchers.discard(watcher)


def response(status: int) -> bytes:
    """Return a serialised HealthCheckResponse."""
    data: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return data


def list_response(statuses: Mapping[str, int]) -> bytes:
    """Return a serialised HealthListResponse."""
    listed = {name: health_pb2.HealthCheckResponse(status=one) for name, one in statuses.items()}
    data: bytes = health_pb2.HealthListResponse(statuses=listed).SerializeToString()
    return data


def asked_service(message: bytes) -> str:
    """Return the name in a serialised HealthCheckRequest; raise DecodeError where it is none."""
    name: str = health_pb2.HealthCheckRequest.FromString(message).service
    return name
