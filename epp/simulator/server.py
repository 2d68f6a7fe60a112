"""
The server: one simulated model server on a socket of its own.

It speaks HTTP and nothing else happens here: bodies are understood by `dialect`, tokens come from
`live`, bytes are made by `answers`. A client that leaves takes its requests out of the engine. When
the server stops, what is under way ends at once with the error of a dead engine, in a stream as its
last event. Several servers live side by side in one process and share nothing.
"""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from epp.simulator import exposition
from epp.simulator.answers import DONE, Answer, ChatAnswer
from epp.simulator.dialect import VERSION, APIError, Catalog, Job
from epp.simulator.engine import Engine, EngineOptions, EngineRequest
from epp.simulator.live import EngineDead, Inbox, LiveEngine
from epp.simulator.telemetry import Telemetry
from epp.simulator.timing import StepTiming

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON = "application/json"
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_SHUTDOWN_SECONDS = 0.1
"""How long answers under way may take to write their last bytes, once the engine is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """What a simulated model server is; port 0 stands for any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "simulated"
    lora_modules: Sequence[str] = ()
    engine: EngineOptions = field(default_factory=EngineOptions)
    timing: StepTiming = field(default_factory=StepTiming)
    time_scale: float = 1.0
    """Real seconds for each second of the timing; 0 is as fast as it goes."""
    seed: int = 0

    def __post_init__(self) -> None:
        fits = (self.engine.num_gpu_blocks - 1) * self.engine.block_size
        if self.engine.max_model_len > fits:
            raise ValueError(
                f"a request of max_model_len {self.engine.max_model_len} exceeds the cache:"
                f" {self.engine.num_gpu_blocks} blocks, one of them kept back, hold {fits} tokens"
            )


class Simulator:
    """A running model server, as its users see it."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.port = options.port
        self.engine = Engine(options.engine, options.timing)
        self._telemetry = Telemetry(options.model, options.engine, lora=bool(options.lora_modules))
        self.live = LiveEngine(self.engine, self._telemetry, time_scale=options.time_scale)
        self._catalog = Catalog(
            options.model, options.lora_modules, options.engine.max_model_len, options.seed
        )
        self._serial = itertools.count()

    @property
    def url(self) -> str:
        """The address to call, without a slash at its end."""
        return f"http://{self.options.host}:{self.port}"

    def application(self) -> web.Application:
        """Return the routes; whatever is none of them is answered as the real server would."""
        application = web.Application(client_max_size=0)
        for path, get in {
            "/health": self._health,
            "/ping": self._health,
            "/version": self._version,
            "/v1/models": self._models,
            "/metrics": self._metrics,
        }.items():
            application.router.add_get(path, get, allow_head=False)
            application.router.add_route("*", path, _wrong_method("GET"))
        for path, job, answer in (
            ("/v1/completions", self._catalog.completion_job, Answer),
            ("/v1/chat/completions", self._catalog.chat_job, ChatAnswer),
        ):
            application.router.add_post(path, self._completions(job, answer))
            application.router.add_route("*", path, _wrong_method("POST"))
        application.router.add_route("*", "/{path:.*}", _not_found)
        return application

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"version": VERSION}))

    async def _models(self, _request: web.Request) -> web.Response:
        return _json(self._catalog.models())

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._telemetry.page(), headers={"Content-Type": exposition.CONTENT_TYPE}
        )

    def _completions(
        self, understand: Callable[[bytes], Job], answer_kind: type[Answer]
    ) -> _Handler:
        async def completions(request: web.Request) -> web.StreamResponse:
            try:
                job = understand(await _json_body(request))
                request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16]
                answer = answer_kind(job, request_id)
                with self._submitted(job, answer) as inbox:
                    if job.stream:
                        return await _stream(request, job, answer, inbox)
                    return _json(answer.whole(await inbox.all(), inbox.cached_tokens))
            except APIError as error:
                return _json(error.body, error.status)

        return completions

    @contextlib.contextmanager
    def _submitted(self, job: Job, answer: Answer) -> Iterator[Inbox]:
        """Have the choices in the engine, and out of it again however the answer ends."""
        inbox = Inbox()
        request_ids = []
        try:
            for index, choice in enumerate(job.choices):
                request_ids.append(f"{answer.id}-{next(self._serial)}")
                self.live.submit(
                    EngineRequest(
                        request_ids[-1],
                        choice.prompt,
                        choice.reply,
                        job.adapter,
                        job.cache_salt,
                        choice.stops,
                    ),
                    inbox,
                    index,
                )
            yield inbox
        except EngineDead as error:
            raise _engine_dead() from error
        finally:
            for request_id in request_ids:
                self.live.abort(request_id)


@contextlib.asynccontextmanager
async def serve(options: SimulatorOptions) -> AsyncIterator[Simulator]:
    """Serve until the block ends; the port is open when it begins."""
    simulator = Simulator(options)
    runner = web.AppRunner(
        simulator.application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
        simulator.port = runner.addresses[0][1]
        engine = asyncio.create_task(simulator.live.run(), name=f"engine {simulator.url}")
        try:
            yield simulator
        finally:
            engine.cancel()
            await asyncio.wait([engine])
            if not engine.cancelled():
                engine.result()  # it ended before it was told to: raise what ended it
    finally:
        await runner.cleanup()


async def _stream(
    request: web.Request, job: Job, answer: Answer, inbox: Inbox
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    await response.prepare(request)
    try:
        await _stream_tokens(response, job, answer, inbox)
    except EngineDead:
        await _write(response, b"data: " + _engine_dead().body + b"\n\n")
    await _write(response, DONE)
    return response


async def _stream_tokens(
    response: web.StreamResponse, job: Job, answer: Answer, inbox: Inbox
) -> None:
    generated = 0
    unfinished = len(job.choices)
    while unfinished:
        index, token, finish_reason = await inbox.next()
        if not generated:
            for chunk in answer.opening():
                await _write(response, chunk)
        generated += 1
        unfinished -= finish_reason is not None
        await _write(response, answer.chunk(index, token, finish_reason))
    if job.include_usage:
        await _write(response, answer.usage_chunk(generated, inbox.cached_tokens))


async def _write(response: web.StreamResponse, chunk: bytes) -> None:
    """Write one chunk of a stream and let the loop send it, before the next one could join it."""
    await response.write(chunk)
    await asyncio.sleep(0)


async def _json_body(request: web.Request) -> bytes:
    if request.content_type != _JSON:
        raise APIError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind="Bad Request",
        )
    return await request.read()


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type=_JSON)


def _engine_dead() -> APIError:
    return APIError("The engine stopped.", status=500, kind="InternalServerError")


async def _not_found(_request: web.Request) -> web.Response:
    return _json(b'{"detail":"Not Found"}', 404)


def _wrong_method(allowed: str) -> _Handler:
    async def wrong_method(_request: web.Request) -> web.Response:
        response = _json(b'{"detail":"Method Not Allowed"}', 405)
        response.headers["Allow"] = allowed
        return response

    return wrong_method
