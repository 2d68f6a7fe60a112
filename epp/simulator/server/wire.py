"""
The wire: bodies off requests and onto responses.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from epp.simulator.api.errors import validation

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON = "application/json"


async def json_body(request: web.Request) -> bytes:
    """Return a request's body; APIError where it does not say that it is JSON."""
    if request.content_type != _JSON:
        raise validation("Unsupported Media Type: Only 'application/json' is allowed")
    return await request.read()


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return a response of JSON."""
    return web.Response(body=body, status=status, content_type=_JSON)


async def write_apart(response: web.StreamResponse, event: bytes) -> None:
    """Write one event of a stream and let the loop send it, before the next one could join it."""
    await response.write(event)
    await asyncio.sleep(0)
