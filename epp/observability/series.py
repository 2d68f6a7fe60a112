"""
Series for the request path: numbers that cost an addition, and histograms that cost an append.

A request changes some twenty of them. prometheus_client's take a lock each, and its histograms walk
their buckets, which together costs more than scoring ten endpoints; the picker is one thread. The
page is made of them when it is asked for, in the library's own families.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

FOLDED_AT = 256
"""Values that are sorted into buckets together."""

S = TypeVar("S")


class Number:
    """One series of a counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self) -> None:
        """Add one."""
        self.value += 1

    def dec(self) -> None:
        """Take one away."""
        self.value -= 1


class Spread:
    """One series of a histogram."""

    __slots__ = ("_bounds", "_counts", "_sum", "pending")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        # By bucket, the last for what is beyond them all.
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.pending: list[float] = []
        """The latest values, not counted yet: a request has better things to do."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.pending.append(value)
        if len(self.pending) >= FOLDED_AT:
            self.fold()

    def fold(self) -> None:
        """Count the values that are pending; due when there are `FOLDED_AT`."""
        for value in self.pending:
            self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += sum(self.pending)
        self.pending.clear()

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many values were up to each bound, as Prometheus counts."""
        self.fold()
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))

    @property
    def total(self) -> float:
        """The sum of all values."""
        self.fold()
        return self._sum


class Family(Collector, Generic[S]):
    """The series of one metric, by their labels' values."""

    def __init__(
        self,
        registry: CollectorRegistry,
        labels: Sequence[str],
        make: Callable[[], S],
        collected: Callable[[], Metric],
        add: Callable[[Metric, Sequence[str], S], None],
    ) -> None:
        self._series: dict[tuple[str, ...], S] = {}
        self._make = make
        self._collected = collected
        self._add = add
        if not labels:
            self.labels()  # a metric without labels is there from the beginning
        registry.register(self)

    def labels(self, *values: str) -> S:
        """Return the series of these values, which are in the order of the labels' names."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = self._make()
        return found

    def remove(self, *values: str) -> None:
        """Show a series no more."""
        self._series.pop(values, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric with all its series."""
        family = self._collected()
        for values, one in self._series.items():
            self._add(family, values, one)
        yield family


def counters(
    registry: CollectorRegistry, name: str, text: str, labels: Sequence[str] = ()
) -> Family[Number]:
    """Return the series of a counter, named without its `_total`."""
    return Family(
        registry,
        labels,
        Number,
        lambda: CounterMetricFamily(name, text, labels=labels),
        _add_number,
    )


def gauges(
    registry: CollectorRegistry, name: str, text: str, labels: Sequence[str] = ()
) -> Family[Number]:
    """Return the series of a gauge."""
    return Family(
        registry, labels, Number, lambda: GaugeMetricFamily(name, text, labels=labels), _add_number
    )


def histograms(
    registry: CollectorRegistry,
    name: str,
    text: str,
    bounds: Sequence[float],
    labels: Sequence[str] = (),
) -> Family[Spread]:
    """Return the series of a histogram; `bounds` are the upper ones of its buckets, ascending."""

    def add(family: Metric, values: Sequence[str], one: Spread) -> None:
        assert isinstance(family, HistogramMetricFamily)  # made below
        family.add_metric(values, one.buckets(), one.total)

    return Family(
        registry,
        labels,
        lambda: Spread(bounds),
        lambda: HistogramMetricFamily(name, text, labels=labels),
        add,
    )


def _add_number(family: Metric, values: Sequence[str], one: Number) -> None:
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)  # made by the caller
    family.add_metric(values, one.value)
