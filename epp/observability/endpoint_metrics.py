"""
Endpoint metrics: how scrapes go, and what the picker believes of each endpoint and of the pool.

What happened is counted when it happens; what is believed is read when the page is asked for, from
the same snapshot that decisions are made on. An endpoint whose signals are missing or too old has
no value for them, as it has none for the scorers: a zero would look like an idle endpoint.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from epp.framework import Endpoint, EndpointUpdate
from epp.observability import buckets

_ENDPOINT = ("endpoint",)

_SIGNALS: tuple[tuple[str, str, Callable[[Endpoint], float]], ...] = (
    ("queue", "Requests waiting", lambda endpoint: endpoint.queue),
    ("running", "Requests running", lambda endpoint: endpoint.metrics.running),
    ("kv_usage_ratio", "Fraction of the KV cache in use", lambda one: one.metrics.kv_usage),
)


class ScrapeMetrics:
    """The observer of scrapes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._endpoints: dict[str, _EndpointScrapes] = {}
        self.scrapes = Counter(
            "epp_scrapes",
            "Scrapes of an endpoint, by result: ok, or why there is none.",
            (*_ENDPOINT, "result"),
            registry=registry,
        )
        self.duration = Histogram(
            "epp_scrape_duration_seconds",
            "How long a scrape took that yielded something.",
            registry=registry,
            buckets=buckets.SCRAPE_SECONDS,
        )
        self.missing = Gauge(
            "epp_endpoint_missing_signal",
            "1 where the last scrape lacked a wanted signal, 0 once it is there again.",
            (*_ENDPOINT, "signal"),
            registry=registry,
        )
        self.parse_errors = Counter(
            "epp_scrape_parse_errors",
            "Values of scrapes that could not be read.",
            _ENDPOINT,
            registry=registry,
        )

    def scraped(self, endpoint: Endpoint, seconds: float, update: EndpointUpdate) -> None:
        """Count a scrape that yielded an update."""
        self.duration.observe(seconds)
        self._of(endpoint).scraped(update)

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """Count a scrape that yielded nothing."""
        self._of(endpoint).count(reason)

    def forget(self, endpoint_id: str) -> None:
        """Drop the series of an endpoint."""
        self._endpoints.pop(endpoint_id, None)
        for instrument in (self.scrapes, self.missing, self.parse_errors):
            instrument.remove_by_labels({"endpoint": endpoint_id})

    def _of(self, endpoint: Endpoint) -> "_EndpointScrapes":
        name = str(endpoint.id)
        found = self._endpoints.get(name)
        if found is None:
            found = self._endpoints[name] = _EndpointScrapes(self, name)
        return found


class _EndpointScrapes:
    """The series of one endpoint's scrapes, bound when first used."""

    def __init__(self, instruments: ScrapeMetrics, name: str) -> None:
        self._of = instruments
        self._name = name
        self._results: dict[str, Counter] = {}
        self._parse_errors = instruments.parse_errors.labels(name)
        self._missing: frozenset[str] = frozenset()

    def scraped(self, update: EndpointUpdate) -> None:
        self.count("ok")
        if update.parse_errors:
            self._parse_errors.inc(update.parse_errors)
        if update.missing != self._missing:
            for signal in self._missing | update.missing:
                gauge = self._of.missing.labels(self._name, signal)
                gauge.set(1.0 if signal in update.missing else 0.0)
            self._missing = update.missing

    def count(self, result: str) -> None:
        counter = self._results.get(result)
        if counter is None:
            counter = self._results[result] = self._of.scrapes.labels(self._name, result)
        counter.inc()


class PoolCollector(Collector):
    """Reads the pool when the metrics page is asked for; `clock` is that of `updated_at`."""

    def __init__(
        self, endpoints: Callable[[], Sequence[Endpoint]], clock: Callable[[], float]
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families without samples, so that a registry refuses a second of them."""
        return self._families((), 0.0)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what is believed now."""
        return self._families(self._endpoints(), self._clock())

    def _families(self, endpoints: Sequence[Endpoint], now: float) -> Iterator[GaugeMetricFamily]:
        known = [endpoint for endpoint in endpoints if not endpoint.stale]
        for name, meaning, value in _SIGNALS:
            values = [value(endpoint) for endpoint in known]
            yield _by_endpoint(
                name, f"{meaning}, where the signal is fresh.", zip(known, values, strict=True)
            )
            average = GaugeMetricFamily(
                f"epp_pool_average_{name}",
                f"{meaning}, on average over the endpoints whose signals are fresh.",
            )
            if values:
                average.add_metric((), sum(values) / len(values))
            yield average
        yield _by_endpoint(
            "in_flight",
            "Requests of this picker that are on the endpoint.",
            ((endpoint, endpoint.load.in_flight) for endpoint in endpoints),
        )
        yield _by_endpoint(
            "signal_age_seconds",
            "Time since the last scrape that yielded something; +Inf before the first.",
            ((endpoint, _age(endpoint, now)) for endpoint in endpoints),
        )
        yield _by_endpoint(
            "stale",
            "1 where the endpoint's signals are missing or too old to be trusted.",
            ((endpoint, endpoint.stale) for endpoint in endpoints),
        )
        yield GaugeMetricFamily("epp_pool_endpoints", "Endpoints of the pool.", len(endpoints))


def _by_endpoint(
    name: str, meaning: str, values: Iterable[tuple[Endpoint, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"epp_endpoint_{name}", meaning, labels=_ENDPOINT)
    for endpoint, value in values:
        family.add_metric((str(endpoint.id),), float(value))
    return family


def _age(endpoint: Endpoint, now: float) -> float:
    updated_at = endpoint.metrics.updated_at
    return math.inf if updated_at is None else max(0.0, now - updated_at)
