"""
The director: one request from raw bytes to a routing decision, and its response to the end.

Everything between is synchronous but for data producers that wait, and those have a deadline, so
that an answer is never long in coming. What a request takes (a place in an endpoint's count, the
plugins' memory of it) is given back exactly once, in `finish`, whatever ends it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from epp.framework import (
    Endpoint,
    EndpointView,
    EPPError,
    InferenceRequest,
    RawRequest,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.observability.logs import RequestLog
from epp.observability.metrics import Metrics, ModelMetrics
from epp.requestcontrol import protocol
from epp.requestcontrol.candidates import locate
from epp.requestcontrol.decisions import RecentDecisions
from epp.requestcontrol.parsers import Dialect
from epp.requestcontrol.policies import Hooks, Policies
from epp.requestcontrol.understanding import Understood, understand
from epp.requestcontrol.usage import Media, UsageReader

CLIENT_CLOSED_REQUEST = 499
"""NGINX's status for a client that left before it was answered; only metrics show it."""

MAX_LOGGED_CHARS = 128
"""Names that clients choose are cut to this in logs and on debug pages."""


class RoutingDecision(msgspec.Struct, frozen=True):
    """
    What the door is to do with a request.

    `destination` is one `address:port`, or several with commas, the first being the choice. `body`
    is None where the request's own bytes go on. `restore_model` is the model's name as the model
    server says it and as the client knows it, where they differ. `response_headers` are set on the
    response, if one comes.
    """

    destination: str
    set_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    remove_headers: Sequence[str] = ()
    body: bytes | None = None
    restore_model: tuple[str, str] | None = None
    response_headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class RoutedRequest(msgspec.Struct):
    """A request that has its endpoint, and what has been seen of its response so far."""

    request: InferenceRequest
    result: SchedulingResult
    decision: RoutingDecision
    endpoint: Endpoint
    dialect: Dialect
    model_metrics: ModelMetrics
    asked_model: str
    started: float
    decision_seconds: float
    hooks: Hooks
    reads_response: bool = True
    status: int = 0
    response_bytes: int = 0
    first_byte_seconds: float | None = None
    media: Media = "opaque"
    usage: UsageReader | None = None
    finished: bool = False


class Director:
    """Carries requests through their life; holds nothing of a request after its end."""

    def __init__(
        self,
        *,
        endpoints: Callable[[], Sequence[Endpoint]],
        policies: Policies,
        decisions: RecentDecisions,
        metrics: Metrics,
        log: RequestLog,
        clock: Callable[[], float],
        explains: bool = False,
    ) -> None:
        """`explains` lets clients ask why: a request's x-epp-explain is answered in kind."""
        self._explains = explains
        self._endpoints = endpoints
        self._policies = policies
        self._decisions = decisions
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._view = EndpointView(())

    def use(self, policies: Policies) -> None:
        """Decide by other policies from the next request on."""
        self._policies = policies

    async def handle_request(self, raw: RawRequest) -> RoutedRequest:
        """
        Return the request with its endpoint; raise the EPPError that its client is to be told.

        Either way the request is counted; a routed one must be given to `finish` at its end.
        Suspends only where a data producer waits.
        """
        started = self._clock()
        policies = self._policies
        try:
            understood = understand(raw, policies.parsers)
        except EPPError as error:
            self.refuse(raw, error)
            raise
        request = understood.request
        model_metrics = self._metrics.model(understood.asked_model or request.model)
        model_metrics.started(request.size_bytes)
        refused: tuple[int, str] | None = (EPPError.status, EPPError.code)
        try:
            view = self._view.over(locate(self._endpoints(), raw.subset_hint))
            self._view = view
            await policies.producers.run(request, view)
            result = policies.scheduler.schedule(request, view)
            decision = self._decide(raw, understood, result, policies.hooks)
            refused = None
        except EPPError as error:
            refused = (error.status, error.reason or error.code)
            self._log_refusal(request, error)
            raise
        except asyncio.CancelledError:
            refused = (CLIENT_CLOSED_REQUEST, "")
            raise
        finally:
            if refused is not None:
                model_metrics.rejected(*refused)
        return self._dispatch(understood, result, decision, model_metrics, started, policies.hooks)

    def refuse(self, raw: RawRequest, error: EPPError) -> None:
        """Count and log a request that was never understood."""
        self._metrics.refused(error.status, error.reason or error.code)
        request_id = raw.headers.get(protocol.REQUEST_ID, "")
        self._log_refusal(InferenceRequest(request_id, raw.headers), error)

    def _decide(
        self,
        raw: RawRequest,
        understood: Understood,
        result: SchedulingResult,
        hooks: Hooks,
    ) -> RoutingDecision:
        request = understood.request
        body = None
        restore = None
        if raw.body is not None and request.model != understood.asked_model:
            with understood.dialect.call:
                body = understood.dialect.parser.rewrite_model(raw.body, request.model)
            restore = (request.model, understood.asked_model) if understood.asked_model else None
        headers: dict[str, str] = {}
        if protocol.REQUEST_ID not in raw.headers:
            headers[protocol.REQUEST_ID] = request.request_id
        destination = ",".join(
            [one.endpoint.destination for one in result.profiles[result.primary].picked]
        )
        headers.update(hooks.begin(request, result))
        on_response = hooks.on_response(request, result)
        if self._explains and raw.headers.get(protocol.EXPLAIN) == "1":
            on_response[protocol.EXPLAIN] = self._decisions.header(result, self._clock())
        return RoutingDecision(
            destination,
            headers,
            [name for name in raw.headers if name in protocol.STRIPPED_HEADERS],
            body,
            restore,
            on_response,
        )

    def _dispatch(
        self,
        understood: Understood,
        result: SchedulingResult,
        decision: RoutingDecision,
        model_metrics: ModelMetrics,
        started: float,
        hooks: Hooks,
    ) -> RoutedRequest:
        endpoint = result.endpoint
        endpoint.load.in_flight += 1
        self._metrics.pick(endpoint)
        now = self._clock()
        seconds = now - started
        self._metrics.decision_seconds(seconds)
        request = understood.request
        self._decisions.record(
            request.request_id[:MAX_LOGGED_CHARS], request.model[:MAX_LOGGED_CHARS], result, now
        )
        return RoutedRequest(
            request,
            result,
            decision,
            endpoint,
            understood.dialect,
            model_metrics,
            understood.asked_model,
            started,
            seconds,
            hooks,
            understood.parsed.response_matters,
        )

    # The response

    def on_response_headers(
        self,
        routed: RoutedRequest,
        *,
        status: int,
        media: Media,
        served: str | None,
        body_follows: bool,
    ) -> None:
        """
        Take note of the response's head; it is the first byte too, where no body will be shown.
        """
        routed.status = status
        routed.media = media
        if media != "opaque" and routed.reads_response and body_follows:
            routed.usage = UsageReader(routed.dialect.parser, media)
        if served is not None and served != routed.endpoint.destination:
            self._move(routed, served)
        if not body_follows:
            self._first_byte(routed)

    def on_response_body(self, routed: RoutedRequest, piece: bytes) -> None:
        """Take note of a piece of the response's body."""
        if piece:
            if routed.first_byte_seconds is None:
                self._first_byte(routed)
            routed.response_bytes += len(piece)
            if routed.usage is not None:
                routed.usage.feed(piece)

    def on_response_end(self, routed: RoutedRequest) -> None:
        """Take note that the response's body is complete."""
        if routed.usage is not None:
            routed.usage.end()

    def _first_byte(self, routed: RoutedRequest) -> None:
        seconds = self._clock() - routed.started
        routed.first_byte_seconds = seconds
        routed.model_metrics.first_byte(seconds, streaming=routed.media == "events")
        routed.hooks.begun(routed.request, routed.result)

    def _move(self, routed: RoutedRequest, served: str) -> None:
        """
        Move the request to the endpoint that the gateway says has served it instead.

        For plugins, the first choice has ended, and this one was made.
        """
        for endpoint in self._endpoints():
            if endpoint.destination == served:
                routed.endpoint.load.in_flight -= 1
                endpoint.load.in_flight += 1
                routed.endpoint = endpoint
                routed.hooks.end(routed.request, routed.result, TerminationCause.MOVED, None)
                routed.result = _moved(routed.result, endpoint)
                routed.hooks.begin(routed.request, routed.result)
                return

    def finish(self, routed: RoutedRequest, cause: TerminationCause) -> None:
        """Give back what the request took, once; later calls do nothing."""
        if routed.finished:
            return
        routed.finished = True
        routed.endpoint.load.in_flight -= 1
        if cause is TerminationCause.COMPLETED and routed.status >= 400:
            refused = routed.status < 500
            cause = TerminationCause.REFUSED if refused else TerminationCause.MODEL_SERVER_ERROR
        usage = routed.usage.usage if routed.usage is not None else None
        routed.hooks.end(routed.request, routed.result, cause, usage)
        seconds = self._clock() - routed.started
        routed.model_metrics.finished(seconds, cause, routed.response_bytes, usage)
        self._log_finished(routed, cause, seconds)

    # The log line

    def _log_finished(self, routed: RoutedRequest, cause: TerminationCause, seconds: float) -> None:
        request = routed.request
        fields: dict[str, object] = {
            "event": "request",
            "request_id": request.request_id[:MAX_LOGGED_CHARS],
            "api": routed.dialect.claim,
            "model": routed.asked_model[:MAX_LOGGED_CHARS],
            "endpoint": routed.endpoint.destination,
            "status": routed.status,
            "cause": cause.value,
            "decision_ms": round(routed.decision_seconds * 1e3, 3),
            "duration_ms": round(seconds * 1e3, 1),
            "request_bytes": request.size_bytes,
            "response_bytes": routed.response_bytes,
        }
        if request.model != routed.asked_model:
            fields["target_model"] = request.model[:MAX_LOGGED_CHARS]
        if routed.first_byte_seconds is not None:
            fields["first_byte_ms"] = round(routed.first_byte_seconds * 1e3, 1)
        if routed.usage is not None and routed.usage.usage is not None:
            fields["prompt_tokens"] = routed.usage.usage.prompt_tokens
            fields["completion_tokens"] = routed.usage.usage.completion_tokens
            fields["cached_tokens"] = routed.usage.usage.cached_tokens
        self._log.line(fields)

    def _log_refusal(self, request: InferenceRequest, error: EPPError) -> None:
        self._log.line(
            {
                "event": "request",
                "request_id": request.request_id[:MAX_LOGGED_CHARS],
                "model": request.model[:MAX_LOGGED_CHARS],
                "status": error.status,
                "error": error.code,
                "reason": error.reason,
            }
        )


def _moved(result: SchedulingResult, endpoint: Endpoint) -> SchedulingResult:
    """Return a result as if this endpoint had been chosen."""
    primary = result.profiles[result.primary]
    others = [one for one in primary.picked if one.endpoint.id != endpoint.id]
    score = next((one.score for one in primary.picked if one.endpoint.id == endpoint.id), 0.0)
    moved = msgspec.structs.replace(primary, picked=[ScoredEndpoint(endpoint, score), *others])
    return SchedulingResult({**result.profiles, result.primary: moved}, result.primary)
