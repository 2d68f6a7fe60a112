"""The load: where an answer ends, what wrk is told and says, and our own client's counting."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from benchmarks import load, upstream
from benchmarks.load import Answer, Load, LoadFailed
from benchmarks.upstream import ANSWER, CHUNK, LAST_CHUNK, STREAM_HEAD, Connection
from benchmarks.workloads import SHORT, Workload

in_real_time = pytest.mark.looptime(False)  # noqa: FBT003 - looptime's own form

STREAM = STREAM_HEAD + CHUNK * 3 + LAST_CHUNK
EMPTY = upstream.whole("text/plain", b"")


@pytest.mark.parametrize(
    "answer", [ANSWER, STREAM, EMPTY], ids=["one piece", "a stream", "no body"]
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_an_answer_is_whole_with_its_last_byte(answer: bytes, size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    reader = Answer()
    whole = [reader.feed(piece) for piece in pieces]

    assert whole == [False] * (len(pieces) - 1) + [True]
    assert reader.status == b"200"


def test_the_script_holds_each_body_as_it_is() -> None:
    body = b'{"prompt":"a \\" quote, a \\\\ and \xc3\xa9\\n"}'
    script = load.lua_script([body, b"{}"])
    literals = re.findall(r'wrk\.format\(nil, nil, nil, "(.*)"\)', script)
    read_back = [
        re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1])]), one.encode()) for one in literals
    ]

    assert read_back == [body, b"{}"]


def test_the_summary_of_wrk_is_its_last_line() -> None:
    output = 'Running 1s test\n  900 requests\n{"requests":900,"microseconds":1500000,"failed":0}\n'

    assert load.wrk_load(output) == Load(900, 1.5)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ('{"requests":9,"microseconds":1,"failed":2}', "2 of 9 requests failed"),
        ("unable to connect", "wrk ended without its summary"),
        ("", "wrk ended without its summary"),
    ],
    ids=["refused requests", "no connection", "silence"],
)
def test_a_load_that_failed_says_why(output: str, message: str) -> None:
    with pytest.raises(LoadFailed, match=message):
        load.wrk_load(output)


class Refusing(asyncio.Protocol):
    """Answers whatever comes with bytes of its own, then hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._answer)
        self._transport.close()


@contextlib.asynccontextmanager
async def listening(make: type[asyncio.Protocol], answer: bytes) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: make(answer), "127.0.0.1", 0)  # type: ignore[call-arg]
    async with listener:
        yield listener.sockets[0].getsockname()[1]


@in_real_time
@pytest.mark.parametrize(
    "workload",
    [SHORT, Workload("stream", 100, tokens=5, stream=True)],
    ids=lambda one: one.name,
)
async def test_every_connection_sends_until_the_time_is_over(workload: Workload) -> None:
    async with listening(Connection, b"") as port:
        done = await load.own(port, workload.requests(), connections=3, seconds=0.05)

    assert done.requests == len(done.latencies) >= 3
    assert 0.05 <= done.seconds < 5
    assert all(0 < latency < done.seconds for latency in done.latencies)


@in_real_time
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ANSWER.replace(b"200 OK", b"503 No"), "answered with 503"),
        (b"", "closed on us"),
    ],
    ids=["another status", "a closed connection"],
)
async def test_a_request_without_a_200_fails_the_load(answer: bytes, message: str) -> None:
    async with listening(Refusing, answer) as port:
        with pytest.raises(LoadFailed, match=message):
            await load.own(port, SHORT.requests(), connections=2, seconds=5)


@in_real_time
async def test_nobody_listening_fails_the_load() -> None:
    async with listening(Refusing, b"") as port:
        pass

    with pytest.raises(LoadFailed, match="could not be sent: ConnectionRefusedError"):
        await load.own(port, SHORT.requests(), connections=2, seconds=5)
