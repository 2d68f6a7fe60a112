"""Header fields: what is read of a request's, what is remembered, and what responses say."""

import logging

import hpack
import pytest

from epp.extproc.h2 import field_blocks
from epp.extproc.h2.field_blocks import FieldBlocks, RequestHead
from epp.extproc.h2.frames import ErrorCode, Violation
from epp.extproc.h2.limits import Limits
from epp.observability import logs
from support import h2_frames as f

INDEXED_62 = b"\xbe"
"""The newest entry of the dynamic table."""


def decoder(**limits: int) -> FieldBlocks:
    return FieldBlocks(Limits(**limits))


def head(**changes: str | None) -> RequestHead:
    """What a call's fields say, with some changed; `_` stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return decoder().request(f.block(f.fields(named)))


def path_literal(path: bytes) -> bytes:
    """A `:path` that is added to the dynamic table."""
    return b"\x44" + bytes((len(path),)) + path


def test_a_request_is_what_its_fields_say() -> None:
    expected = RequestHead(
        method="POST",
        path="/test/Echo",
        content_type="application/grpc",
        encoding="gzip",
        timeout_seconds=2.0,
        content_length=7,
    )

    assert expected == head(grpc_encoding="gzip", grpc_timeout="2S", content_length="7")


def test_what_is_not_said_has_a_default() -> None:
    expected = RequestHead(method="POST", path="/test/Echo", content_type="application/grpc")

    assert expected == head()
    assert head().encoding == "identity"


@pytest.mark.parametrize("huffman", [True, False], ids=["huffman", "plain"])
def test_strings_may_be_huffman_coded(huffman: bool) -> None:
    block = hpack.Encoder().encode(f.fields(), huffman=huffman)

    assert decoder().request(block).path == "/test/Echo"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("4m", 0.004),
        ("5u", 5e-6),
        ("6n", 6e-9),
        ("0S", 0.0),
        ("99999999S", 99_999_999.0),
        ("100000000S", None),
        ("1", None),
        ("S", None),
        ("", None),
        ("1s", None),
        ("-1S", None),
        ("1.5S", None),
        ("1 S", None),
        ("²S", None),
        ("٣S", None),
    ],
)
def test_a_timeout_has_at_most_eight_digits_and_a_unit(text: str, seconds: float | None) -> None:
    assert pytest.approx(seconds) == head(grpc_timeout=text).timeout_seconds


@pytest.mark.parametrize(
    ("text", "length"),
    [("0", 0), ("007", 7), ("9" * 19, 10**19 - 1), ("9" * 20, None), ("1e3", None), ("٣", None)],
)
def test_a_content_length_is_a_number(text: str, length: int | None) -> None:
    found = head(content_length=text)

    assert length == found.content_length
    assert (found.fault == "") == (length is not None)


def test_an_indexed_block_is_decoded_once() -> None:
    blocks = decoder()
    encoder = hpack.Encoder()
    first = blocks.request(encoder.encode(f.fields()))
    again = encoder.encode(f.fields())

    assert len(f.fields()) == len(again), "nothing but indices of a byte each"
    assert first == blocks.request(again)
    assert blocks.request(again) is blocks.request(again)


@pytest.mark.parametrize(
    "change", ["a request", "trailers", "a smaller table"], ids=lambda change: str(change)
)
def test_what_is_remembered_is_forgotten_when_the_table_changes(change: str) -> None:
    blocks = decoder()
    blocks.request(b"\x83\x86" + path_literal(b"/one"))
    indexed = b"\x83\x86" + INDEXED_62
    before = [blocks.request(indexed).path, blocks.request(indexed).path]
    if change == "a request":
        blocks.request(b"\x83\x86" + path_literal(b"/two"))
    elif change == "trailers":
        blocks.trailers(path_literal(b"/two"))
    else:
        blocks.request(b"\x20\x3f\xe1\x1f\x83\x86\x84")
        blocks.request(b"\x83\x86" + path_literal(b"/two"))

    assert [*before, blocks.request(indexed).path] == ["/one", "/one", "/two"]


def test_an_entry_that_was_evicted_is_not_remembered() -> None:
    blocks = decoder()
    blocks.request(b"\x83\x86" + path_literal(b"/one"))
    indexed = b"\x83\x86" + INDEXED_62
    assert blocks.request(indexed).path == "/one"

    blocks.request(b"\x20\x83\x86\x84")

    with pytest.raises(Violation):
        blocks.request(indexed)


def test_an_older_entry_that_was_evicted_is_not_remembered() -> None:
    blocks = decoder()
    for path in (b"/one", b"/two"):
        blocks.request(b"\x83\x86" + path_literal(path))
    older = b"\x83\x86\xbf"
    assert blocks.request(older).path == "/one"

    blocks.request(b"\x3f\x13\x83\x86" + INDEXED_62)  # a table of 50 bytes, for one such entry

    with pytest.raises(Violation):
        blocks.request(older)


@pytest.mark.parametrize("length", [4, 127], ids=["beside each other", "in place of each other"])
def test_entries_that_take_turns_keep_their_meaning(length: int) -> None:
    blocks = decoder()
    blocks.request(b"\x3f\x91\1\x83\x86\x84")  # a table of 176 bytes: one long path fills it
    found = []
    for path in (b"/one", b"/two", b"/one", b"/two"):
        blocks.request(b"\x83\x86" + path_literal(path.ljust(length - 1, b"x")))
        found += [blocks.request(b"\x83\x86" + INDEXED_62).path[:4] for _ in range(2)]

    assert found == ["/one", "/one", "/two", "/two"] * 2


def test_only_so_many_and_only_short_blocks_are_remembered() -> None:
    blocks = decoder()
    literals = [b"\x83\x86\x04\x03/%02d" % number for number in range(99)]
    long = b"\x83\x86\x84\0\1a\x7f\x81\x0f" + b"x" * 2_048

    for block in [*literals, long]:
        blocks.request(block)

    assert len(blocks._remembered) <= 64
    assert long not in blocks._remembered
    assert [b[-3:].decode() for b in literals] == [blocks.request(b).path for b in literals]


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x80", ErrorCode.COMPRESSION_ERROR),
        (b"\x83\x86\x84\x20", ErrorCode.COMPRESSION_ERROR),
        (b"\0\1a\x84\xff\xff\xff\xff", ErrorCode.COMPRESSION_ERROR),
        (b"\x83\x86\x84" * 400, ErrorCode.ENHANCE_YOUR_CALM),
    ],
    ids=["index 0", "a late size", "the end of a string", "too many fields"],
)
def test_what_cannot_be_decoded_is_an_error_of_the_connection(block: bytes, code: int) -> None:
    with pytest.raises(Violation) as raised:
        decoder(max_field_list_bytes=10_000).request(block)

    assert (code, 0) == (raised.value.code, raised.value.stream_id)


def test_responses_are_what_grpc_asks_for() -> None:
    reader = hpack.Decoder()
    reader.max_allowed_table_size = 0
    reader.header_table_size = 0

    assert reader.decode(field_blocks.RESPONSE) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
    ]
    assert reader.decode(field_blocks.trailers(0)) == [("grpc-status", "0")]
    assert reader.decode(field_blocks.only_status(415)) == [(":status", "415")]
    assert len(reader.header_table.dynamic_entries) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all is well, ~", "all is well, ~"),
        ("100 %", "100 %25"),
        ("a\r\n\x7f", "a%0D%0A%7F"),
        ("größer", "gr%C3%B6%C3%9Fer"),
        ("\ud800", "?"),
        ("x" * 126, "x" * 126),
        ("x" * 127, "x" * 127),
        ("x" * 254, "x" * 254),
        ("x" * 255, "x" * 255),
        ("x" * 300, "x" * 300),
        ("x" * 5_000, "x" * 1_000),
        ("\U0001f600" * 5_000, "%F0%9F%98%80" * 1_000),
    ],
    ids=lambda text: ascii(text)[:12] + f" ({len(text)})",
)
def test_a_message_is_readable_whatever_is_in_it(text: str, expected: str) -> None:
    block = field_blocks.trailers(13, text)

    assert hpack.Decoder().decode(block) == [("grpc-status", "13"), ("grpc-message", expected)]
    assert len(field_blocks.RESPONSE + block) < 16_384


@pytest.mark.parametrize("verbosity", range(6))
def test_no_field_gets_into_the_log(
    verbosity: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(verbosity=verbosity)

    decoder().request(f.block([*f.fields(), ("authorization", "Bearer secret")]))

    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.INFO)
    assert caplog.records == []
    assert capsys.readouterr().out == ""
