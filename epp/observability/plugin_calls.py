"""
Plugin calls: every call of a plugin timed, and its failure counted, logged and named.

This is one of the three places where whatever is raised is contained: code around it meets only an
EPPError. A plain call costs a couple of microseconds, since a request makes a dozen of them.
"""

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from itertools import accumulate
from types import TracebackType
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from epp.framework import EPPError, PluginFailed, PluginInstance
from epp.observability.buckets import FAST_SECONDS

T = TypeVar("T")

LOG_INTERVAL_SECONDS = 10.0

OVERRUN_SECONDS = 0.05
"""A plain call that takes longer is counted and named: meanwhile no request goes on."""

_FOLDED_AT = 256
"""Calls whose durations are counted together."""

LABELS = ("extension_point", "type", "name")

_log = structlog.get_logger("epp.plugin_calls")


class PluginCall:
    """
    What each call of one plugin at one extension point is made in.

    `with call: ...` is for a plain call: it is entered by one caller at a time, so what is inside
    must neither await nor enter it again. `await call.wait(...)` is for a plugin that waits, and
    any number of those may go on at once. An EPPError passes through as it is, since it is an
    answer and not a failure; any other Exception leaves as PluginFailed. It is logged, without its
    message, unless one was logged less than ten seconds ago.
    """

    __slots__ = (
        "_clock",
        "_counts",
        "_durations",
        "_errors",
        "_failures",
        "_overruns",
        "_overruns_silent_until",
        "_plugin",
        "_point",
        "_seconds",
        "_silent_until",
        "_started",
    )

    def __init__(
        self,
        extension_point: str,
        instance: PluginInstance,
        errors: Counter,
        overruns: Counter,
        clock: Callable[[], float],
    ) -> None:
        self._point = extension_point
        self._plugin = instance
        self._errors = errors
        self._overruns = overruns
        self._clock = clock
        self._started = 0.0
        self._seconds = 0.0
        self._durations: list[float] = []
        """Of the latest calls, which are not counted yet: a request has better things to do."""
        # By bucket, the last for what is beyond them all.
        self._counts = [0] * (len(FAST_SECONDS) + 1)
        self._silent_until = self._overruns_silent_until = -math.inf
        self._failures = 0

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        durations = self._durations
        seconds = self._clock() - self._started
        durations.append(seconds)
        if len(durations) >= _FOLDED_AT:
            self._fold()
        if seconds > OVERRUN_SECONDS:
            self._note_overrun(seconds)
        if error is not None:
            self._contain(error)

    async def wait(self, answer: Awaitable[T]) -> T:
        """Return what the plugin answers, once it does."""
        started = self._clock()
        try:
            return await answer
        except Exception as error:
            self._contain(error)
            raise
        finally:
            self._durations.append(self._clock() - started)
            if len(self._durations) >= _FOLDED_AT:
                self._fold()

    def _contain(self, error: BaseException) -> None:
        """Raise PluginFailed for a failure; return where it is an answer, or no Exception."""
        if isinstance(error, Exception | SystemExit) and not isinstance(error, EPPError):
            self._note(error, self._clock())
            raise PluginFailed(self._point, self._plugin.type, self._plugin.name) from error

    def _fold(self) -> None:
        """Count the durations of the latest calls."""
        for seconds in self._durations:
            self._counts[bisect_left(FAST_SECONDS, seconds)] += 1
        self._seconds += sum(self._durations)
        self._durations.clear()

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many calls took up to each bound, as Prometheus counts."""
        self._fold()
        bounds = [*map(floatToGoString, FAST_SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))

    @property
    def total_seconds(self) -> float:
        """All the time that calls took."""
        self._fold()
        return self._seconds

    def _note_overrun(self, seconds: float) -> None:
        """Count a plain call that held up every request for too long; it cannot be interrupted."""
        self._overruns.inc()
        now = self._clock()
        if now >= self._overruns_silent_until:
            self._overruns_silent_until = now + LOG_INTERVAL_SECONDS
            _log.warning(
                "plugin takes too long, and every request waits for it",
                extension_point=self._point,
                plugin_type=self._plugin.type,
                plugin_name=self._plugin.name,
                seconds=round(seconds, 3),
            )

    def _note(self, error: BaseException, now: float) -> None:
        self._errors.inc()
        self._failures += 1
        if now < self._silent_until:
            return
        _log.error(
            "plugin failed",
            extension_point=self._point,
            plugin_type=self._plugin.type,
            plugin_name=self._plugin.name,
            failures=self._failures,
            exc_info=error,
        )
        self._silent_until = now + LOG_INTERVAL_SECONDS
        self._failures = 0


class PluginMetrics(Collector):
    """
    The instruments of plugin calls.

    A request makes a dozen calls, and the library's histogram takes a lock and a loop for each:
    calls are counted in plain lists instead, of which the page is made when it is asked for.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[tuple[str, str, str], PluginCall] = {}
        self._errors = Counter(
            "epp_plugin_errors",
            "Calls of a plugin that raised something other than a refusal.",
            LABELS,
            registry=registry,
        )
        self._overruns = Counter(
            "epp_plugin_overruns",
            "Calls of a plugin that held up the picker for more than 50 ms.",
            LABELS,
            registry=registry,
        )
        registry.register(self)

    def call(self, extension_point: str, instance: PluginInstance) -> PluginCall:
        """Return what the calls of an instance at an extension point are made in."""
        labels = (extension_point, instance.type, instance.name)
        if labels not in self._calls:
            self._calls[labels] = PluginCall(
                extension_point,
                instance,
                self._errors.labels(*labels),
                self._overruns.labels(*labels),
                self._clock,
            )
        return self._calls[labels]

    def collect(self) -> Iterable[Metric]:
        """Yield the durations of all plugins."""
        family = HistogramMetricFamily(
            "epp_plugin_duration_seconds", "How long a call of a plugin took.", labels=LABELS
        )
        for labels, call in self._calls.items():
            family.add_metric(labels, call.buckets(), call.total_seconds)
        yield family
