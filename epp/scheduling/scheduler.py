"""
The scheduler: which profiles run for a request, and what comes of their results.

Synchronous, over a view that does not change. Where the profile handler fails, the request still
gets an endpoint: the one with the shortest queue of those that may serve it.
"""

import random

from epp.config.loader import Configuration
from epp.framework import (
    EndpointView,
    InferenceRequest,
    PluginFailed,
    ProfileHandler,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.observability.metrics import Metrics
from epp.scheduling.profile import SchedulerProfile

MAX_ROUNDS = 16
"""A profile handler that asks more often than this repeats itself."""

CHEAP_PICK = "cheap-pick"
"""The name of the profile that a result carries when no configured one could decide."""


class Scheduler:
    """Runs profiles as the profile handler says."""

    def __init__(self, configuration: Configuration, metrics: Metrics, rng: random.Random) -> None:
        self._profiles = {
            built.name: SchedulerProfile(built, metrics) for built in configuration.profiles
        }
        handler = configuration.profile_handler
        self._handler: ProfileHandler = handler.plugin
        self._handler_call = metrics.plugin("profile-handler", handler)
        self._rng = rng

    def schedule(self, request: InferenceRequest, endpoints: EndpointView) -> SchedulingResult:
        """
        Return the choice among the endpoints, of which there is at least one.

        Raises Saturated where the filters keep nothing, PluginFailed where a filter fails.
        """
        try:
            return self._run(request, endpoints)
        except PluginFailed as failure:
            if failure.extension_point == "filter":
                raise
            return self._cheap_pick(request, endpoints)

    def _cheap_pick(self, request: InferenceRequest, endpoints: EndpointView) -> SchedulingResult:
        """Return the shortest queue of those the first profile's filters keep, ties at random."""
        kept = next(iter(self._profiles.values())).keep(request, endpoints, {})
        shortest = min(kept.queue)
        ties = [one for one, queue in zip(kept, kept.queue, strict=True) if queue == shortest]
        profile = ProfileResult([ScoredEndpoint(self._rng.choice(ties), 0.0)], kept, {})
        return SchedulingResult({CHEAP_PICK: profile}, CHEAP_PICK)

    def _run(self, request: InferenceRequest, endpoints: EndpointView) -> SchedulingResult:
        results: dict[str, ProfileResult] = {}
        for _ in range(MAX_ROUNDS):
            with self._handler_call:
                names = self._handler.pick_profiles(request, self._profiles.keys(), results)
                if not names:
                    break
                if not self._profiles.keys() >= {*names}:
                    message = f"unknown profiles among {list(names)}"
                    raise ValueError(message)
            for name in names:
                results[name] = self._profiles[name].run(request, endpoints)
        with self._handler_call:
            result = self._handler.process_results(request, results)
            if result.primary not in result.profiles:
                message = f"primary profile {result.primary!r} did not run"
                raise ValueError(message)
        return result
