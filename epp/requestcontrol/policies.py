"""
Policies: all that one configuration decides about a request, built from its plugins.

The director holds one of these and can be given another between two requests; a request keeps the
hooks of those that routed it, so that what a plugin remembers of it is also taken back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from epp.config.loader import Configuration
from epp.framework import (
    DataProducer,
    EPPError,
    FirstByteObserver,
    InferenceRequest,
    PreRequest,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
    SchedulingResult,
    TerminationCause,
    Usage,
)
from epp.observability.metrics import Metrics, PluginCall
from epp.requestcontrol import protocol
from epp.requestcontrol.parsers import ParserTable
from epp.requestcontrol.producers import Producers
from epp.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Hooks:
    """The plugins that see a choice or a response, each with the timer of its calls."""

    pre_request: Sequence[tuple[PreRequest, PluginCall]] = ()
    response_headers: Sequence[tuple[ResponseHeaderProvider, PluginCall]] = ()
    first_byte: Sequence[tuple[FirstByteObserver, PluginCall]] = ()
    completion: Sequence[tuple[ResponseCompletionObserver, PluginCall]] = ()

    @classmethod
    def from_config(cls, configuration: Configuration, metrics: Metrics) -> "Hooks":
        """Return the hooks of a configuration's plugins, in the order of the document."""
        return cls(
            [
                (one.plugin, metrics.plugin("pre-request", one))
                for one in configuration.of(PreRequest)
            ],
            [
                (one.plugin, metrics.plugin("response-headers", one))
                for one in configuration.of(ResponseHeaderProvider)
            ],
            [
                (one.plugin, metrics.plugin("first-byte", one))
                for one in configuration.of(FirstByteObserver)
            ],
            [
                (one.plugin, metrics.plugin("response-observer", one))
                for one in configuration.of(ResponseCompletionObserver)
            ],
        )

    def begin(self, request: InferenceRequest, result: SchedulingResult) -> dict[str, str]:
        """Let plugins remember a choice; return the headers that they set on the request."""
        headers: dict[str, str] = {}
        for plugin, call in self.pre_request:
            try:
                with call:
                    if told := plugin.pre_request(request, result):
                        headers.update(_checked(told))
            except EPPError:
                continue
        return headers

    def on_response(self, request: InferenceRequest, result: SchedulingResult) -> dict[str, str]:
        """Return the headers that plugins set on the response."""
        headers: dict[str, str] = {}
        for plugin, call in self.response_headers:
            try:
                with call:
                    headers.update(_checked(plugin.response_headers(request, result)))
            except EPPError:
                continue
        return headers

    def begun(self, request: InferenceRequest, result: SchedulingResult) -> None:
        """Tell plugins that the response begins."""
        for plugin, call in self.first_byte:
            try:
                with call:
                    plugin.on_first_byte(request, result)
            except EPPError:
                continue

    def end(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Let plugins forget a choice, each whatever the others do."""
        for plugin, call in self.completion:
            try:
                with call:
                    plugin.on_response_complete(request, result, cause, usage)
            except EPPError:
                continue


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return a plugin's headers; TypeError or ValueError where they are none, or not its to set."""
    for name, value in headers.items():
        if not isinstance(value, str):
            message = f"header {name!r} has a {type(value).__name__} for its value"
            raise TypeError(message)
        if not protocol.may_be_set(name, value):
            message = f"header {name!r} is not a plugin's to set"
            raise ValueError(message)
    return headers


@dataclass(frozen=True, slots=True)
class Policies:
    """What decides about a request: who understands it, gathers facts, chooses, remembers."""

    scheduler: Scheduler
    parsers: ParserTable
    producers: Producers
    hooks: Hooks = field(default_factory=Hooks)

    @classmethod
    def from_config(
        cls,
        configuration: Configuration,
        metrics: Metrics,
        rng: Random,
        *,
        producer_deadline_seconds: float,
    ) -> "Policies":
        """Return the policies of a configuration."""
        return cls(
            Scheduler(configuration, metrics, rng),
            ParserTable(configuration.parsers, metrics),
            Producers(
                configuration.of(DataProducer),
                metrics,
                deadline_seconds=producer_deadline_seconds,
            ),
            Hooks.from_config(configuration, metrics),
        )
