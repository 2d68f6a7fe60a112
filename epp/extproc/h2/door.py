"""
The lean door: ext_proc over HTTP/2 frames, handled in the read that brought them.

One object a connection between asyncio's transport and the sans-I/O connection. It reads no more
from a peer that does not read what it is sent, serves one connection for a slice of time before
the next has its turn, and looks from time to time after what stalls.
"""

import asyncio
import socket
import ssl
import time
from typing import cast

import structlog

from epp.extproc.certificates import Certificate
from epp.extproc.h2.connection import Accept, Connection
from epp.extproc.h2.frames import Violation
from epp.extproc.h2.limits import Limits
from epp.extproc.h2.services import Services
from epp.extproc.health import Health
from epp.framework import ConfigError
from epp.observability.metrics import Metrics
from epp.requestcontrol.director import Director

WRITE_BUFFER_BYTES = 1 << 20
"""What may wait in a transport before nothing more is read from its peer."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}

_log = structlog.get_logger("epp.extproc")


class LeanDoor:
    """Serves ext_proc streams and health over HTTP/2 of our own."""

    def __init__(
        self,
        director: Director,
        metrics: Metrics,
        health: Health,
        *,
        max_body_bytes: int,
        limits: Limits | None = None,
    ) -> None:
        # One BUFFERED message carries a whole body: beyond our own limit the client is to get a
        # 413, so the limit of a message, which ends with a bare error, lies above it.
        largest = min(2 * max_body_bytes + (64 << 20), (1 << 31) - 1)
        self.limits = limits or Limits(max_message_bytes=largest)
        self.metrics = metrics
        self.connections: set[_Protocol] = set()
        self._services = Services(director, metrics, health, max_body_bytes=max_body_bytes)
        self._servers: list[asyncio.Server] = []
        self._draining_servers: list[asyncio.Server] = []
        self._looking: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self._context: ssl.SSLContext | None = None
        self._closed = False
        self._draining = False

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
        accept = self._services.accept_health if only_health else self._services.accept
        context = None
        if certificate is not None:
            self._context = context = await asyncio.to_thread(certificate.server_context)
            context.sni_callback = self._choose_context
            self._following = asyncio.create_task(self._follow(certificate), name="certificate")
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: _Protocol(self, accept, drains=not only_health),
                sock=_listening(address, port),
                ssl=context,
            )
        except OSError as error:
            host = f"[{address}]" if ":" in address else address
            message = f"cannot listen on {host}:{port}: is the port taken, or the address not ours?"
            raise ConfigError(message) from error
        self._servers.append(server)
        if not only_health:
            self._draining_servers.append(server)
        if self._looking is None:
            self._looking = loop.call_later(self.limits.look_seconds, self._look)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def violated(self, violation: Violation) -> None:
        """Count what a peer did against the protocol."""
        scope = "stream" if violation.stream_id else "connection"
        self.metrics.http2_violation(scope, violation.code.name)

    @property
    def draining(self) -> bool:
        """Whether connections that are made now are not to be served."""
        return self._draining

    def _look(self) -> None:
        for one in list(self.connections):
            one.look()
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(self.limits.look_seconds, self._look)

    async def _follow(self, certificate: Certificate) -> None:
        """Serve a pair that changed, to the connections made from then on."""
        while True:
            await asyncio.sleep(self.limits.look_seconds)
            if await asyncio.to_thread(certificate.changed):
                self._context = certificate.server_context()

    def _choose_context(self, handshake: ssl.SSLObject, *_: object) -> None:
        assert self._context is not None  # set before the first handshake
        handshake.context = self._context

    async def drain(self, seconds: float) -> None:
        """
        Refuse what is new, and wait for the streams that carry a request.

        Raises TimeoutError where some still run after so many seconds.
        """
        self._draining = True
        for server in self._draining_servers:
            server.close()
        connections = [one for one in self.connections if one.drains]
        for one in connections:
            one.drain()
        loop = asyncio.get_running_loop()
        loop.call_later(self.limits.goaway_seconds, self._refuse_new)
        async with asyncio.timeout(seconds):
            await self._services.busy.over()

    def _refuse_new(self) -> None:
        for one in list(self.connections):
            if one.drains:
                one.refuse_new()

    async def close(self) -> None:
        """Cut what still runs, and stop listening."""
        self._closed = self._services.stopping = True
        for timer in (self._looking, self._following):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        for one in list(self.connections):
            one.close()
        for server in self._servers:
            await server.wait_closed()


class _Protocol(asyncio.Protocol):
    """One connection, between its transport and what it means."""

    def __init__(self, door: LeanDoor, accept: Accept, *, drains: bool) -> None:
        self.drains = drains
        """Whether the connection ends with a drain; those for probes go on."""
        self._door = door
        self._connection = Connection(
            accept,
            limits=door.limits,
            clock=time.monotonic,
            violated=door.violated,
            flush=self._flush,
        )
        self._transport: asyncio.Transport | None = None
        self._more = False
        self._full_since: float | None = None
        self._closing_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # What asyncio promises for TCP and TLS; uvloop's are of no common class.
        self._transport = made = cast(asyncio.Transport, transport)
        made.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._door.connections.add(self)
        self._door.metrics.connection_opened()
        if self._door.draining and self.drains:
            self._connection.drain()
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Handle what came, and answer it with one write."""
        self._connection.receive(data)
        if not self._more:
            self._work()

    def _work(self) -> None:
        try:
            more = self._connection.work()
        except Exception:  # noqa: BLE001 - what one connection brings must not end the others
            _log.exception("connection failed")
            self._abort()
            return
        self._flush()
        if more != self._more:
            self._more = more
            self._pace()
        if more:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None:
            self._work()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            self._connection.out.clear()
            return
        out = self._connection.take_output()
        if out:
            transport.write(out)
        if self._connection.closing and self._closing_since is None:
            self._closing_since = time.monotonic()
            transport.close()

    def _pace(self) -> None:
        """Read on only while what was read is handled, and what was written is read."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._more or self._full_since is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Read no more: the peer does not read either."""
        self._full_since = time.monotonic()
        self._pace()

    def resume_writing(self) -> None:
        """Read again."""
        self._full_since = None
        self._pace()

    def eof_received(self) -> None:
        """
        End every call, and close: a peer that will not acknowledge our frames is of no use.

        What was said to it already is still sent, for as long as a peer may leave that unread.
        """
        self._connection.lost()
        self._closing_since = time.monotonic()

    def connection_lost(self, _: Exception | None) -> None:
        """End every call."""
        self._transport = None
        self._connection.lost()
        self._door.connections.discard(self)
        self._door.metrics.connection_closed()

    def look(self) -> None:
        """Cut what stalls."""
        since = self._full_since if self._closing_since is None else self._closing_since
        if since is not None and time.monotonic() - since > self._door.limits.stall_seconds:
            self._abort()
            return
        self._connection.look()
        self._flush()

    def drain(self) -> None:
        """Ask the peer to open no more streams."""
        self._connection.drain()
        self._flush()

    def refuse_new(self) -> None:
        """Serve no new stream, and close once none is open."""
        self._connection.refuse_new()
        self._flush()

    def close(self) -> None:
        """End every call now, and the connection."""
        self._connection.shut_down()
        transport = self._transport
        if transport is None:
            return
        if not transport.is_closing():
            transport.write(self._connection.take_output())
        if transport.is_closing() or transport.get_write_buffer_size():
            self._abort()  # whoever has not read by now is not waited for
        else:
            transport.close()

    def _abort(self) -> None:
        self._connection.lost()
        if self._transport is not None:
            self._transport.abort()


def _listening(address: str, port: int) -> socket.socket:
    """Return a listening socket; raises OSError where there can be none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        # Options of a listening socket pass to its connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.bind((address, port))
        sock.listen(1024)
        sock.setblocking(False)  # noqa: FBT003 - the socket's own form
    except BaseException:
        sock.close()
        raise
    return sock
