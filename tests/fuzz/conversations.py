"""
Valid connections to the lean door, as the bytes that a client sends.

Some were recorded from real clients (tests/data/connections: grpcio, and Envoy with both of our
reference configurations); the others are made up here, of the messages that gateways send in any
order, on several streams at once.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import hpack
from grpc_health.v1 import health_pb2

from epp.extproc import messages
from epp.extproc.h2 import frames
from epp.extproc.h2.services import PROCESS
from support import wire

RECORDED = Path(__file__).parents[1] / "data" / "connections"
HEALTH = "/grpc.health.v1.Health/"
MODES = [None, messages.NONE, messages.STREAMED, messages.BUFFERED]
MODES += [messages.BUFFERED_PARTIAL, messages.FULL_DUPLEX_STREAMED]


class Frame(NamedTuple):
    """A frame as it is to be sent; a mutation may make its length a lie."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    length: int | None = None

    def encoded(self) -> bytes:
        """The bytes on the wire."""
        whole = frames.frame(self.kind, self.flags, self.stream_id, self.payload)
        return whole if self.length is None else self.length.to_bytes(3) + whole[3:]


def parse(data: bytes) -> list[Frame]:
    """Return the whole frames in bytes that begin with one."""
    found = []
    position = 0
    while len(data) - position >= frames.HEADER_BYTES:
        head, flags, stream_id = frames.unpack_header(data, position)
        length, kind = divmod(head, 256)
        start = position + frames.HEADER_BYTES
        position = start + length
        found.append(Frame(kind, flags, stream_id, data[start:position]))
    return found


def recorded() -> list[list[Frame]]:
    """Return the frames after the preface of each connection that was recorded."""
    connections = []
    for path in sorted(RECORDED.glob("*.bin")):
        preface, _, rest = path.read_bytes().partition(frames.PREFACE)
        assert not preface
        connections.append(parse(rest))
    return connections


def message(data: bytes, first: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return bytes((first,)) + len(data).to_bytes(4) + data


class Composer:
    """Makes up valid connections; all chance is the `rng`'s."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._encoder = hpack.Encoder()

    def connection(self) -> list[Frame]:
        """Return the frames after the preface of a connection with a few streams, interleaved."""
        rng = self._rng
        streams = [self._stream(1 + 2 * at) for at in range(rng.randrange(1, 6))]
        made = [Frame(frames.SETTINGS, 0, 0, self._settings())]
        made.append(Frame(frames.SETTINGS, frames.ACK, 0, b""))
        if rng.random() < 0.5:
            made.append(Frame(frames.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4)))
        opened = 0
        while any(streams):
            # Streams open in the order of their ids; between that, any of them goes on.
            at = min(opened, rng.randrange(len(streams)))
            opened = max(opened, at + 1)
            if streams[at]:
                made.append(streams[at].pop(0))
            elif opened < len(streams):
                made.append(streams[opened].pop(0))
                opened += 1
        return self._with_indices(made)

    def _with_indices(self, made: Sequence[Frame]) -> list[Frame]:
        """Encode the header fields of HEADERS in the order in which they are sent."""
        return [
            one._replace(payload=self.fields(one.payload.decode()))
            if one.kind == frames.HEADERS
            else one
            for one in made
        ]

    def fields(self, path: str) -> bytes:
        """Return the field block of a gRPC call, now and then of one with a time-out."""
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        fields += [("content-type", "application/grpc"), ("te", "trailers")]
        if self._rng.random() < 0.1:
            fields.append(("grpc-timeout", self._rng.choice(["1n", "50m", "5S", "99999999H"])))
        return self._encoder.encode(fields)

    def _settings(self) -> bytes:
        rng = self._rng
        values = {frames.INITIAL_WINDOW_SIZE: rng.choice([0, 1, 100, 65_535, 1 << 24])}
        if rng.random() < 0.3:
            values[frames.MAX_FRAME_SIZE] = rng.choice([16_384, 20_000, (1 << 24) - 1])
        return frames.settings(values)[frames.HEADER_BYTES :] if rng.random() < 0.7 else b""

    def _stream(self, stream_id: int) -> list[Frame]:
        rng = self._rng
        path, body = rng.choice([self._process, self._process, self._process, self._health])()
        made = [Frame(frames.HEADERS, frames.END_HEADERS, stream_id, path.encode())]
        data = b"".join(message(one) for one in body)
        while data:
            size = rng.choice([len(data), rng.randrange(1, 100), 16_000])
            piece, data = data[: min(size, 16_000)], data[min(size, 16_000) :]
            made.append(Frame(frames.DATA, 0, stream_id, piece))
            if rng.random() < 0.1:
                made.append(Frame(frames.WINDOW_UPDATE, 0, stream_id, (1 << 16).to_bytes(4)))
        how = rng.random()
        if how < 0.5:
            made[-1] = made[-1]._replace(flags=made[-1].flags | frames.END_STREAM)
        elif how < 0.8:
            made.append(Frame(frames.RST_STREAM, 0, stream_id, (8).to_bytes(4)))
        return made

    def _health(self) -> tuple[str, list[bytes]]:
        name = self._rng.choice(["", "liveness", "nope", messages.SERVICE])
        asked = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        return HEALTH + self._rng.choice(["Check", "Watch", "List", "Nope"]), [asked]

    def _process(self) -> tuple[str, list[bytes]]:
        return PROCESS, [one.SerializeToString() for one in self.process_messages()]

    def process_messages(self) -> list[messages.ProcessingRequest]:
        """Return the messages of a Process call: a gateway's, or any in any order."""
        rng = self._rng
        mode = rng.choice(MODES)
        size = rng.choice([0, 30, 3_000, 70_000])
        body = b'{"model":"m","prompt":"' + b"x" * size + b'","stream":true}'
        kinds: list[Callable[[], messages.ProcessingRequest]] = [
            lambda: self._head(mode),
            lambda: wire.body(body[: len(body) // 2], end=False),
            lambda: wire.body(body[len(body) // 2 :]),
            wire.trailers,
            lambda: wire.response_headers(status=rng.choice([200, 503]), served=self._hint()),
            lambda: wire.response_body(b'{"model":"another","usage":{}}' * rng.randrange(3)),
            lambda: wire.response_body(b'data: {"model":"ano', end=rng.random() < 0.7),
            wire.response_trailers,
        ]
        if rng.random() < 0.5:
            return [make() for make in kinds[: rng.randrange(1, len(kinds) + 1)]]
        return [rng.choice(kinds)() for _ in range(rng.randrange(10))]

    def _head(self, mode: int | None) -> messages.ProcessingRequest:
        rng = self._rng
        pairs = dict(wire.POST)
        if mode is None and rng.random() < 0.5:
            pairs = {"content-type": "application/json"}  # a client that is no Envoy
        if rng.random() < 0.3:
            pairs["x-llm-d-model-name-rewrite"] = "another"
        head = wire.headers(pairs, mode=mode, end=rng.random() < 0.2, hint=self._hint())
        head.observability_mode = rng.random() < 0.05
        return head

    def _hint(self) -> str | None:
        return self._rng.choice([None, None, "192.168.1.1:8000", "192.168.1.2:8000,nonsense", ""])
