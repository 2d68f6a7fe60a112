"""
Policies: all that one configuration decides about a request, built from its plugins.

The director holds one of these and can be given another between two requests; a request keeps the
hooks of those that routed it, so that what a plugin remembers of it is also taken back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from epp.config.loader import Configuration
from epp.framework import (
    DataProducer,
    FirstByteObserver,
    PreRequest,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
)
from epp.observability.metrics import Metrics, PluginCall
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
