"""
Management: the endpoints that say how a server is, and those that change it.

vLLM has `/reset_prefix_cache` and `/abort_requests` only in its developer mode; here they always
are. `/faults` is the simulator's own: GET shows the fault switches, POST sets those it names and
leaves the others as they are.
"""

import msgspec
from aiohttp import web

from epp.simulator import exposition
from epp.simulator.api import VERSION, tokenization
from epp.simulator.api.bodies import AbortBody
from epp.simulator.api.decoding import decode, decoder_of
from epp.simulator.api.errors import validation
from epp.simulator.faults import Faults
from epp.simulator.server.simulator import Simulator
from epp.simulator.server.wire import json_body, json_response

_ABORT = decoder_of(AbortBody)
_SWITCHES = decoder_of(dict[str, object])


class Management:
    """The endpoints of one server that do not generate."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    async def health(self, _request: web.Request) -> web.Response:
        """Say whether the server is well."""
        return web.Response(status=200 if self._simulator.healthy else 503)

    async def version(self, _request: web.Request) -> web.Response:
        """Say which vLLM this is like."""
        return json_response(msgspec.json.encode({"version": VERSION}))

    async def load(self, _request: web.Request) -> web.Response:
        """Say how many requests are being answered; 0 where that is not tracked."""
        return json_response(msgspec.json.encode({"server_load": self._simulator.server_load}))

    async def metrics(self, _request: web.Request) -> web.Response:
        """Show the metrics page."""
        page = self._simulator.telemetry.page()
        return web.Response(body=page, headers={"Content-Type": exposition.CONTENT_TYPE})

    async def models(self, _request: web.Request) -> web.Response:
        """List the models."""
        return json_response(self._simulator.catalog.models())

    async def kv_event_sources(self, _request: web.Request) -> web.Response:
        """Say where each rank's KV events are published."""
        return json_response(msgspec.json.encode(self._simulator.kv_event_sources()))

    async def tokenize(self, request: web.Request) -> web.Response:
        """Turn text into tokens."""
        body = await json_body(request)
        return json_response(tokenization.tokenize(body, self._simulator.catalog))

    async def detokenize(self, request: web.Request) -> web.Response:
        """Turn tokens into text."""
        body = await json_body(request)
        return json_response(tokenization.detokenize(body, self._simulator.catalog))

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        """Forget what is cached, in every engine that holds nothing."""
        done = [engine.reset_prefix_cache() for engine in self._simulator.engines]
        return json_response(msgspec.json.encode({"success": all(done)}))

    async def abort_requests(self, request: web.Request) -> web.Response:
        """End requests by the ids in their answers; unknown ones are no matter."""
        asked = decode(_ABORT, await json_body(request))
        self._simulator.end_requests(asked.request_ids)
        return web.Response()

    async def load_adapter(self, request: web.Request) -> web.Response:
        """Load an adapter."""
        said, replaced = self._simulator.catalog.load(await json_body(request))
        if replaced is not None:
            self._forget(replaced)
        return web.Response(text=said)

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """Unload an adapter; requests under way that use it come to their end."""
        said, name = self._simulator.catalog.unload(await json_body(request))
        self._forget(name)
        return web.Response(text=said)

    async def faults(self, _request: web.Request) -> web.Response:
        """Show the fault switches."""
        return json_response(msgspec.json.encode(self._simulator.faults.now))

    async def change_faults(self, request: web.Request) -> web.Response:
        """Set the fault switches that a body names."""
        switch = self._simulator.faults
        changes = decode(_SWITCHES, await json_body(request))
        try:
            switch.now = msgspec.convert(msgspec.to_builtins(switch.now) | changes, Faults)
        except msgspec.ValidationError as error:
            raise validation(str(error)) from error
        return await self.faults(request)

    def _forget(self, name: str) -> None:
        for engine in self._simulator.engines:
            engine.forget_adapter(name)
