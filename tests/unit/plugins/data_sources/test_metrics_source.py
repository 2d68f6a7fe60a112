"""The source against real servers on loopback."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from epp.framework import ConfigError, Registry, ScrapeError
from epp.testing import endpoint
from epp_plugins.data_sources.metrics import MetricsDataSource

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time

CAPTURES = Path(__file__).parents[3] / "data" / "vllm"
PAGE = (CAPTURES / "metrics_under_load.txt").read_bytes()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, *, path: str = "/metrics", tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve with aiohttp; yields the port."""
    app = web.Application()
    app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Wire:
    """Answers every connection with the same bytes and closes it, or leaves it open."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked = asyncio.Event()
        self.closed_by_client = asyncio.Event()
        self.connections: list[asyncio.Task[Any] | None] = []

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        async with server:
            yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*(task for task in self.connections if task))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        if self.answer is None:
            await reader.read()
            self.closed_by_client.set()
        else:
            writer.write(self.answer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def fetch(port: int, **parameters: Any) -> bytes:
    source = MetricsDataSource(**parameters)
    try:
        return await source.poll(endpoint(address="127.0.0.1", port=port))
    finally:
        await source.aclose()


async def failure(port: int, **parameters: Any) -> str:
    with pytest.raises(ScrapeError) as raised:
        await fetch(port, **parameters)
    return raised.value.reason


def head(status: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode()


async def test_a_page_comes_back_byte_for_byte_under_the_headers_of_a_real_vllm() -> None:
    captured = (CAPTURES / "metrics_response_headers.txt").read_text().split()
    content_type = " ".join(captured[captured.index("content-type:") + 1 :][:3])

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=PAGE, headers={"content-type": content_type, "vary": "Origin"})

    async with serving(handler) as port:
        page = await fetch(port)

    assert page == PAGE


async def test_a_compressed_page_is_read_though_none_is_asked_for() -> None:
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.getall("accept-encoding"))
        return web.Response(body=gzip.compress(PAGE), headers={"content-encoding": "gzip"})

    async with serving(handler) as port:
        page = await fetch(port)

    assert page == PAGE
    assert asked == [["identity"]]


async def test_path_and_port_can_be_configured() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.path_qs)

    async with serving(handler, path="/inner/metrics") as port:
        source = MetricsDataSource(path="/inner/metrics?full=1", port=port)
        page = await source.poll(endpoint(address="127.0.0.1", port=1))
        await source.aclose()

    assert page == b"/inner/metrics?full=1"


async def test_one_connection_serves_every_scrape_of_an_endpoint() -> None:
    peers = []

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response(body=PAGE)

    async with serving(handler) as port:
        source = MetricsDataSource()
        for _ in range(5):
            await source.poll(endpoint(address="127.0.0.1", port=port))
        await source.aclose()

    assert len(peers) == 5
    assert len(set(peers)) == 1


async def test_a_connection_that_the_server_closed_in_between_is_opened_again() -> None:
    wire = Wire(head(200, "content-length: 2") + b"ok")
    async with wire.serving() as port:
        source = MetricsDataSource()
        pages = [await source.poll(endpoint(address="127.0.0.1", port=port)) for _ in range(3)]
        await source.aclose()

    assert pages == [b"ok", b"ok", b"ok"]


@pytest.mark.parametrize("status", [204, 302, 401, 404, 500, 503])
async def test_another_status_is_a_failed_scrape_and_redirects_are_not_followed(
    status: int,
) -> None:
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(
            status=status, text="" if status == 204 else "no", headers={"location": "/metrics"}
        )

    async with serving(handler) as port:
        reason = await failure(port)

    assert (reason, asked) == ("status", ["/metrics"])


@pytest.mark.parametrize(
    "answer",
    [
        head(200, "content-length: 500") + b"vllm:num_requests_waiting 1",
        head(200, "transfer-encoding: chunked") + b"5\r\nvllm:\r\n",
        head(200, "transfer-encoding: chunked") + b"xyz\r\n",
        head(200, "content-encoding: gzip", "content-length: 5") + b"plain",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        head(200, "content-length: many") + b"ok",
    ],
    ids=["short", "chunks without an end", "bad chunk", "not gzip", "not HTTP", "bad length"],
)
async def test_an_answer_that_is_not_whole_is_a_failed_scrape(answer: bytes) -> None:
    async with Wire(answer).serving() as port:
        reason = await failure(port)

    assert reason == "payload"


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
async def test_a_page_that_is_too_large_is_a_failed_scrape(*, compressed: bool) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        body = b"x" * 100_000
        if compressed:
            return web.Response(body=gzip.compress(body), headers={"content-encoding": "gzip"})
        return web.Response(body=body)

    async with serving(handler) as port:
        reason = await failure(port, max_bytes=99_999)
        page = await fetch(port, max_bytes=100_000)

    assert reason == "payload"
    assert len(page) == 100_000


async def test_a_closed_port_is_a_failed_scrape() -> None:
    async with Wire(b"").serving() as port:
        pass

    assert await failure(port) == "connect"


async def test_a_server_that_hangs_up_is_a_failed_scrape() -> None:
    async with Wire(b"").serving() as port:
        reason = await failure(port)

    assert reason == "connect"


@pytest.mark.looptime(True)  # noqa: FBT003 - the wait is long, and nothing else happens
async def test_a_server_that_never_answers_is_a_timeout_in_the_end() -> None:
    async with Wire(None).serving() as port:
        reason = await failure(port)

    assert reason == "timeout"


async def test_a_poll_that_is_cancelled_closes_its_connection() -> None:
    wire = Wire(None)
    async with wire.serving() as port:
        source = MetricsDataSource()
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(source.poll(endpoint(address="127.0.0.1", port=port)))
            await wire.asked.wait()
            poll.cancel()
        async with asyncio.timeout(5):
            await wire.closed_by_client.wait()
        await source.aclose()

    assert wire.closed_by_client.is_set()


async def test_certificates_are_checked_only_on_demand() -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=PAGE)

    async with serving(handler, tls=tls) as port:
        trusting = await fetch(port, scheme="https")
        reason = await failure(port, scheme="https", insecure_skip_verify=False)

    assert trusting == PAGE
    assert reason == "connect"


async def test_a_source_that_was_closed_opens_again() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=PAGE)

    async with serving(handler) as port:
        source = MetricsDataSource()
        await source.aclose()
        await source.poll(endpoint(address="127.0.0.1", port=port))
        await source.aclose()
        page = await source.poll(endpoint(address="127.0.0.1", port=port))
        await source.aclose()
        await source.aclose()

    assert page == PAGE


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.1", "http://10.0.0.1:8000/metrics"),
        ("fd00::1", "http://[fd00::1]:8000/metrics"),
        ("vllm.example", "http://vllm.example:8000/metrics"),
    ],
    ids=["IPv4", "IPv6", "name"],
)
def test_ipv6_addresses_stand_in_brackets(address: str, url: str) -> None:
    assert MetricsDataSource()._url(endpoint(address=address)) == url


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"scheme": "ftp"}, "scheme"),
        ({"path": "metrics"}, "path must begin with '/'"),
        ({"port": 0}, "port"),
        ({"port": 65536}, "port"),
        ({"maxBytes": 0}, "maxBytes"),
        ({"interval": "1s"}, "interval"),
    ],
    ids=["scheme", "path", "port too low", "port too high", "size", "unknown"],
)
def test_parameters_that_make_no_sense_are_refused(
    parameters: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Registry().build("metrics-data-source", "metrics", parameters)
