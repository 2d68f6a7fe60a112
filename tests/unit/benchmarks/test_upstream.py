"""The upstream's side of HTTP: where a request ends, and what is written when."""

import asyncio

import pytest

from benchmarks import upstream
from benchmarks.upstream import ANSWER, CHUNK, LAST_CHUNK, STREAM_HEAD, Connection, Wanted
from benchmarks.workloads import TOKEN_SECONDS, Workload, http_request


class FakeTransport(asyncio.Transport):
    """Keeps what is written, with the time."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[float, bytes]] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:
            now = 0.0
        self.writes.append((now, bytes(data)))


def connection() -> tuple[Connection, FakeTransport]:
    transport = FakeTransport()
    one = Connection(metrics=b"a page")
    one.connection_made(transport)
    return one, transport


HEAD = b"POST / HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n", 34),
        (b"GET /metrics HTTP/1.1\r\nhost: a\r\n", None),
        (HEAD + b"Content-Length: 4\r\n\r\nbody", 42),
        (HEAD + b"content-length: 4\r\n\r\nbodyGET /", 42),
        (HEAD + b"content-length: 4\r\n\r\nbod", None),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", 61),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 52),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n", None),
    ],
    ids=[
        "no body",
        "half a head",
        "a declared length",
        "another request behind it",
        "half a body",
        "chunks",
        "no chunk",
        "chunks without their end",
    ],
)
def test_a_request_ends_where_its_head_says(data: bytes, size: int | None) -> None:
    assert upstream.request_size(data) == size


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"model":"m","stream":true,"max_tokens":7,"prompt":""}', Wanted(stream=True, tokens=7)),
        (b'{"stream":false,"max_tokens":9}', Wanted(stream=False, tokens=9)),
        (b"{}", Wanted(stream=False, tokens=1)),
    ],
    ids=["a stream", "one piece", "nothing"],
)
def test_the_body_says_what_is_wanted(body: bytes, wanted: Wanted) -> None:
    assert upstream.wanted(HEAD + b"\r\n" + body) == wanted


def test_metrics_are_the_page() -> None:
    one, transport = connection()
    one.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")

    assert [data for _, data in transport.writes] == [b"a page"]


def test_requests_in_pieces_and_back_to_back_are_each_answered_once() -> None:
    one, transport = connection()
    request = http_request(b"{}")
    for piece in (request[:30], request[30:] + request, request):
        one.data_received(piece)

    assert [data for _, data in transport.writes] == [ANSWER] * 3


async def test_a_stream_is_one_write_a_token() -> None:
    one, transport = connection()
    began = asyncio.get_running_loop().time()
    one.data_received(Workload("stream", 10, tokens=3, stream=True).requests()[0])
    await asyncio.sleep(1)

    assert [data for _, data in transport.writes] == [STREAM_HEAD, CHUNK, CHUNK, LAST_CHUNK]
    assert [round((at - began) / TOKEN_SECONDS) for at, _ in transport.writes] == [0, 0, 1, 2]


async def test_an_answer_in_one_piece_comes_when_the_stream_would_end() -> None:
    one, transport = connection()
    began = asyncio.get_running_loop().time()
    one.data_received(Workload("held", 10, tokens=3).requests()[0])
    await asyncio.sleep(1)

    [(at, data)] = transport.writes
    assert (round((at - began) / TOKEN_SECONDS), data) == (2, ANSWER)


async def test_a_lost_connection_ends_its_stream() -> None:
    one, transport = connection()
    one.data_received(Workload("stream", 10, tokens=3, stream=True).requests()[0])
    one.connection_lost(None)
    await asyncio.sleep(1)

    assert [data for _, data in transport.writes] == [STREAM_HEAD, CHUNK]
