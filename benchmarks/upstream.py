"""
The upstream: a model server that answers at once, and costs so little that it never is what waits.

One process that stands for several endpoints, each on a port of its own. It speaks just enough
HTTP/1.1 for Envoy and for a scrape: canned bytes for an answer in one piece, one write a token for
a stream, a real vLLM's page for `/metrics`.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import click
import uvloop

from benchmarks.workloads import TOKEN_SECONDS

_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_WANTED = re.compile(rb'"stream":(true|false),"max_tokens":(\d+)')

_USAGE = b'"usage":{"prompt_tokens":600,"completion_tokens":16,"total_tokens":616}'
_ANSWER = (
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"bench-model","choices":['
    + (
        b'{"index":0,"text":"%b","logprobs":null,"finish_reason":"length"}],%b}'
        % (b"word " * 16, _USAGE)
    )
)
_EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"bench-model",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
_LAST_EVENTS = b'data: {"id":"cmpl-1","choices":[],%b}\n\ndata: [DONE]\n\n' % _USAGE


def whole(content_type: str, body: bytes) -> bytes:
    """Return a response with the body in one piece."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    """Return a piece of a body in chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER = whole("application/json", _ANSWER)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
CHUNK = chunk(_EVENT)
LAST_CHUNK = chunk(_LAST_EVENTS) + b"0\r\n\r\n"


def request_size(data: bytes) -> int | None:
    """Return how many bytes the first request in the data has; None where it is not whole."""
    head = data.find(_END_OF_HEAD)
    if head < 0:
        return None
    declared = _LENGTH.search(data, 0, head)
    if declared is not None:
        size = head + len(_END_OF_HEAD) + int(declared[1])
        return size if len(data) >= size else None
    if b"chunked" not in data[:head]:
        return head + len(_END_OF_HEAD)
    end = data.find(_END_OF_CHUNKS, head + 2)
    return end + len(_END_OF_CHUNKS) if end >= 0 else None


class Wanted(NamedTuple):
    """What a request asks for."""

    stream: bool
    tokens: int


def wanted(request: bytes) -> Wanted:
    """Return what the request asks for; one token in one piece where it does not say."""
    found = _WANTED.search(request)
    return Wanted(found[1] == b"true", int(found[2])) if found else Wanted(stream=False, tokens=1)


@dataclass(slots=True)
class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    metrics: bytes
    data: bytes = b""
    transport: asyncio.Transport | None = None
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's inherits nothing

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (size := request_size(self.data)) is not None:
            request, self.data = self.data[:size], self.data[size:]
            self._answer(request)

    def connection_lost(self, _: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def _answer(self, request: bytes) -> None:
        if request.startswith(b"GET /metrics"):
            self._write(self.metrics)
            return
        stream, tokens = wanted(request)
        if stream:
            self._write(STREAM_HEAD)
            self._stream(tokens)
        elif tokens > 1:
            self._later((tokens - 1) * TOKEN_SECONDS, self._write, ANSWER)
        else:
            self._write(ANSWER)

    def _stream(self, left: int) -> None:
        if left <= 1:
            self._write(LAST_CHUNK)
            return
        self._write(CHUNK)
        self._later(TOKEN_SECONDS, self._stream, left - 1)

    def _write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def _later(self, seconds: float, call: Callable[..., None], argument: object) -> None:
        self.timer = asyncio.get_running_loop().call_later(seconds, call, argument)


async def serve(count: int, page: bytes) -> None:
    """Listen on so many free ports, say which, and serve for ever."""
    loop = asyncio.get_running_loop()
    metrics = whole("text/plain; version=0.0.4", page)
    listening = [
        await loop.create_server(lambda: Connection(metrics), "127.0.0.1", 0) for _ in range(count)
    ]
    ports = [str(one.sockets[0].getsockname()[1]) for one in listening]
    click.echo(f"listening on {','.join(ports)}")
    await asyncio.Event().wait()


@click.command()
@click.option("--endpoints", type=int, default=3, show_default=True, help="How many to stand for.")
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The metrics page to show.",
)
def main(endpoints: int, page: Path) -> None:
    """Serve canned answers on loopback until killed."""
    uvloop.run(serve(endpoints, page.read_bytes()))


if __name__ == "__main__":
    main()
