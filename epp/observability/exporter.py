"""
The exporter: the picker's own pages over HTTP, for Prometheus and for people.

It reads and never changes anything, writes no access log, and shows nothing of a request. The
metrics page is made one family at a time with the event loop free in between: at a hundred
endpoints it takes tens of milliseconds, which no routing decision may wait for. It is made on the
loop all the same, because what it reads is not made for other threads.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from epp.framework import ConfigError

PAGES = {
    "/metrics": "what is counted and timed, for Prometheus",
    "/debug/state": "what is known of endpoints and plugins, as JSON (?pretty for people)",
}
"""The pages that there always are, and what they show."""

Content = Callable[[], Mapping[str, object]]
"""What a page shows, JSON-able; called for each view of it."""

_END = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class Site:
    """Where the pages are served."""

    host: str
    port: int


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    registry: CollectorRegistry,
    state: Content,
    more: Mapping[str, Content] | None = None,
) -> AsyncIterator[Site]:
    """
    Serve the pages on an address while inside; port 0 takes a free one, which the site tells.

    `state` is what /debug/state shows; `more` are further pages of JSON, by their paths. Raises
    ConfigError where the port is taken.
    """
    contents = {"/debug/state": state, **(more or {})}
    pages = _Pages(registry, contents.keys())
    app = web.Application()
    app.add_routes([web.get("/", pages.index), web.get("/metrics", pages.metrics)])
    app.add_routes([web.get(path, _json_page(content)) for path, content in contents.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            message = f"cannot listen on {host}:{port}: {error.strerror}"
            raise ConfigError(message) from error
        yield Site(host, runner.addresses[0][1])
    finally:
        await runner.cleanup()


class _Pages:
    def __init__(self, registry: CollectorRegistry, json_pages: Iterable[str]) -> None:
        self._registry = registry
        self._json_pages = json_pages

    async def index(self, _request: web.Request) -> web.Response:
        """The list of pages."""
        pages = dict.fromkeys(self._json_pages, "as JSON (?pretty for people)") | PAGES
        width = max(map(len, pages))
        return web.Response(
            text="".join(f"{page:<{width}}  {pages[page]}\n" for page in sorted(pages))
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics, in the format and encoding that the reader takes."""
        encode, content_type = _encoder(request.headers.get("Accept", ""))
        pieces = []
        for family in self._registry.collect():
            pieces.append(encode(_OneFamily(family)).removesuffix(_END))
            await asyncio.sleep(0)
        if content_type.startswith("application/openmetrics-text"):
            pieces.append(_END)
        body = b"".join(pieces)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            # It lets go of the interpreter while it compresses.
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)


def _json_page(content: Content) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def page(request: web.Request) -> web.Response:
        body = msgspec.json.encode(content(), enc_hook=_type_only)
        if "pretty" in request.query:
            body = msgspec.json.format(body, indent=2) + b"\n"
        return web.Response(body=body, content_type="application/json")

    return page


class _OneFamily(Collector):
    """A registry that holds one family, for encoders take only registries."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is no number; who asks for one gets the plain format.
        return choose_encoder("")


def _type_only(value: object) -> str:
    return f"<{type(value).__name__}>"
