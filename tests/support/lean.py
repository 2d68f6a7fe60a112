"""The lean door on a real socket, and a peer of it that may do what no client would."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hpack
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame

from epp.extproc.certificates import Certificate
from epp.extproc.h2.door import LeanDoor
from epp.extproc.h2.limits import Limits
from epp.extproc.h2.services import PROCESS
from epp.extproc.messages import ProcessingRequest, ProcessingResponse
from support import h2_frames as f
from support.core import Core
from support.simulated import until

CHECK = "/grpc.health.v1.Health/Check"
BODY_BYTES = 1 << 20
RECEIVE_BYTES = 4096
"""What the kernel keeps for a peer that does not read."""


class Opened:
    """A door that listens, and what it counts."""

    def __init__(self, core: Core, door: LeanDoor, port: int) -> None:
        self.core = core
        self.door = door
        self.port = port

    @property
    def counts(self) -> dict[str, float]:
        """What must be as before when a peer is gone."""
        return {
            "in flight": self.core.in_flight,
            "requests running": self.core.total("epp_requests_running"),
            "streams open": self.core.total("epp_streams_open"),
            "connections": self.core.total("epp_http2_connections"),
            "calls": sum(len(one._connection.calls) for one in self.door.connections),
        }

    async def connection(self) -> Any:
        """Return the door's one connection, once it has one."""
        await until(lambda: len(self.door.connections) == 1)
        (one,) = self.door.connections
        return one

    async def until_idle(self, *, connections: int = 0) -> None:
        """Wait until nothing is left but so many connections; the test's time limit applies."""
        quiet = dict.fromkeys(self.counts, 0) | {"connections": connections}
        await until(lambda: self.counts == quiet)

    def violations(self, code: str) -> float:
        """How often peers were told of this error."""
        return sum(
            self.core.metric("epp_http2_violations_total", scope=scope, code=code) or 0
            for scope in ("stream", "connection")
        )

    def look(self) -> None:
        """Look for what stalls, as the door does from time to time."""
        for one in list(self.door.connections):
            one.look()


@asynccontextmanager
async def opened(
    core: Core | None = None, *, certificate: Certificate | None = None, **limits: Any
) -> AsyncIterator[Opened]:
    """Open a door with these limits, in front of one endpoint."""
    core = core or Core()
    app = core.app
    door = LeanDoor(
        app.director,
        app.metrics,
        app.health,
        max_body_bytes=BODY_BYTES,
        limits=Limits(**({"max_message_bytes": 2 * BODY_BYTES} | limits)),
    )
    port = await door.listen("127.0.0.1", 0, certificate=certificate)
    try:
        yield Opened(core, door, port)
    finally:
        await door.close()
        await until(lambda: not door.connections)


def call(stream: int, path: str = PROCESS, *, end: bool = False) -> bytes:
    """Return the frame that opens a call."""
    return f.headers(stream, f.fields({":path": path}), end=end)


def sent(stream: int, *requests: ProcessingRequest, end: bool = False) -> bytes:
    """Return messages in frames that are as large as they may be."""
    whole = b"".join(f.message(one.SerializeToString()) for one in requests)
    pieces = [whole[at : at + 16_384] for at in range(0, len(whole), 16_384)]
    return b"".join(
        f.data(stream, piece, end=end and at == len(pieces) - 1) for at, piece in enumerate(pieces)
    )


class Peer:
    """A connection to the door, of frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frames: list[Frame] = []
        self.closed = False
        self._rest = b""

    async def send(self, *wire: bytes) -> None:
        """Send bytes, all of them."""
        await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(wire))

    async def hear(self, wanted: Callable[["Peer"], object]) -> None:
        """Read until what was read satisfies, or the connection ends."""
        while not wanted(self) and not self.closed:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self._take(data)

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        end = 0
        while len(data) - end >= 9:
            length = int.from_bytes(data[end : end + 3])
            if len(data) - end - 9 < length:
                break
            end += 9 + length
        self._rest = data[end:]
        self.frames += f.read(data[:end])

    async def until_closed(self) -> list[tuple[int, int]]:
        """Read to the end of the connection; return its GOAWAYs."""
        await self.hear(lambda _: False)
        return self.goaways()

    def goaways(self) -> list[tuple[int, int]]:
        """The last stream and the error code of each GOAWAY."""
        return [
            (one.last_stream_id, one.error_code)
            for one in self.frames
            if isinstance(one, GoAwayFrame)
        ]

    def pings(self) -> list[bytes]:
        """What the door's own PINGs hold."""
        return [one.opaque_data for one in self.frames if isinstance(one, PingFrame)]

    def resets(self) -> dict[int, int]:
        """The error codes with which streams were reset."""
        return {
            one.stream_id: one.error_code for one in self.frames if isinstance(one, RstStreamFrame)
        }

    def replies(self, stream: int) -> list[ProcessingResponse]:
        """The whole messages that came on a stream."""
        data = b"".join(
            one.data
            for one in self.frames
            if isinstance(one, DataFrame) and one.stream_id == stream
        )
        found = []
        while len(data) >= 5 and len(data) - 5 >= (size := int.from_bytes(data[1:5])):
            found.append(ProcessingResponse.FromString(data[5 : 5 + size]))
            data = data[5 + size :]
        return found

    def trailers(self, stream: int) -> dict[str, str]:
        """The fields with which a stream ended; none if it did not."""
        return next(
            (
                dict(hpack.Decoder().decode(one.data))
                for one in self.frames
                if isinstance(one, HeadersFrame)
                and one.stream_id == stream
                and "END_STREAM" in one.flags
            ),
            {},
        )

    async def is_served(self, stream: int) -> bool:
        """Say whether a health check on a new stream is answered well."""
        await self.send(call(stream, CHECK), f.data(stream, f.message(b""), end=True))
        await self.hear(lambda one: one.trailers(stream) or stream in one.resets())
        return self.trailers(stream).get("grpc-status") == "0"


@asynccontextmanager
async def peer(
    port: int, settings: dict[int, int] | None = None, *, greets: bool = True, reads: bool = True
) -> AsyncIterator[Peer]:
    """Connect; the peer greets, unless told not to. One that does not read has a small buffer."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)  # noqa: FBT003 - the socket's own form
        if not reads:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        one = Peer(sock)
        if greets:
            await one.send(f.PREFACE, f.settings(settings))
        yield one
