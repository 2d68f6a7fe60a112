"""
The server: one simulated model server on a socket of its own.

It speaks HTTP: bodies are understood and answers written by `epp.simulator.api`, tokens come from
`epp.simulator.live`. A client that leaves takes its requests out of the engine. When the server
stops, what is under way ends at once with the error of a dead engine, in a stream as its last
event. Several servers live side by side in one process and share nothing.
"""

import contextlib
import logging
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from epp.simulator.server.options import SimulatorOptions
from epp.simulator.server.routes import application
from epp.simulator.server.simulator import Simulator

__all__ = ["Simulator", "SimulatorOptions", "serve"]

_SHUTDOWN_SECONDS = 0.1
"""How long answers under way may take to write their last bytes, once the engine is dead."""
_CONNECTIONS_WAITING = 4096
"""How many connections may wait to be accepted: a load's whole first wave."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Say whether a mistake is this program's: those of clients have their 400, and are private."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOG = logging.getLogger(__name__)
_LOG.addFilter(_is_ours)


@contextlib.asynccontextmanager
async def serve(options: SimulatorOptions) -> AsyncIterator[Simulator]:
    """
    Serve until the block ends; the port is open when it begins.

    Raises OSError where the address cannot be had, ValueError where KV events cannot be published.
    A server whose engine died answers with errors until the block ends: see `Simulator.dead`.
    """
    simulator = Simulator(options)
    runner = web.AppRunner(
        application(simulator),
        access_log=None,
        logger=_LOG,
        auto_decompress=False,  # the real server does not look at Content-Encoding
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        async with simulator.running():
            site = web.TCPSite(runner, options.host, options.port, backlog=_CONNECTIONS_WAITING)
            await site.start()
            simulator.port = runner.addresses[0][1]
            yield simulator
    finally:
        await runner.cleanup()
