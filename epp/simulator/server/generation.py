"""
Generation: the endpoints that let requests into an engine and answer with what it says.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from aiohttp import web

from epp.simulator.api import embeddings, errors, headers
from epp.simulator.api.completions import AnswerOptions, Timings
from epp.simulator.api.errors import APIError
from epp.simulator.api.headers import RequestHeaders
from epp.simulator.api.jobs import Job
from epp.simulator.inbox import Delivery, EndReason, EngineDead
from epp.simulator.server.simulator import Flight, Simulator
from epp.simulator.server.wire import Handler, json_body, json_response, write_apart

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class AnyAnswer(Protocol):
    """Writes the answer to one job: whole, or event by event."""

    id: str
    kv_transfer_params: dict[str, Any] | None

    def opening(self) -> Sequence[bytes]:
        """Return the events that come before the first token."""
        ...

    def event(self, index: int, token: int | None, end_reason: EndReason | None, /) -> bytes:
        """Return the event of one token; nothing where it has none."""
        ...

    def closing(self, timings: Sequence[Timings]) -> Sequence[bytes]:
        """Return the events that come after the last token."""
        ...

    def broken(self, error: APIError) -> bytes:
        """Return the events that end a stream which cannot go on."""
        ...

    def whole(self, deliveries: Sequence[Delivery], timings: Sequence[Timings]) -> bytes:
        """Return the body of an answer that is no stream."""
        ...


_JobT = TypeVar("_JobT", bound=Job)


class Generation:
    """The endpoints of one server that generate."""

    def __init__(self, simulator: Simulator) -> None:
        self.reader = simulator.reader
        self._simulator = simulator

    def endpoint(
        self,
        read: Callable[[bytes, RequestHeaders], _JobT],
        answer_kind: Callable[[_JobT, AnswerOptions], AnyAnswer],
    ) -> Handler:
        """Return the endpoint of one API."""
        simulator = self._simulator

        async def generate(request: web.Request) -> web.StreamResponse:
            body = await json_body(request)
            await self._fault()
            asked = headers.read(request.headers)
            job = read(body, asked)
            answer = answer_kind(job, simulator.answers)
            with simulator.counted(), simulator.submitted(job, answer.id, asked) as flight:
                if job.stream:
                    return await _stream(request, job, answer, flight)
                deliveries = await flight.inbox.all()
                answer.kv_transfer_params = simulator.handoff(job, answer.id)
                response = json_response(answer.whole(deliveries, flight.passages))
                self._tell_load(response, asked)
                return response

        return generate

    async def embeddings(self, request: web.Request) -> web.Response:
        """Answer with vectors, once an engine has computed the prompts."""
        body = await json_body(request)
        await self._fault()
        asked = headers.read(request.headers)
        job = self.reader.embedding(body, asked)
        simulator = self._simulator
        answer_id = f"embd-{job.request_id}"
        with simulator.counted(), simulator.submitted(job, answer_id, asked) as flight:
            await flight.inbox.all()
            return json_response(embeddings.answer(job))

    def rendered(
        self, read: Callable[[bytes, RequestHeaders], Job], render: Callable[[Job], bytes]
    ) -> Handler:
        """Return the endpoint that says what a request becomes, without running it."""

        async def rendered(request: web.Request) -> web.Response:
            body = await json_body(request)
            return json_response(render(read(body, headers.read(request.headers))))

        return rendered

    async def _fault(self) -> None:
        """Do to a request what the fault switches say."""
        drawn = self._simulator.faults.draw()
        if drawn == "fail":
            raise errors.on_demand(self._simulator.faults.now.fail_status)
        if drawn == "hang":
            await asyncio.Event().wait()

    def _tell_load(self, response: web.Response, asked: RequestHeaders) -> None:
        if asked.load_format is None:
            return
        loads = [engine.load for engine in self._simulator.engines]
        told = headers.load_header(
            asked.load_format,
            waiting=sum(load.waiting for load in loads),
            kv_usage=max(load.kv_usage for load in loads),
        )
        if told is not None:
            response.headers["endpoint-load-metrics"] = told


async def _stream(
    request: web.Request, job: Job, answer: AnyAnswer, flight: Flight
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    # Between a reader's leaving and the end of this task, a write may find the connection closed.
    with contextlib.suppress(ConnectionResetError):
        await response.prepare(request)
        try:
            await _stream_tokens(response, job, answer, flight)
        except EngineDead:
            await response.write(answer.broken(errors.engine_dead()))
    return response


async def _stream_tokens(
    response: web.StreamResponse, job: Job, answer: AnyAnswer, flight: Flight
) -> None:
    inbox = flight.inbox
    opened = False
    unfinished = len(job.choices)
    while unfinished:
        index, token, end_reason = await inbox.next()
        if not opened:
            opened = True
            for event in answer.opening():
                await write_apart(response, event)
        unfinished -= end_reason is not None
        event = answer.event(index, token, end_reason)
        if not event:
            continue
        if inbox.backlog or not unfinished:
            await write_apart(response, event)
        else:
            await response.write(event)
    for event in answer.closing(flight.passages):
        await write_apart(response, event)
