"""Token counts of responses, wherever their pieces are cut."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Usage
from epp.requestcontrol.usage import MAX_DOCUMENT_BYTES, MAX_LINE_BYTES, Media, UsageReader


class Parser:
    """Reads `{"usage":{"p":1,"c":2}}`, and counts how often it is asked."""

    claims = ()

    def __init__(self) -> None:
        self.asked = 0

    def parse_request(self, *_: Any) -> Any:
        raise NotImplementedError

    def rewrite_model(self, *_: Any) -> bytes:
        raise NotImplementedError

    def parse_usage(self, document: bytes) -> Usage | None:
        self.asked += 1
        try:
            usage = msgspec.json.decode(document)["usage"]
        except (msgspec.DecodeError, KeyError):
            return None
        return Usage(usage.get("p"), usage.get("c")) if usage else None


def read(pieces: list[bytes], media: Media = "events") -> tuple[Usage | None, Parser]:
    parser = Parser()
    reader = UsageReader(parser, media)
    for piece in pieces:
        reader.feed(piece)
    reader.end()
    return reader.usage, parser


STREAM = (
    b'data: {"text":"h\xc3\xa9llo"}\r\n\r\n: ping\n\ndata:{"usage":null}\n\n'
    b'data: {"usage":{"p":7}}\n\nid: 1\ndata: {"usage":{"c":10}}\r\n\r\ndata: [DONE]\n\n'
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_events_count_the_same_wherever_they_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]

    usage, _ = read([STREAM[a:b] for a, b in pairwise(edges)])

    assert usage == Usage(7, 10)


@pytest.mark.parametrize("at", range(len(STREAM)))
def test_one_cut_at_every_place(at: int) -> None:
    assert read([STREAM[:at], STREAM[at:]])[0] == Usage(7, 10)


def test_pieces_without_the_word_are_not_looked_into() -> None:
    pieces = [b'data: {"text":"%d"}\n\n' % at for at in range(100)]

    usage, parser = read(pieces)

    assert usage is None
    assert parser.asked == 0


def test_the_last_event_counts_without_its_line_end() -> None:
    assert read([b'data: {"usage":{"p":1}}'])[0] == Usage(1)


def test_a_document_is_read_whole() -> None:
    assert read([b'{"usage"', b':{"p":3,', b'"c":4}}'], "json")[0] == Usage(3, 4)


def test_opaque_bodies_are_not_read() -> None:
    assert read([b'{"usage":{"p":3}}'], "opaque")[0] is None


def test_a_line_without_an_end_does_not_grow_memory() -> None:
    reader = UsageReader(Parser(), "events")
    for _ in range(100):
        reader.feed(b"x" * (MAX_LINE_BYTES // 10))
        assert len(reader._tail) <= MAX_LINE_BYTES


def test_a_document_beyond_the_cap_is_let_go() -> None:
    reader = UsageReader(Parser(), "json")
    reader.feed(b"x" * (MAX_DOCUMENT_BYTES + 1))
    reader.feed(b'{"usage":{"p":3}}')
    reader.end()

    assert reader.usage is None
