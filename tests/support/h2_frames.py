"""
Frames as a client writes them, well formed or not, and those of a connection read back.

What is well formed is built by `hyperframe` and `hpack`, which know nothing of our own code; `raw`
builds the rest.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import hpack
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

Fields = Iterable[tuple[str | bytes, str | bytes]]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION, UNKNOWN = 8, 9, 0x42
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20

REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/test/Echo",
    ":authority": "picker",
    "content-type": "application/grpc",
    "te": "trailers",
}


def raw(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of any kind, whatever the standard says of it."""
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 255, kind, flags, stream) + (
        payload
    )


def number(*values: int) -> bytes:
    """Numbers of 32 bits each."""
    return struct.pack(f">{len(values)}L", *values)


def fields(changes: Mapping[str, str | None] | None = None) -> list[tuple[str, str]]:
    """The fields of a call, with some changed, added or (None) left out."""
    merged = {**REQUEST, **(changes or {})}
    return [(name, value) for name, value in merged.items() if value is not None]


def block(pairs: Fields | None = None) -> bytes:
    """A field block that needs no other before it."""
    return hpack.Encoder().encode(fields() if pairs is None else pairs)


def headers(
    stream: int, pairs: Fields | None = None, *, end: bool = False, **settings: Any
) -> bytes:
    """A whole field block; the fields of a call where none are given."""
    flags = ["END_HEADERS", *(["END_STREAM"] if end else []), *settings.pop("flags", [])]
    return HeadersFrame(stream, block(pairs), flags=flags, **settings).serialize()


def begun(stream: int, piece: bytes, *, end: bool = False) -> bytes:
    """The beginning of a field block."""
    return HeadersFrame(stream, piece, flags=["END_STREAM"] if end else []).serialize()


def continued(stream: int, piece: bytes = b"", *, end: bool = False) -> bytes:
    """More of a field block."""
    return ContinuationFrame(stream, piece, flags=["END_HEADERS"] if end else []).serialize()


def message(content: bytes = b"hello") -> bytes:
    """A message in gRPC's framing."""
    return b"\0" + number(len(content)) + content


def data(
    stream: int, content: bytes = b"", *, end: bool = False, padding: int | None = None
) -> bytes:
    flags = [*(["END_STREAM"] if end else []), *([] if padding is None else ["PADDED"])]
    return DataFrame(stream, content, pad_length=padding or 0, flags=flags).serialize()


def settings(values: Mapping[int, int] | None = None) -> bytes:
    return SettingsFrame(settings=dict(values or {})).serialize()


def ping(content: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return PingFrame(opaque_data=content, flags=["ACK"] if ack else []).serialize()


def rst(stream: int, code: int = 8) -> bytes:
    return RstStreamFrame(stream, error_code=code).serialize()


def priority(stream: int, depends_on: int = 0) -> bytes:
    return PriorityFrame(stream, depends_on=depends_on).serialize()


def goaway(last: int = 0, code: int = 0) -> bytes:
    return GoAwayFrame(last_stream_id=last, error_code=code).serialize()


def window_update(stream: int, increment: int) -> bytes:
    return WindowUpdateFrame(stream, window_increment=increment).serialize()


def read(wire: bytes) -> list[Frame]:
    """Return the frames of which these bytes are made."""
    found = []
    position = 0
    while position < len(wire):
        frame, length = Frame.parse_frame_header(memoryview(wire)[position : position + 9])
        position += 9 + length
        frame.parse_body(memoryview(wire)[position - length : position])
        found.append(frame)
    assert len(wire) == position, "the last frame is cut"
    return found
