"""
The gRPC door: ExternalProcessor.Process on grpcio, one coroutine a stream.

Handlers take and give raw bytes; messages are parsed by upb and replies come serialised, which
costs a third less than the generated servicer. This is the stream boundary, one of the three
places that contain any exception: its client gets a 500 with a fixed text, the log a traceback.
"""

import asyncio
from typing import Any

import grpc
import structlog

from epp.extproc import messages
from epp.extproc.exchange import Exchange
from epp.extproc.stream import Stream
from epp.framework import BadRequest, EPPError
from epp.observability.metrics import Metrics
from epp.requestcontrol.director import Director

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_log = structlog.get_logger("epp.extproc")


class GrpcDoor:
    """Serves ext_proc streams, and counts those with a request, so that a drain can wait."""

    def __init__(self, director: Director, metrics: Metrics, *, max_body_bytes: int) -> None:
        self._director = director
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """What to add to a grpc.aio server."""
        process: Any = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def drained(self) -> None:
        """Wait until no stream carries a request."""
        await self._idle.wait()

    def stop(self) -> None:
        """Note that streams which end from now on were cut by the picker itself."""
        self._stopping = True

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async def read() -> messages.ProcessingRequest | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else messages.ProcessingRequest.FromString(data)

        exchange = Exchange(max_body_bytes=self._max_body_bytes)
        stream = Stream(self._director, exchange, read, context.write)
        self._metrics.stream_opened()
        code = "INTERNAL"
        failed = True
        try:
            await self._converse(stream)
            code, failed = "OK", False
        except asyncio.CancelledError:
            code, failed = "CANCELLED", False
            raise
        except messages.DecodeError:
            code, failed = "INVALID_ARGUMENT", False
            await stream.refuse(BadRequest("the gateway's message is not one of ext_proc"))
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            _log.exception("stream failed", request_id=stream.request_id)
            await stream.refuse(EPPError("the endpoint picker failed; its log says why"))
        finally:
            stream.finish(failed=failed, stopping=self._stopping)
            self._metrics.stream_closed(code)

    async def _converse(self, stream: Stream) -> None:
        """Count the stream as busy from its first message to its end."""
        message = await stream.read()
        if message is None:
            return
        self._busy += 1
        self._idle.clear()
        try:
            await stream.run(message)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
