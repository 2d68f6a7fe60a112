"""
Fetch the metrics page of an endpoint over HTTP, as bytes.

The page comes from the model server itself, usually from the port that serves the model. Whatever
is not a whole page with status 200 is a failed scrape with a reason from a closed set: a redirect
leads to a login page more often than to metrics, and half a page would look like an idle server.
"""

from typing import Annotated, Literal

import aiohttp
import msgspec

from epp.framework import DataSource, Endpoint, ScrapeError

PortNumber = Annotated[int, msgspec.Meta(ge=1, le=65535)]

# Compressing a page costs the model server more than sending it does, so none is asked for; one
# that comes compressed all the same is read.
HEADERS = {"Accept": "text/plain", "Accept-Encoding": "identity"}

# A connection lives from scrape to scrape and ends, at the latest after twice this time, once its
# endpoint is scraped no more. It is less than the 5 s after which model servers on uvicorn hang up.
IDLE_SECONDS = 2.5

# The collector gives up earlier; this is for callers that set no time limit of their own.
LONGEST_SECONDS = 10.0


class MetricsDataSource(DataSource[bytes]):
    """
    Keeps one connection an endpoint open between scrapes, and follows no redirects.

    `port` replaces the endpoint's own where metrics have a port of theirs. Certificates are not
    checked unless `insecure_skip_verify` is false: model servers mostly sign their own. The default
    of `max_bytes` is 60 times a usual page, and what can be searched in 50 ms.
    """

    def __init__(
        self,
        *,
        scheme: Literal["http", "https"] = "http",
        path: str = "/metrics",
        port: PortNumber | None = None,
        insecure_skip_verify: bool = True,
        max_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 4 << 20,
    ) -> None:
        if not path.startswith("/"):
            message = f"path must begin with '/', got {path!r}"
            raise ValueError(message)
        self._scheme = scheme
        self._path = path
        self._port = port
        self._verify = not insecure_skip_verify
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None

    async def poll(self, endpoint: Endpoint) -> bytes:
        """Return the page; raise ScrapeError with status, connect, timeout or payload."""
        if self._session is None:
            self._session = self._open()
        try:
            async with self._session.get(self._url(endpoint), allow_redirects=False) as response:
                if response.status != 200:
                    message = f"expected status 200, got {response.status}"
                    raise ScrapeError("status", message)
                return await self._read(response)
        except TimeoutError as error:
            message = f"no whole page within {LONGEST_SECONDS:g} s"
            raise ScrapeError("timeout", message) from error
        except (aiohttp.ClientConnectionError, aiohttp.InvalidURL) as error:
            message = f"cannot connect to port {self._port or endpoint.port}: {_why(error)}"
            raise ScrapeError("connect", message) from error
        except aiohttp.ClientError as error:
            message = f"the answer is not whole and well-formed HTTP: {type(error).__name__}"
            raise ScrapeError("payload", message) from error

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Open the session here, since it belongs to the loop that polls."""
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=1, keepalive_timeout=IDLE_SECONDS, ssl=self._verify
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            timeout=aiohttp.ClientTimeout(total=LONGEST_SECONDS),
        )

    def _url(self, endpoint: Endpoint) -> str:
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        return f"{self._scheme}://{host}:{self._port or endpoint.port}{self._path}"

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        chunks = []
        size = 0
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                message = f"the page is larger than {self._max_bytes} bytes"
                raise ScrapeError("payload", message)
        return b"".join(chunks)


def _why(error: Exception) -> str:
    """Name the cause without the addresses that aiohttp repeats in its messages."""
    cause = getattr(error, "os_error", None) or error
    return getattr(cause, "strerror", None) or type(cause).__name__
