"""
Routes: which path is answered by what, and what holds for all of them.

Whatever is no route is answered as the real server's framework does.
"""

import hmac
import uuid
from collections.abc import Mapping

from aiohttp import web

from epp.simulator.api import headers, tokenization
from epp.simulator.api.completions import Answer, ChatAnswer
from epp.simulator.api.errors import APIError
from epp.simulator.api.responses import ResponsesAnswer
from epp.simulator.server.generation import Generation
from epp.simulator.server.management import Management
from epp.simulator.server.simulator import Simulator
from epp.simulator.server.wire import Handler, json_response

_Methods = Mapping[str, Handler]


def application(simulator: Simulator) -> web.Application:
    """Return the routes of a server."""
    guard = _Guard(simulator.options.api_key)
    # A prompt may have any size: what is too long is said in tokens.
    application = web.Application(client_max_size=0, middlewares=[guard.answer])
    if simulator.options.request_id_headers:
        application.on_response_prepare.append(_echo_request_id)
    routes = _generation(Generation(simulator)) | _management(Management(simulator))
    if simulator.options.runtime_lora_updating:
        routes |= _adapters(Management(simulator))
    for path, methods in routes.items():
        for method, handler in methods.items():
            application.router.add_route(method, path, handler)
        application.router.add_route("*", path, _wrong_method(methods))
    application.router.add_route("*", "/{path:.*}", _not_found)
    return application


def _generation(generation: Generation) -> dict[str, _Methods]:
    reader = generation.reader
    rendered_completion = generation.rendered(reader.completion, tokenization.rendered_completion)
    rendered_chat = generation.rendered(reader.chat, tokenization.rendered_chat)
    return {
        "/v1/completions": {"POST": generation.endpoint(reader.completion, Answer)},
        "/v1/chat/completions": {"POST": generation.endpoint(reader.chat, ChatAnswer)},
        "/v1/responses": {"POST": generation.endpoint(reader.response, ResponsesAnswer)},
        "/v1/embeddings": {"POST": generation.embeddings},
        "/v1/completions/render": {"POST": rendered_completion},
        "/v1/chat/completions/render": {"POST": rendered_chat},
    }


def _management(management: Management) -> dict[str, _Methods]:
    return {
        "/health": {"GET": management.health},
        "/ping": {"GET": management.health, "POST": management.health},
        "/version": {"GET": management.version},
        "/load": {"GET": management.load},
        "/metrics": {"GET": management.metrics},
        "/v1/models": {"GET": management.models},
        "/kv_event_sources": {"GET": management.kv_event_sources},
        "/tokenize": {"POST": management.tokenize},
        "/detokenize": {"POST": management.detokenize},
        "/reset_prefix_cache": {"POST": management.reset_prefix_cache},
        "/abort_requests": {"POST": management.abort_requests},
        "/faults": {"GET": management.faults, "POST": management.change_faults},
    }


def _adapters(management: Management) -> dict[str, _Methods]:
    return {
        "/v1/load_lora_adapter": {"POST": management.load_adapter},
        "/v1/unload_lora_adapter": {"POST": management.unload_adapter},
    }


class _Guard:
    """What every request passes: the check of its key, and the answer to what is refused."""

    def __init__(self, api_key: str | None) -> None:
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._expected is not None and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "").encode(errors="replace")
            if not hmac.compare_digest(given, self._expected):
                return json_response(b'{"error":"Unauthorized"}', 401)
        try:
            return await handler(request)
        except APIError as error:
            return json_response(error.body, error.status)


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    request_id = headers.text(request.headers, "X-Request-Id") or uuid.uuid4().hex
    response.headers["X-Request-Id"] = request_id


async def _not_found(_request: web.Request) -> web.Response:
    return json_response(b'{"detail":"Not Found"}', 404)


def _wrong_method(allowed: _Methods) -> Handler:
    async def wrong_method(_request: web.Request) -> web.Response:
        response = json_response(b'{"detail":"Method Not Allowed"}', 405)
        response.headers["Allow"] = ", ".join(allowed)
        return response

    return wrong_method
