"""What no client may write into field blocks: bytes that are no HPACK, fields of no request."""

from collections.abc import Mapping, Sequence

from epp.extproc.h2.frames import ErrorCode
from support import h2_frames as f
from support.h2_violations import Row, check, parametrised, play

PROTOCOL = ErrorCode.PROTOCOL_ERROR
COMPRESSION = ErrorCode.COMPRESSION_ERROR
CLOSED = f.headers(3, end=True)


def undecodable(what: str, block: bytes) -> Row:
    return Row("4.3", what, f.raw(f.HEADERS, f.END_HEADERS, 3, block), COMPRESSION)


@parametrised(
    undecodable("an index of 0", b"\x80"),
    undecodable("an index beyond the tables", b"\xff\x7f"),
    undecodable("an index without its end", b"\xff\x80"),
    undecodable("an index without any end", b"\xff" + b"\x80" * 100),
    undecodable("a name beyond the tables", b"\x7f\x7f\1a"),
    undecodable("a name without its end", b"\0\5ab"),
    undecodable("a value without its end", b"\0\1a\5b"),
    undecodable("a field without a value", b"\0\1a"),
    undecodable("Huffman code padded with zeros", b"\0\1a\x81\0"),
    undecodable("Huffman code padded with a byte too many", b"\0\1a\x82\x1f\xff"),
    undecodable("Huffman code with an end of string", b"\0\1a\x84\xff\xff\xff\xff"),
    undecodable("a table larger than allowed", b"\x3f\xe2\x1f" + f.block()),
    undecodable("a table that changes after the fields", f.block() + b"\x20"),
    Row("4.3", "trailers", f.headers(3) + f.raw(f.HEADERS, 5, 3, b"\x80"), COMPRESSION),
    Row("4.3", "a block on a closed stream", CLOSED + f.raw(f.HEADERS, 5, 3, b"\x80"), COMPRESSION),
    Row("4.3", "a block in pieces", f.begun(3, b"\0") + f.continued(3, end=True), COMPRESSION),
)
def test_a_block_that_cannot_be_decoded_costs_the_connection(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


def malformed(section: str, what: str, changes: Mapping[str, str | None]) -> Row:
    return Row(section, what, f.headers(3, f.fields(changes)), PROTOCOL, 3)


def with_more(section: str, what: str, *more: tuple[str | bytes, str | bytes]) -> Row:
    return Row(section, what, f.headers(3, [*f.fields(), *more]), PROTOCOL, 3)


@parametrised(
    with_more("8.2.1", "an empty name", ("", "x")),
    with_more("8.2.1", "a name in upper case", ("X-a", "x")),
    with_more("8.2.1", "a name with a blank", ("x a", "x")),
    with_more("8.2.1", "a name with a colon", ("x:a", "x")),
    with_more("8.2.1", "a name with a control character", ("x\1", "x")),
    with_more("8.2.1", "a name beyond ASCII", (b"x\xe9", "x")),
    with_more("8.2.1", "a value with a zero", ("x-a", "a\0b")),
    with_more("8.2.1", "a value with a line feed", ("x-a", "a\nb")),
    with_more("8.2.1", "a value with a carriage return", ("x-a", "a\rb")),
    with_more("8.2.1", "a value that begins with a blank", ("x-a", " a")),
    with_more("8.2.1", "a value that ends with a tab", ("x-a", "a\t")),
    malformed("8.2.1", "a pseudo-header field with a line feed", {":path": "/\n"}),
    with_more("8.2.2", "connection", ("connection", "close")),
    with_more("8.2.2", "proxy-connection", ("proxy-connection", "close")),
    with_more("8.2.2", "keep-alive", ("keep-alive", "1")),
    with_more("8.2.2", "transfer-encoding", ("transfer-encoding", "chunked")),
    with_more("8.2.2", "upgrade", ("upgrade", "h2c")),
    malformed("8.2.2", "te that asks for more than trailers", {"te": "trailers, gzip"}),
)
def test_fields_are_those_of_this_version(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


def only(section: str, what: str, *pairs: tuple[str, str]) -> Row:
    return Row(section, what, f.headers(3, pairs), PROTOCOL, 3)


@parametrised(
    with_more("8.3", "a pseudo-header field that is unknown", (":protocol", "websocket")),
    with_more("8.3", "a pseudo-header field of responses", (":status", "200")),
    with_more("8.3", "a pseudo-header field without a name", (":", "x")),
    only(
        "8.3",
        "a pseudo-header field after others",
        *f.fields({":authority": None}),
        (":authority", "picker"),
    ),
    malformed("8.3.1", "no :method", {":method": None}),
    malformed("8.3.1", "no :scheme", {":scheme": None}),
    malformed("8.3.1", "no :path", {":path": None}),
    malformed("8.3.1", "an empty :path", {":path": ""}),
    only("8.3.1", "no field at all"),
    Row("8.3.1", "a priority alone", f.raw(f.HEADERS, 0x24, 3, bytes(5)), PROTOCOL, 3),
    Row("8.3.1", "priority and padding", f.raw(f.HEADERS, 0x2C, 3, b"\2" + bytes(7)), PROTOCOL, 3),
    only("8.3.1", "a :method twice", (":method", "POST"), *f.REQUEST.items()),
    only("8.3.1", "a :path twice", *list(f.REQUEST.items())[:4], (":path", "/other")),
    malformed("8.5", "CONNECT with :path and :scheme", {":method": "CONNECT"}),
    malformed("8.5", "CONNECT with :scheme", {":method": "CONNECT", ":path": None}),
    malformed("8.5", "CONNECT with :path", {":method": "CONNECT", ":scheme": None}),
    only("8.5", "CONNECT to nowhere", (":method", "CONNECT")),
)
def test_pseudo_header_fields_say_what_is_asked_once(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


def trailed(what: str, *pairs: tuple[str, str], end: bool = True) -> Row:
    return Row("8.1", what, f.headers(3) + f.headers(3, pairs, end=end), PROTOCOL, 3)


@parametrised(
    trailed("trailers that do not end the stream", ("x-a", "1"), end=False),
    trailed("trailers with a pseudo-header field", (":path", "/")),
    trailed("trailers of HTTP/1.1", ("connection", "close")),
    trailed("trailers in upper case", ("X-A", "1")),
)
def test_trailers_are_fields_that_end_a_stream(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


def of_length(what: str, lengths: Sequence[str], *then: bytes, end: bool = False) -> Row:
    pairs = [*f.fields(), *(("content-length", one) for one in lengths)]
    sent = f.headers(3, pairs, end=end) + b"".join(then)
    return Row("8.1.1", what, sent, PROTOCOL, 3)


@parametrised(
    of_length("a body shorter than announced", ["11"], f.data(3, f.message(b"hello"), end=True)),
    of_length("a body longer than announced", ["9"], f.data(3, f.message(b"hello"), end=True)),
    of_length("a body where none is announced", ["0"], f.data(3, f.message(), end=True)),
    of_length("no body where one is announced", ["10"], end=True),
    of_length("trailers before the body is whole", ["10"], f.headers(3, [], end=True)),
    of_length("padding in place of a body", ["10"], f.data(3, padding=9, end=True)),
    of_length("a negative length", ["-1"]),
    of_length("a length with a sign", ["+5"]),
    of_length("a length that is no number", ["five"]),
    of_length("a length without digits", [""]),
    of_length("a length with other digits", ["٣".encode()]),
    of_length("a length of many digits", ["1" * 20]),
    of_length("two lengths in one", ["5, 5"]),
    of_length("two lengths", ["5", "10"], f.data(3, f.message(b"hello"), end=True)),
)
def test_a_body_is_as_long_as_announced(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)
