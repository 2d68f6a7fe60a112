"""Sending the load, over real sockets on loopback: what is made of answers, whole or broken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice

import aiohttp
import pytest
from aiohttp import web

from epp.demo import load
from epp.demo.load import BASE_MODEL, Outcome, Planned
from epp.simulator import server
from epp.simulator.server import SimulatorOptions

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SIMULATOR = SimulatorOptions(
    model=BASE_MODEL, lora_modules=load.ADAPTERS, time_scale=0, prompt_tokens_details=True
)


def planned(kind: load.Kind = "text", *, stream: bool = False) -> Planned:
    """A request with a shared prompt."""
    return next(
        one
        for one in load.plan(1, 0.0)
        if one.group.kind == kind and one.stream == stream and one.group.name
    )


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server with one answer to everything."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def sent(handler: Handler, request: Planned) -> Outcome:
    async with serving(handler) as url, aiohttp.ClientSession() as session:
        return await load.send(session, url, request)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_the_second_request_of_a_group_finds_its_prompt_in_the_cache(
    kind: load.Kind, stream: bool
) -> None:
    request = planned(kind, stream=stream)
    async with server.serve(SIMULATOR) as simulator, aiohttp.ClientSession() as session:
        cold = await load.send(session, simulator.url, request)
        warm = await load.send(session, simulator.url, request)

    assert (cold.error, warm.error) == ("", "")
    assert cold.cached_tokens == 0
    assert warm.prompt_tokens == cold.prompt_tokens > 800
    assert warm.cached_tokens > 0.9 * warm.prompt_tokens
    assert (warm.first_token_seconds is not None) == stream
    assert 0 <= (warm.first_token_seconds or 0) <= warm.seconds


async def test_a_list_of_models_has_no_tokens() -> None:
    request = next(one for one in load.plan(1, 0.0) if one.group.kind == "models")
    async with server.serve(SIMULATOR) as simulator, aiohttp.ClientSession() as session:
        outcome = await load.send(session, simulator.url, request)

    assert (outcome.error, outcome.prompt_tokens, outcome.cached_tokens) == ("", 0, 0)


async def test_a_request_carries_its_id() -> None:
    seen = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers["x-request-id"])
        return web.json_response({})

    request = planned()
    await sent(note, request)

    assert seen == [request.id]


async def test_a_refusal_is_named_by_its_status() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=429)

    outcome = await sent(refuse, planned())

    assert outcome.error == "HTTP 429"


async def test_a_stream_without_its_last_event_is_an_error() -> None:
    async def stop_early(_: web.Request) -> web.Response:
        return web.Response(body=b'data: {"choices":[]}\n\n', content_type="text/event-stream")

    outcome = await sent(stop_early, planned(stream=True))

    assert outcome.error == "a stream ended early"


async def test_a_connection_that_breaks_is_an_error() -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    outcome = await sent(hang_up, planned())

    assert outcome.error == "ServerDisconnectedError"


async def test_an_answer_that_does_not_come_is_an_error() -> None:
    async def hang(_: web.Request) -> web.Response:
        return await asyncio.Future()

    async with serving(hang) as url, aiohttp.ClientSession() as session:
        outcome = await load.send(session, url, planned(), timeout_seconds=0.05)

    assert outcome.error == "no answer within 0.05 s"


async def test_a_bounded_load_ends_when_all_is_answered() -> None:
    requests: list[Planned] = []
    outcomes: list[Outcome] = []
    async with server.serve(SIMULATOR) as simulator, aiohttp.ClientSession() as session:
        await load.run(
            session,
            simulator.url,
            islice(load.plan(1, 0.0), 30),
            on_sent=requests.append,
            on_end=outcomes.append,
        )

    assert len(requests) == 30
    assert {one.planned.id for one in outcomes} == {one.id for one in requests}
    assert {one.error for one in outcomes} == {""}


async def test_after_its_time_the_load_sends_nothing_new() -> None:
    outcomes: list[Outcome] = []
    async with server.serve(SIMULATOR) as simulator, aiohttp.ClientSession() as session:
        await load.run(
            session,
            simulator.url,
            load.plan(1, 0.0),
            on_sent=lambda _: None,
            on_end=outcomes.append,
            seconds=0.0,
        )

    assert len(outcomes) == load.USERS
