"""
Field blocks: requests' header fields decoded and checked, and the few that responses need.

Decoding is the `hpack` library's. Envoy sends the same fields with each stream, so that after the
first their block adds nothing to the dynamic table: as long as that stays as it is, the same bytes
mean the same, and are looked up. Responses are literals without indexing (RFC 7541, section
6.2.2): constant bytes, whatever the peer's table holds.
"""

from functools import lru_cache

import hpack
import msgspec
from hpack.table import HeaderTable

from epp.extproc.h2.frames import ErrorCode, Violation
from epp.extproc.h2.limits import Limits

_MOST_REMEMBERED = 64
_LARGEST_REMEMBERED = 1_024
_MOST_TEXT = 1_000
"""Characters of a grpc-message: each takes 12 bytes at most, and the peer's frames 16,384."""
_TIMEOUT_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_PSEUDO = (":method", ":scheme", ":path", ":authority")
_OF_CONNECTIONS = frozenset(
    ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
)
_ALLOWED_IN_NAMES = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class RequestHead(msgspec.Struct, frozen=True):
    """
    What the header fields of a call say.

    `timeout_seconds` is None where no grpc-timeout is given; `content_length` is None where none
    is announced. `fault` says what is wrong with a malformed request (RFC 9113, section 8.1.1).
    """

    method: str = ""
    path: str = ""
    content_type: str = ""
    encoding: str = "identity"
    timeout_seconds: float | None = None
    content_length: int | None = None
    fault: str = ""


class PendingBlock:
    """A field block of which CONTINUATION frames are still to come."""

    __slots__ = ("_bytes", "flags", "pieces", "stream_id")

    def __init__(self, flags: int, stream_id: int, piece: bytes) -> None:
        self.flags = flags
        self.stream_id = stream_id
        self.pieces = [piece]
        self._bytes = len(piece)

    def add(self, piece: bytes, limits: Limits) -> None:
        """Take the next piece; raise Violation where there are too many, or too large ones."""
        self.pieces.append(piece)
        self._bytes += len(piece)
        if (
            len(self.pieces) - 1 > limits.max_continuations
            or self._bytes > limits.max_field_block_bytes
        ):
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "the field block is too large")


class FieldBlocks:
    """The decoder of one connection."""

    def __init__(self, limits: Limits) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=limits.max_field_list_bytes)
        self._remembered: dict[bytes, RequestHead] = {}

    def request(self, block: bytes) -> RequestHead:
        """Return what a request's field block says; raise Violation where it cannot be decoded."""
        head = self._remembered.get(block)
        if head is not None:
            return head
        table = self._decoder.header_table
        before, newest, size = table.maxsize, _newest(table), len(table.dynamic_entries)
        head = _head(self._decode(block))
        kept = newest is _newest(table) and (before, size) == (
            table.maxsize,
            len(table.dynamic_entries),
        )
        if not kept or len(self._remembered) == _MOST_REMEMBERED:
            self._remembered.clear()
        if kept and len(block) <= _LARGEST_REMEMBERED:
            self._remembered[block] = head
        return head

    def trailers(self, block: bytes) -> bool:
        """Return whether a request's trailer fields are well formed; they say nothing to us."""
        fields = self._decode(block)
        self._remembered.clear()
        return not any(_fault_of_field(name, value) or name[:1] == ":" for name, value in fields)

    def _decode(self, block: bytes) -> list[tuple[str, str]]:
        try:
            fields = self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError as error:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too large") from error
        except (hpack.HPACKError, UnicodeError, IndexError) as error:
            raise Violation(
                ErrorCode.COMPRESSION_ERROR, "a field block that cannot be decoded"
            ) from error
        # Of Latin-1, only 0 to 9 are decimal.
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]


def _newest(table: HeaderTable) -> object:
    return table.dynamic_entries[0] if table.dynamic_entries else None


def _head(fields: list[tuple[str, str]]) -> RequestHead:
    found: dict[str, str] = {}
    regular = False
    for name, value in fields:
        if name[:1] == ":":
            if regular or name not in _PSEUDO or name in found:
                return RequestHead(fault="pseudo-header fields out of order, unknown or repeated")
        else:
            regular = True
        fault = _fault_of_field(name, value)
        if fault:
            return RequestHead(fault=fault)
        if name == "content-length" and found.get(name, value) != value:
            return RequestHead(fault="content-length has two values")
        found[name] = value
    if _is_incomplete(found):
        return RequestHead(fault="a pseudo-header field is missing, or not one of CONNECT")
    length = found.get("content-length")
    if length is not None and not (length.isdecimal() and len(length) < 20):
        return RequestHead(fault="content-length is no number")
    timeout = found.get("grpc-timeout")
    return RequestHead(
        method=found[":method"],
        path=found.get(":path", ""),
        content_type=found.get("content-type", ""),
        encoding=found.get("grpc-encoding", "identity"),
        timeout_seconds=None if timeout is None else _seconds(timeout),
        content_length=None if length is None else int(length),
    )


def _is_incomplete(found: dict[str, str]) -> bool:
    """Say whether a request's pseudo-header fields are not those of its method."""
    if found.get(":method") == "CONNECT":  # RFC 9113, section 8.5
        return not found.get(":authority") or ":scheme" in found or ":path" in found
    return not (found.get(":method") and found.get(":path") and found.get(":scheme"))


def _fault_of_field(name: str, value: str) -> str:
    """Return what makes a field malformed (RFC 9113, sections 8.2.1 and 8.2.2), or ""."""
    if not name or not _ALLOWED_IN_NAMES.issuperset(name[1:] if name[0] == ":" else name):
        return "a field name with characters that none may have"
    if "\0" in value or "\r" in value or "\n" in value or value != value.strip(" \t"):
        return "a field value with characters that none may have"
    if name in _OF_CONNECTIONS or (name == "te" and value != "trailers"):
        return "a field of HTTP/1.1 connections"
    return ""


def _seconds(text: str) -> float | None:
    """Return the seconds of a grpc-timeout; None for one that is malformed, as if not given."""
    number, unit = text[:-1], text[-1:]
    if not (number.isdecimal() and len(number) <= 8):
        return None
    factor = _TIMEOUT_UNITS.get(unit)
    return None if factor is None else int(number) * factor


def _text(value: bytes) -> bytes:
    """Encode a string without Huffman coding (RFC 7541, section 5.2)."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    rest = len(value) - 127
    length = bytearray((127,))
    while rest >= 128:
        length.append(rest & 127 | 128)
        rest >>= 7
    length.append(rest)
    return bytes(length) + value


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _text(name.encode()) + _text(value.encode("ascii"))


RESPONSE = b"\x88" + _literal("content-type", "application/grpc")
"""`:status: 200` and the content type; 0x88 is index 8 of the static table."""


@lru_cache(maxsize=256)
def trailers(status: int, text: str = "") -> bytes:
    """Return the fields that end a call: its gRPC status, and a text for humans."""
    fields = _literal("grpc-status", str(status))
    if text:
        fields += _literal("grpc-message", _percent_encoded(text[:_MOST_TEXT]))
    return fields


def only_status(status: int) -> bytes:
    """Return the fields of a response that is none of gRPC's: its HTTP status alone."""
    return _literal(":status", str(status))


def _percent_encoded(text: str) -> str:
    """Encode a grpc-message (PROTOCOL-HTTP2: all but printable ASCII, and the percent sign)."""
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}"
        for byte in text.encode("utf-8", "replace")
    )
