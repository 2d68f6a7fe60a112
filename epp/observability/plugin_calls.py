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
from prometheus_client import CollectorRegistry, Counter

from epp.framework import EPPError, PluginFailed, PluginInstance
from epp.observability.buckets import FAST_SECONDS
from epp.observability.series import FOLDED_AT, Spread, histograms

T = TypeVar("T")

LOG_INTERVAL_SECONDS = 10.0

OVERRUN_SECONDS = 0.05
"""A plain call that takes longer is counted and named: meanwhile no request goes on."""

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
        "_durations",
        "_errors",
        "_failures",
        "_overruns",
        "_overruns_silent_until",
        "_plugin",
        "_point",
        "_silent_until",
        "_started",
    )

    def __init__(
        self,
        extension_point: str,
        instance: PluginInstance,
        durations: Spread,
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
        self._durations = durations
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
        seconds = self._clock() - self._started
        # As `observe` does, without the call: a request makes a dozen and a half of these.
        durations = self._durations
        durations.pending.append(seconds)
        if len(durations.pending) >= FOLDED_AT:
            durations.fold()
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
            self._durations.observe(self._clock() - started)

    def _contain(self, error: BaseException) -> None:
        """Raise PluginFailed for a failure; return where it is an answer, or no Exception."""
        if isinstance(error, Exception | SystemExit) and not isinstance(error, EPPError):
            self._note(error, self._clock())
            raise PluginFailed(self._point, self._plugin.type, self._plugin.name) from error

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


class PluginMetrics:
    """The instruments of plugin calls."""

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
        self._durations = histograms(
            registry,
            "epp_plugin_duration_seconds",
            "How long a call of a plugin took.",
            FAST_SECONDS,
            LABELS,
        )

    def call(self, extension_point: str, instance: PluginInstance) -> PluginCall:
        """Return what the calls of an instance at an extension point are made in."""
        labels = (extension_point, instance.type, instance.name)
        if labels not in self._calls:
            self._calls[labels] = PluginCall(
                extension_point,
                instance,
                self._durations.labels(*labels),
                self._errors.labels(*labels),
                self._overruns.labels(*labels),
                self._clock,
            )
        return self._calls[labels]
