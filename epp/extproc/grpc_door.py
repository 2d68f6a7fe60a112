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

from epp.extproc import listeners, messages
from epp.extproc.certificates import Certificate
from epp.extproc.conversation import Conversation
from epp.extproc.door import Busy
from epp.extproc.exchange import Exchange
from epp.extproc.grpc_health import HealthServicer
from epp.extproc.health import Health
from epp.extproc.stream import Stream
from epp.framework import BadRequest, EPPError
from epp.observability.metrics import Metrics
from epp.requestcontrol.director import Director

FOR_EVER = 86_400.0

_log = structlog.get_logger("epp.extproc")


class GrpcDoor:
    """Serves ext_proc streams and health through grpc.aio."""

    def __init__(
        self, director: Director, metrics: Metrics, health: Health, *, max_body_bytes: int
    ) -> None:
        self._director = director
        self._metrics = metrics
        self._health = health
        self._max_body_bytes = max_body_bytes
        self._busy = Busy()
        self._stopping = False
        self._servers: list[grpc.aio.Server] = []
        self._refusing: asyncio.Task[None] | None = None

    async def listen(
        self,
        address: str,
        port: int,
        *,
        certificate: Certificate | None = None,
        only_health: bool = False,
    ) -> int:
        """
        Serve on an address; return the port.

        Raises ConfigError where that is not possible.
        """
        server = listeners.server(self._max_body_bytes)
        if not only_health:
            process: Any = grpc.stream_stream_rpc_method_handler(self._process)
            handlers = grpc.method_handlers_generic_handler(messages.SERVICE, {"Process": process})
            server.add_generic_rpc_handlers((handlers,))
        HealthServicer(self._health).add_to(server)
        credentials = certificate.server_credentials() if certificate else None
        bound = await listeners.listen(server, address, port, credentials)
        if only_health:
            self._servers.append(server)  # it goes on answering while the others drain
        else:
            self._servers.insert(0, server)
        return bound

    async def drain(self, seconds: float) -> None:
        """
        Refuse what is new, and wait for the streams that carry a request.

        Raises TimeoutError where some still run after so many seconds.
        """
        # This stop never runs out by itself: one that does so while another ends the server would
        # reach for a server that is gone, which grpc.aio answers with a crash.
        stop = self._servers[0].stop(seconds + FOR_EVER)
        self._refusing = asyncio.create_task(stop, name="graceful stop")
        async with asyncio.timeout(seconds):
            await self._busy.over()

    async def close(self) -> None:
        """Cut what still runs, and stop listening."""
        self._stopping = True
        for server in self._servers:
            await server.stop(None)
        if self._refusing is not None:
            await self._refusing

    async def _process(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        async def read() -> messages.ProcessingRequest | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else messages.ProcessingRequest.FromString(data)

        stream = Stream(self._director, Exchange(max_body_bytes=self._max_body_bytes))
        conversation = Conversation(stream, read, context.write)
        self._metrics.stream_opened()
        code = "INTERNAL"
        failed = True
        try:
            await self._converse(conversation)
            code, failed = "OK", False
        except asyncio.CancelledError:
            code, failed = "CANCELLED", False
            raise
        except messages.DecodeError:
            code, failed = "INVALID_ARGUMENT", False
            stream.refuse(BadRequest("the gateway's message is not one of ext_proc"))
            await conversation.flush()
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            _log.exception("stream failed", request_id=stream.request_id)
            stream.refuse(EPPError("the endpoint picker failed; its log says why"))
            await conversation.flush()
        finally:
            conversation.close()
            stream.finish(failed=failed, stopping=self._stopping)
            self._metrics.stream_closed(code)

    async def _converse(self, conversation: Conversation) -> None:
        """Count the stream as busy from its first message to its end."""
        message = await conversation.read()
        if message is None:
            return
        self._busy.add()
        try:
            await conversation.run(message)
        finally:
            self._busy.remove()
