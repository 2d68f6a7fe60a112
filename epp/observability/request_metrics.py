"""
Request metrics: what happened to requests, by model.

Model names come from clients, so only so many distinct ones get series of their own; those beyond
share the series of "other". A name is "" where a request has none, or was refused before it was
known.
"""

from functools import cached_property

from prometheus_client import CollectorRegistry

from epp.framework import TerminationCause, Usage
from epp.observability import buckets
from epp.observability.series import Number, Spread, counters, gauges, histograms

OTHER = "other"
MAX_NAME_LENGTH = 256

_MODEL = ("model",)


class RequestMetrics:
    """The instruments of requests, and the models that have series of their own."""

    def __init__(self, registry: CollectorRegistry, max_models: int) -> None:
        self._models: dict[str, ModelMetrics] = {}
        self._room = max_models
        self.requests = counters(
            registry, "epp_requests", "Requests, refused ones included.", _MODEL
        )
        self.running = gauges(
            registry,
            "epp_requests_running",
            "Requests between their arrival and the end of their response.",
            _MODEL,
        )
        self.errors = counters(
            registry,
            "epp_request_errors",
            "Requests answered with an error, by its status and its reason.",
            (*_MODEL, "code", "reason"),
        )
        self.finished = counters(
            registry,
            "epp_requests_finished",
            "Routed requests that ended, by why they did.",
            (*_MODEL, "cause"),
        )
        self.first_byte = histograms(
            registry,
            "epp_time_to_first_byte_seconds",
            "From the arrival of a request to the first byte of its response's body.",
            buckets.FIRST_BYTE_SECONDS,
            (*_MODEL, "streaming"),
        )
        self.duration = histograms(
            registry,
            "epp_request_duration_seconds",
            "From the arrival of a request to the end of its response.",
            buckets.DURATION_SECONDS,
            _MODEL,
        )
        self.request_size = histograms(
            registry,
            "epp_request_size_bytes",
            "Size of a request's body.",
            buckets.REQUEST_BYTES,
            _MODEL,
        )
        self.response_size = histograms(
            registry,
            "epp_response_size_bytes",
            "Size of a response's body, where the picker saw one.",
            buckets.RESPONSE_BYTES,
            _MODEL,
        )
        self.prompt_tokens = histograms(
            registry,
            "epp_prompt_tokens",
            "Tokens of a prompt, as the model server counted them.",
            buckets.PROMPT_TOKENS,
            _MODEL,
        )
        self.completion_tokens = histograms(
            registry,
            "epp_completion_tokens",
            "Tokens of a completion, as the model server counted them.",
            buckets.COMPLETION_TOKENS,
            _MODEL,
        )
        self.cached_tokens = histograms(
            registry,
            "epp_cached_tokens",
            "Tokens of a prompt that the model server found in its prefix cache.",
            buckets.PROMPT_TOKENS,
            _MODEL,
        )

    def model(self, name: str) -> "ModelMetrics":
        """Return the instruments of a model."""
        found = self._models.get(name)
        return self._admit(name) if found is None else found

    def _admit(self, name: str) -> "ModelMetrics":
        if name not in ("", OTHER):
            if self._room <= 0 or not _is_label(name):
                return self.model(OTHER)
            self._room -= 1
        self._models[name] = ModelMetrics(self, name)
        return self._models[name]


class ModelMetrics:
    """
    What happened to the requests of one model.

    A request is started once, and then either rejected or finished, once. Series are bound when
    first used: a model of which nothing but refusals is known shows no empty histograms.
    """

    def __init__(self, instruments: RequestMetrics, name: str) -> None:
        self._of = instruments
        self._name = name
        self._requests = instruments.requests.labels(name)
        self._errors: dict[tuple[int, str], Number] = {}
        self._finished: dict[TerminationCause, Number] = {}

    def started(self, size_bytes: int) -> None:
        """Count a request that arrived whole."""
        self._requests.inc()
        self._running.inc()
        self._request_size.observe(size_bytes)

    def refused(self, status: int, reason: str) -> None:
        """Count a request that was answered with an error before it was started."""
        self._requests.inc()
        self._error(status, reason)

    def rejected(self, status: int, reason: str) -> None:
        """Count the error that a started request was answered with."""
        self._error(status, reason)
        self._running.dec()

    def first_byte(self, seconds: float, *, streaming: bool) -> None:
        """Count the time to the first byte of a response's body."""
        (self._first_streamed if streaming else self._first_byte).observe(seconds)

    def finished(
        self, seconds: float, cause: TerminationCause, response_bytes: int, usage: Usage | None
    ) -> None:
        """Count the end of a started request that was routed."""
        self._running.dec()
        self._duration.observe(seconds)
        finished = self._finished.get(cause)
        if finished is None:
            finished = self._finished[cause] = self._of.finished.labels(self._name, cause.value)
        finished.inc()
        if response_bytes > 0:
            self._response_size.observe(response_bytes)
        if usage is not None:
            self._tokens(usage)

    def _tokens(self, usage: Usage) -> None:
        if usage.prompt_tokens is not None:
            self._prompt_tokens.observe(usage.prompt_tokens)
        if usage.completion_tokens is not None:
            self._completion_tokens.observe(usage.completion_tokens)
        if usage.cached_tokens is not None:
            self._cached_tokens.observe(usage.cached_tokens)

    def _error(self, status: int, reason: str) -> None:
        errors = self._errors.get((status, reason))
        if errors is None:
            errors = self._of.errors.labels(self._name, str(status), reason)
            self._errors[status, reason] = errors
        errors.inc()

    @cached_property
    def _running(self) -> Number:
        return self._of.running.labels(self._name)

    @cached_property
    def _request_size(self) -> Spread:
        return self._of.request_size.labels(self._name)

    @cached_property
    def _first_byte(self) -> Spread:
        return self._of.first_byte.labels(self._name, "false")

    @cached_property
    def _first_streamed(self) -> Spread:
        return self._of.first_byte.labels(self._name, "true")

    @cached_property
    def _duration(self) -> Spread:
        return self._of.duration.labels(self._name)

    @cached_property
    def _response_size(self) -> Spread:
        return self._of.response_size.labels(self._name)

    @cached_property
    def _prompt_tokens(self) -> Spread:
        return self._of.prompt_tokens.labels(self._name)

    @cached_property
    def _completion_tokens(self) -> Spread:
        return self._of.completion_tokens.labels(self._name)

    @cached_property
    def _cached_tokens(self) -> Spread:
        return self._of.cached_tokens.labels(self._name)


def _is_label(name: str) -> bool:
    """Say whether a name may become a label: half a surrogate pair would break the whole page."""
    if len(name) > MAX_NAME_LENGTH:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
