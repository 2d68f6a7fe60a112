"""
Plugin calls: every call of a plugin timed, and its failure counted, logged and named.

This is one of the three places where whatever is raised is contained: code around it meets only an
EPPError. A plain call costs a couple of microseconds, since a request makes a dozen of them.
"""

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from epp.framework import EPPError, PluginFailed, PluginInstance
from epp.observability.buckets import FAST_SECONDS

T = TypeVar("T")

LOG_INTERVAL_SECONDS = 10.0

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
        "_errors",
        "_failures",
        "_observe",
        "_plugin",
        "_point",
        "_silent_until",
        "_started",
    )

    def __init__(
        self,
        extension_point: str,
        instance: PluginInstance,
        duration: Histogram,
        errors: Counter,
        clock: Callable[[], float],
    ) -> None:
        self._point = extension_point
        self._plugin = instance
        self._observe = duration.observe
        self._errors = errors
        self._clock = clock
        self._started = 0.0
        self._silent_until = -math.inf
        self._failures = 0

    def __enter__(self) -> None:
        self._started = self._clock()

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._end(self._started, error)

    async def wait(self, answer: Awaitable[T]) -> T:
        """Return what the plugin answers, once it does."""
        started = self._clock()
        try:
            result = await answer
        except BaseException as error:
            self._end(started, error)
            raise
        self._end(started, None)
        return result

    def _end(self, started: float, error: BaseException | None) -> None:
        now = self._clock()
        self._observe(now - started)
        if isinstance(error, Exception) and not isinstance(error, EPPError):
            self._note(error, now)
            raise PluginFailed(self._point, self._plugin.type, self._plugin.name) from error

    def _note(self, error: Exception, now: float) -> None:
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


class PluginMetrics:
    """The instruments of plugin calls."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        labels = ("extension_point", "type", "name")
        self._duration = Histogram(
            "epp_plugin_duration_seconds",
            "How long a call of a plugin took.",
            labels,
            registry=registry,
            buckets=FAST_SECONDS,
        )
        self._errors = Counter(
            "epp_plugin_errors",
            "Calls of a plugin that raised something other than a refusal.",
            labels,
            registry=registry,
        )

    def call(self, extension_point: str, instance: PluginInstance) -> PluginCall:
        """Return what the calls of an instance at an extension point are made in."""
        labels = (extension_point, instance.type, instance.name)
        return PluginCall(
            extension_point,
            instance,
            self._duration.labels(*labels),
            self._errors.labels(*labels),
            self._clock,
        )
