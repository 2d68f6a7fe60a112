"""
The two doors without their sockets: what a client sends, and what it is answered.
"""

import asyncio
import contextvars
import time
from collections.abc import Iterable

import h2.config
import h2.connection
import h2.events

from epp.app import App
from epp.extproc.conversation import Conversation
from epp.extproc.exchange import Exchange
from epp.extproc.h2.connection import Connection
from epp.extproc.h2.limits import Limits
from epp.extproc.h2.services import PROCESS, Services
from epp.extproc.messages import ProcessingRequest
from epp.extproc.stream import Stream

TRANSPORT = contextvars.ContextVar("TRANSPORT", default="lean")
"""The door that a test goes through."""

_HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PROCESS),
    (":authority", "picker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


async def converse(app: App, sent: Iterable[ProcessingRequest], max_body_bytes: int) -> list[bytes]:
    """Send messages on one stream, half-close, and return every reply."""
    if TRANSPORT.get() == "grpc":
        return await _as_the_grpc_door(app, sent, max_body_bytes)
    return await _LeanClient(app, max_body_bytes).converse(sent)


async def _as_the_grpc_door(
    app: App, sent: Iterable[ProcessingRequest], max_body_bytes: int
) -> list[bytes]:
    replies: list[bytes] = []
    waiting = iter(sent)

    async def read() -> ProcessingRequest | None:
        return next(waiting, None)

    async def write(reply: bytes) -> None:
        replies.append(reply)

    stream = Stream(app.director, Exchange(max_body_bytes=max_body_bytes))
    conversation = Conversation(stream, read, write)
    first = await read()
    if first is not None:
        try:
            await conversation.run(first)
        finally:
            stream.finish(failed=False, stopping=False)
    return replies


class _LeanClient:
    """The h2 library as the client of one connection."""

    def __init__(self, app: App, max_body_bytes: int) -> None:
        services = Services(app.director, app.metrics, app.health, max_body_bytes=max_body_bytes)
        self._connection = Connection(
            services.accept, limits=Limits(), clock=time.monotonic, flush=self._hear
        )
        self._client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._received = bytearray()
        self._trailers: dict[bytes, bytes] = {}
        self._ended = asyncio.Event()

    async def converse(self, sent: Iterable[ProcessingRequest]) -> list[bytes]:
        client = self._client
        client.initiate_connection()
        self._exchange()
        client.send_headers(1, _HEAD)
        for message in sent:
            data = message.SerializeToString()
            self._send(b"\0" + len(data).to_bytes(4) + data)
        if not self._ended.is_set():
            client.end_stream(1)
            self._exchange()
        await self._ended.wait()
        assert self._trailers[b"grpc-status"] == b"0"
        assert not self._connection.calls
        return list(_messages(bytes(self._received)))

    def _send(self, data: bytes) -> None:
        while data and not self._ended.is_set():
            size = min(self._client.local_flow_control_window(1), 16_384)
            self._client.send_data(1, data[:size])
            data = data[size:]
            self._exchange()

    def _exchange(self) -> None:
        self._connection.receive(self._client.data_to_send())
        while self._connection.work():
            pass
        self._hear()

    def _hear(self) -> None:
        for event in self._client.receive_data(self._connection.take_output()):
            match event:
                case h2.events.DataReceived():
                    self._received += event.data
                    self._client.acknowledge_received_data(event.flow_controlled_length, 1)
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    self._trailers.update(event.headers)
                case h2.events.StreamEnded():
                    self._ended.set()
                case h2.events.ConnectionTerminated():
                    raise AssertionError(event.additional_data)


def _messages(data: bytes) -> Iterable[bytes]:
    while data:
        size = int.from_bytes(data[1:5])
        yield data[5 : 5 + size]
        data = data[5 + size :]
