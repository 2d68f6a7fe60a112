"""
Metrics: every instrument of the picker, on one registry that is passed in.

One prefix, base units, and labels from closed sets: what a client can choose is capped. Everything
that is called for a request is bound beforehand and costs a few microseconds for all of it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epp import __version__
from epp.framework import Endpoint, PluginInstance
from epp.observability import buckets
from epp.observability.endpoint_metrics import PoolCollector, ScrapeMetrics
from epp.observability.plugin_calls import PluginCall, PluginMetrics
from epp.observability.request_metrics import ModelMetrics, RequestMetrics
from epp.observability.series import counters, gauges, histograms

__all__ = ["Metrics", "ModelMetrics", "PluginCall", "ScrapeMetrics", "watch_loop_lag"]


class Metrics:
    """
    What the picker counts and times.

    `scrapes` is the observer of the data layer's scrapes; `registry` is what an exporter shows.
    Making one turns off the `_created` series of prometheus_client, one more for each counter and
    histogram and of no use to Prometheus. The library has that switch for the whole process only,
    so it is turned here, where the picker's metrics begin, and not by importing something.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        max_models: int = 200,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry() if registry is None else registry
        self._requests = RequestMetrics(registry, max_models)
        self._plugins = PluginMetrics(registry, clock)
        self.scrapes = ScrapeMetrics(registry)
        self._decision = histograms(
            registry,
            "epp_decision_duration_seconds",
            "From the arrival of a whole request to its routing decision.",
            buckets.FAST_SECONDS,
        ).labels()
        self._picks = counters(
            registry, "epp_endpoint_picks", "Requests routed to an endpoint.", ("endpoint",)
        )
        self._streams_open = gauges(
            registry, "epp_streams_open", "Streams of the gateway that are open."
        ).labels()
        self._streams = counters(
            registry,
            "epp_streams",
            "Streams of the gateway that ended, by gRPC status code.",
            ("code",),
        )
        self._connections = Gauge(
            "epp_http2_connections",
            "Connections to the lean door, those of health probes included.",
            registry=registry,
        )
        self._violations = Counter(
            "epp_http2_violations",
            "What peers did against HTTP/2 or its limits, by the error code that they were told,"
            " and by what it cost them: a stream or the connection.",
            ("scope", "code"),
            registry=registry,
        )
        self._loop_lag = Histogram(
            "epp_event_loop_lag_seconds",
            "How much later than asked a timer of the event loop fires.",
            registry=registry,
            buckets=buckets.LAG_SECONDS,
        )
        self._draining = Gauge(
            "epp_draining",
            "1 while the picker finishes what it has and takes nothing new.",
            registry=registry,
        )
        self._plugin_events = Counter(
            "epp_plugin_events",
            "Events that plugins tell of, such as LoRA reports that differ from what was sent.",
            ("name", "event"),
            registry=registry,
        )
        self._reloads = Counter(
            "epp_config_reloads",
            "Changes of the configuration file that were put in force, and those that were not.",
            ("result",),
            registry=registry,
        )
        self._config_loaded = Gauge(
            "epp_config_loaded_timestamp_seconds",
            "Unix time at which the configuration in force was loaded.",
            registry=registry,
        )
        self._config_loaded.set_to_current_time()
        info = Gauge("epp_info", "Always 1: what runs here.", ("version",), registry=registry)
        info.labels(__version__).set(1)

    def model(self, name: str) -> ModelMetrics:
        """Return the instruments of a model's requests; of "other" where there are too many."""
        return self._requests.model(name)

    def refused(self, status: int, reason: str) -> None:
        """Count a request that was answered with an error before its model was known."""
        self._requests.model("").refused(status, reason)

    def decision_seconds(self, seconds: float) -> None:
        """Count the time that one routing decision took."""
        self._decision.observe(seconds)

    def plugin_event(self, plugin: str, event: str) -> None:
        """Count an event that a plugin tells of, by its instance's name."""
        self._plugin_events.labels(plugin, event).inc()

    def config_reloaded(self, *, success: bool) -> None:
        """Count a change of the configuration file."""
        self._reloads.labels("success" if success else "failure").inc()
        if success:
            self._config_loaded.set_to_current_time()

    def plugin(self, extension_point: str, instance: PluginInstance) -> PluginCall:
        """Return what a plugin is called in, bound once and used for every call."""
        return self._plugins.call(extension_point, instance)

    def pick(self, endpoint: Endpoint) -> None:
        """Count a request routed to an endpoint."""
        self._picks.labels(str(endpoint.id)).inc()

    def forget(self, endpoint_id: str) -> None:
        """Drop the series of an endpoint that is gone; its id is given as text."""
        self._picks.remove(endpoint_id)
        self.scrapes.forget(endpoint_id)

    def stream_opened(self) -> None:
        """Count a stream of the gateway that opened."""
        self._streams_open.inc()

    def stream_closed(self, code: str) -> None:
        """Count a stream of the gateway that ended, with the name of its gRPC status code."""
        self._streams_open.dec()
        self._streams.labels(code).inc()

    def connection_opened(self) -> None:
        """Count a connection to the lean door that was made."""
        self._connections.inc()

    def connection_closed(self) -> None:
        """Count a connection to the lean door that ended."""
        self._connections.dec()

    def http2_violation(self, scope: str, code: str) -> None:
        """Count what cost a peer its "stream" or its "connection", with the error code's name."""
        self._violations.labels(scope, code).inc()

    def watch_pool(
        self, endpoints: Callable[[], Sequence[Endpoint]], clock: Callable[[], float]
    ) -> None:
        """
        Show the pool on the metrics page, as it is when the page is asked for.

        The clock is the one that endpoints' `updated_at` is read from.
        """
        self.registry.register(PoolCollector(endpoints, clock))

    def loop_lag_seconds(self, seconds: float) -> None:
        """Count how late the event loop was once."""
        self._loop_lag.observe(seconds)

    def draining(self, *, draining: bool) -> None:
        """Show whether the picker drains."""
        self._draining.set(1.0 if draining else 0.0)


async def watch_loop_lag(metrics: Metrics, interval: float = 0.25) -> None:
    """Measure, for ever, how late the event loop wakes what asked to be woken."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        metrics.loop_lag_seconds(max(0.0, loop.time() - due))
