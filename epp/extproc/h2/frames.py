"""
Frames of HTTP/2: their types, flags, settings and error codes, and those that the picker sends.

Numbers are of RFC 9113: sections 6 (types and flags), 6.5.2 (settings) and 7 (error codes).
"""

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = (1 << 24) - 1
MAX_STREAM_ID = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ended."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Violation(Exception):
    """
    What a peer did against the protocol or its limits.

    It costs the peer the stream of that id, or the connection where there is none.
    """

    def __init__(self, code: ErrorCode, what: str, stream_id: int = 0) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.stream_id = stream_id


unpack_header = Struct(">LBL").unpack_from
"""The length and, in the lowest 8 bits, the type; the flags; the stream id."""

pack_message_head = Struct(">LBLBL").pack
"""
The head of a DATA frame that holds one whole gRPC message: the frame's length and type as above, no
flags, the stream id, 0 for a message that is not compressed, the length of the message.
"""

_HEADER = Struct(">LBL").pack
_SETTING = Struct(">HL").pack
unpack_setting = Struct(">HL").iter_unpack
unpack_number = Struct(">L").unpack_from
_NUMBER = Struct(">L").pack


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return one frame."""
    return _HEADER(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING(*item) for item in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, _NUMBER(code))


def goaway(last_id: int, code: ErrorCode, what: str = "") -> bytes:
    """Return a GOAWAY frame; the text is for whoever debugs the peer."""
    return frame(GOAWAY, 0, 0, _NUMBER(last_id) + _NUMBER(code) + what.encode())


SETTINGS_ACK = frame(SETTINGS, ACK, 0, b"")


def unpadded(buffer: bytes, start: int, end: int) -> tuple[int, int]:
    """Return where the content of a padded payload lies (RFC 9113, section 6.1)."""
    if start == end:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its length of padding")
    padding = buffer[start]
    if padding >= end - start:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return start + 1, end - padding
